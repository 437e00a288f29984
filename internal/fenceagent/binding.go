package fenceagent

import (
	"maps"
	"net/netip"
	"strings"
)

// Unbound is what a Secret does not allow yet.
type Unbound struct {
	// Addresses are missing in what the Secret names: the address, or the name of an agent that is not in the table.
	Addresses []string
	// Plain is why the Secret has to allow a plain protocol.
	Plain string
}

// Binding is where a Secret may be sent, as who writes the Secret has said.
type Binding struct {
	// Addresses are hosts, networks and names of agents.
	Addresses []string
	// Plain allows protocols that show the Secret, or do not check who answers.
	Plain bool
}

// Missing returns what the binding lacks for an agent with these options, of which some may be in the Secret itself.
func (b Binding) Missing(agent string, options map[string]string, secret map[string][]byte) Unbound {
	var u Unbound
	need := func(entry string) {
		if !b.names(entry) {
			u.Addresses = append(u.Addresses, entry)
		}
	}
	all := map[string]string{}
	for key, value := range secret {
		all[key] = strings.TrimSuffix(string(value), "\n")
	}
	maps.Copy(all, options)
	k, read := table[agent]
	for _, key := range []string{"ip", "ipaddr"} { // the agent takes either
		if options[key] != "" {
			need(options[key])
		}
	}
	if !read || all["ip"]+all["ipaddr"] == "" {
		need(agent)
	}
	if read && k.plain != nil && !b.Plain {
		u.Plain = k.plain(all)
	}
	return u
}

// names reports whether an address, or the name of an agent, is one of the binding's.
func (b Binding) names(entry string) bool {
	same := func(s string) string { return strings.TrimSuffix(strings.ToLower(s), ".") }
	address, err := netip.ParseAddr(entry)
	for _, listed := range b.Addresses {
		if same(listed) == same(entry) {
			return true
		}
		if err != nil { // a host name is what it is: another resolver may give another address
			continue
		}
		if other, fails := netip.ParseAddr(listed); fails == nil && other.Unmap() == address.Unmap() {
			return true
		}
		if network, fails := netip.ParsePrefix(listed); fails == nil && network.Contains(address.Unmap()) {
			return true
		}
	}
	return false
}
