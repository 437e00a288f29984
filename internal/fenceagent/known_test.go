package fenceagent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// named writes an agent under a name, which gives a version.
func named(t *testing.T, name, version string) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(agentIn(t, "exit 1")), name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n[ \"$1\" != --version ] || echo "+version+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestOffIsBelieved: the Off of an agent counts if the table has what it calls OFF in this version, or a person has tested that. Nothing makes that of an agent
// count that is known to say OFF of a machine that runs.
func TestOffIsBelieved(t *testing.T) {
	const person = "Ada, on a drained node"
	for name, c := range map[string]struct {
		agent, version, tested string
		counts                 bool
		says                   string
	}{
		"in the table":                      {"fence_redfish", knownVersion, "", true, ""},
		"in another version":                {"fence_redfish", "4.16.0", "", false, "this is 4.16.0"},
		"in another version, and tested":    {"fence_redfish", "4.16.0", person, true, ""},
		"no version":                        {"fence_ipmilan", "''", "", false, "of no version"},
		"not in the table":                  {"fence_pve", knownVersion, "", false, "offTested"},
		"not in the table, and tested":      {"fence_pve", knownVersion, person, true, ""},
		"known to lie":                      {"fence_virsh", knownVersion, "", false, "in shutdown"},
		"known to lie, and tested":          {"fence_virsh", knownVersion, person, false, "in shutdown"},
		"known to lie about a suspended VM": {"fence_vmware_rest", knownVersion, person, false, "SUSPENDED"},
	} {
		err := Believe(t.Context(), named(t, c.agent, c.version), c.tested)
		if (err == nil) != c.counts || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestValuesOfAFenceSource: who writes a FenceSource cannot have the Secret sent elsewhere, or another machine asked, by the value of an option.
func TestValuesOfAFenceSource(t *testing.T) {
	for name, c := range map[string]struct {
		agent, key, value string
		refused           bool
	}{
		"an address":                      {"fence_ipmilan", "ip", "192.0.2.11", false},
		"a host name":                     {"fence_ipmilan", "ip", "bmc-1.example.org", false},
		"IPv6":                            {"fence_ipmilan", "ip", "2001:db8::11", false},
		"an argument more":                {"fence_ipmilan", "cipher", "3 -H 198.51.100.1", true},
		"an argument in the address":      {"fence_ipmilan", "ip", "192.0.2.11 -H 198.51.100.1", true},
		"an argument as a name":           {"fence_ipmilan", "username", "-oProxyCommand=x", true},
		"a host behind a host":            {"fence_redfish", "systems_uri", "@198.51.100.1/redfish", true},
		"a host in the port":              {"fence_redfish", "ipport", "443@198.51.100.1", true},
		"a path":                          {"fence_redfish", "systems_uri", "/redfish/v1/Systems/System.Embedded.1", false},
		"not an option of the table":      {"fence_ipmilan", "ipmitool_timeout", "1", true},
		"a word to another program":       {"fence_example", "directory", "/run/machines", false},
		"a host of another agent":         {"fence_openstack", "auth_url", "https://198.51.100.1/", true},
		"a proxy":                         {"fence_gce", "proxyhost", "198.51.100.1", true},
		"an argument to another program":  {"fence_brocade", "username", "-oProxyCommand=x", true},
		"a shell's word to another":       {"fence_example", "directory", "/run;reboot", true},
		"nothing, which switches a flag":  {"fence_example", "secure", "", false},
		"a pattern in an option of a PDU": {"fence_apc", "cmd_prompt", "apc>", true},
	} {
		if err := checkValues(c.agent, map[string]string{c.key: c.value}); (err != nil) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, key := range []string{
		"network_fencing", "baremetalsolution", "record_only", "port_as_ip", "target", "status_file", "runonfail", "runonwarn", "exec", "openrc", "logfile", "sudo", "use_sudo",
	} {
		if err := (&Agent{options: map[string]string{}}).set(key, "1"); err == nil || !strings.Contains(err.Error(), "reserved") {
			t.Errorf("option %s: %v", key, err)
		}
	}
}

// TestBinding: a Secret goes only to the addresses that it names, over a protocol that does not show it, by an agent that belay knows or the Secret names.
func TestBinding(t *testing.T) {
	ip := func(address string) map[string]string { return map[string]string{"ip": address, "lanplus": "1"} }
	for name, c := range map[string]struct {
		b       Binding
		agent   string
		options map[string]string
		secret  string // the address in the Secret
		missing string
		plain   bool
	}{
		"nothing is named":                  {Binding{}, "fence_ipmilan", ip("192.0.2.11"), "", "192.0.2.11", false},
		"the address":                       {Binding{Addresses: []string{"192.0.2.11"}}, "fence_ipmilan", ip("192.0.2.11"), "", "", false},
		"another address":                   {Binding{Addresses: []string{"192.0.2.11"}}, "fence_ipmilan", ip("198.51.100.1"), "", "198.51.100.1", false},
		"the network":                       {Binding{Addresses: []string{"192.0.2.0/24"}}, "fence_ipmilan", ip("192.0.2.11"), "", "", false},
		"not in the network":                {Binding{Addresses: []string{"192.0.2.0/24"}}, "fence_ipmilan", ip("192.0.3.11"), "", "192.0.3.11", false},
		"a name is in no network":           {Binding{Addresses: []string{"0.0.0.0/0"}}, "fence_ipmilan", ip("bmc.example.org"), "", "bmc.example.org", false},
		"a name":                            {Binding{Addresses: []string{"BMC.example.org."}}, "fence_ipmilan", ip("bmc.example.org"), "", "", false},
		"IPv6 in another form":              {Binding{Addresses: []string{"2001:db8::b"}}, "fence_ipmilan", ip("2001:db8:0::0b"), "", "", false},
		"the address is in the Secret":      {Binding{}, "fence_ipmilan", map[string]string{"lanplus": "1"}, "192.0.2.11", "", false},
		"the old name of the option too":    {Binding{Addresses: []string{"192.0.2.11"}}, "fence_ipmilan", map[string]string{"ip": "192.0.2.11", "ipaddr": "198.51.100.1", "lanplus": "1"}, "", "198.51.100.1", false},
		"the old name beside the Secret's":  {Binding{}, "fence_ipmilan", map[string]string{"ipaddr": "198.51.100.1", "lanplus": "1"}, "192.0.2.11", "198.51.100.1", false},
		"no address at all":                 {Binding{}, "fence_ipmilan", map[string]string{"lanplus": "1"}, "", "fence_ipmilan", false},
		"IPMI 1.5":                          {Binding{Addresses: []string{"192.0.2.11"}}, "fence_ipmilan", map[string]string{"ip": "192.0.2.11"}, "", "", true},
		"IPMI 1.5 is allowed":               {Binding{Addresses: []string{"192.0.2.11"}, Plain: true}, "fence_ipmilan", map[string]string{"ip": "192.0.2.11"}, "", "", false},
		"a vendor's IPMI sets lanplus":      {Binding{Addresses: []string{"192.0.2.11"}}, "fence_idrac", map[string]string{"ip": "192.0.2.11"}, "", "", false},
		"a vendor's IPMI without it":        {Binding{Addresses: []string{"192.0.2.11"}}, "fence_idrac", map[string]string{"ip": "192.0.2.11", "lanplus": "0"}, "", "", true},
		"TLS":                               {Binding{Addresses: []string{"192.0.2.11"}}, "fence_redfish", map[string]string{"ip": "192.0.2.11"}, "", "", false},
		"TLS that is not checked":           {Binding{Addresses: []string{"192.0.2.11"}}, "fence_redfish", map[string]string{"ip": "192.0.2.11", "ssl_insecure": "0"}, "", "", true},
		"SNMP 1":                            {Binding{Addresses: []string{"192.0.2.21"}}, "fence_eaton_snmp", map[string]string{"ip": "192.0.2.21"}, "", "", true},
		"SNMP 3":                            {Binding{Addresses: []string{"192.0.2.21"}}, "fence_eaton_snmp", map[string]string{"ip": "192.0.2.21", "snmp_version": "3", "snmp_sec_level": "authPriv"}, "", "", false},
		"an agent that is not known":        {Binding{Addresses: []string{"192.0.2.11"}}, "fence_example", ip("192.0.2.11"), "", "fence_example", false},
		"an agent that the Secret names":    {Binding{Addresses: []string{"192.0.2.11", "fence_example"}}, "fence_example", ip("192.0.2.11"), "", "", false},
		"an agent is not all its addresses": {Binding{Addresses: []string{"fence_example"}}, "fence_example", ip("192.0.2.11"), "", "192.0.2.11", false},
	} {
		secret := map[string][]byte{"password": []byte("x")}
		if c.secret != "" {
			secret["ip"] = []byte(c.secret + "\n")
		}
		got := c.b.Missing(c.agent, c.options, secret)
		if strings.Join(got.Addresses, " ") != c.missing || (got.Plain != "") != c.plain {
			t.Errorf("%s: missing %q, plain %q", name, got.Addresses, got.Plain)
		}
	}
}
