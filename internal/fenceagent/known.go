package fenceagent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
)

// knownVersion is the version of the fence-agents whose source the table was read in, and whose agents the tests run: Debian's 4.12.1-1. The lines are
// those of the files as they are installed in /usr/sbin.
const knownVersion = "4.12.1"

// Known is what was found out about an agent: which answers of the device it calls OFF.
type Known struct {
	// Off is the answer of the device that becomes OFF. Everything else becomes ON, or an error.
	Off string
	// Lies is set, in place of Off, for an agent that says OFF of a machine that may run, or run on with its memory: what it calls OFF too. Nothing
	// makes its Off count.
	Lies string
	// Line is where that is, in the source of knownVersion.
	Line string
	// options are those that a FenceSource may set for this agent, beside commonOptions, and the form of each. Others may be in the Secret only.
	options map[string]*regexp.Regexp
	// plain is why a Secret would be sent where anybody may read it, or to any machine that answers at the address; empty if it would not.
	plain func(options map[string]string) string
}

// The forms of values.
var (
	aWord   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.@-]*$`)
	aNumber = regexp.MustCompile(`^[0-9]{1,5}$`)
	aSwitch = regexp.MustCompile(`^(0|1|yes|no|on|off|true|false)$`)
	aHost   = regexp.MustCompile(`^[A-Za-z0-9:][A-Za-z0-9.:_-]*$`)
	aPath   = regexp.MustCompile(`^/[A-Za-z0-9_./-]*$`)
	// aValue is any value in a FenceSource: agents put some without quotes into a command line or an address (fence_ipmilan:55-88, fence_redfish:64).
	aValue = regexp.MustCompile(`^([A-Za-z0-9_./:=,+@%~*\[\]{}^][A-Za-z0-9_./:=,+@%~*\[\]{}^-]*)?$`)
)

// commonOptions are those of every agent of the table (fencing.py).
var commonOptions = map[string]*regexp.Regexp{
	"ip": aHost, "ipaddr": aHost, "ipport": aNumber, "username": aWord, "login": aWord, "inet4_only": aSwitch, "inet6_only": aSwitch,
	"power_wait": aNumber, "power_timeout": aNumber, "shell_timeout": aNumber, "login_timeout": aNumber, "delay": aNumber, "retry_on": aNumber,
}

// table is by the name of the agent. One that is not in it is used only with a person's word (Believe).
var table = func() map[string]Known {
	t := map[string]Known{
		"fence_redfish": {
			Off: `"PowerState": "Off"`, Line: "fence_redfish:34-37", options: map[string]*regexp.Regexp{
				"systems_uri": aPath, "redfish_uri": aPath, "ssl": aSwitch, "ssl_secure": aSwitch, "ssl_insecure": aSwitch,
			},
			plain: func(o map[string]string) string {
				// The agent looks whether the option is there, and not at its value (fence_redfish:66).
				if _, set := o["ssl_insecure"]; set {
					return "with ssl_insecure the certificate is not checked"
				}
				return ""
			},
		},
		"fence_eaton_snmp": {
			Off: "outlet state 0 of a Managed ePDU, 2 of a Switched ePDU", Line: "fence_eaton_snmp:131-139", options: map[string]*regexp.Regexp{
				"snmp_version": aWord, "snmp_sec_level": aWord, "snmp_auth_prot": aWord, "snmp_priv_prot": aWord,
			},
			plain: func(o map[string]string) string {
				if o["snmp_version"] != "3" || o["snmp_sec_level"] != "authPriv" {
					return `without snmp_version "3" and snmp_sec_level "authPriv" the community or the password can be read in the network`
				}
				return ""
			},
		},
		"fence_virsh":          {Lies: `every output without "running", "blocked", "idle", "no state" or "paused": a guest in shutdown or pmsuspended, "command not found"`, Line: "fence_virsh:47-56"},
		"fence_vmware_rest":    {Lies: "SUSPENDED, and the machine resumes with its memory", Line: "fence_vmware_rest:14"},
		"fence_vmware_soap":    {Lies: "every state but poweredOn, also suspended", Line: "fence_vmware_soap:180-183"},
		"fence_apc_snmp":       {Lies: "every answer that is not On", Line: "fence_apc_snmp:165"},
		"fence_tripplite_snmp": {Lies: "every answer that is not On", Line: "fence_tripplite_snmp:165"},
		"fence_ipdu":           {Lies: "every answer that is not On", Line: "fence_ipdu:93"},
		"fence_cyberpower_ssh": {Lies: "the state of outlet 10, of outlet 1", Line: "fence_cyberpower_ssh:25"},
		"fence_raritan_px3":    {Lies: "the state of the next outlet, if that one's name has a space", Line: "fence_raritan_px3:76-101"},
	}
	for _, name := range ipmiAgents {
		t[name] = Known{
			Off: `"Chassis Power is off" of ipmitool`, Line: "fence_ipmilan:10-14", options: map[string]*regexp.Regexp{
				"lanplus": aSwitch, "cipher": aNumber, "privlvl": aWord, "auth": aWord, "timeout": aNumber,
			},
			plain: func(o map[string]string) string {
				// fence_ipmilan:49-52. The others set lanplus themselves (fence_ipmilan:183-191).
				if l, set := o["lanplus"]; l != "1" && (set || name == "fence_ipmilan") {
					return `without lanplus "1" the password can be asked for in plain text`
				}
				return ""
			},
		}
	}
	return t
}()

// DistrustError says that an agent's Off does not count.
type DistrustError struct{ Agent, Why string }

// Error says what to do, too.
func (e *DistrustError) Error() string {
	return fmt.Sprintf("the Off of agent %s does not count: %s", e.Agent, e.Why)
}

// Believe returns why the Off of an agent does not count. The Off of an agent of the table counts in the version that was read; that of another one if a
// person has tested what it means (the field offTested of the feed).
func Believe(ctx context.Context, path, tested string) error {
	name := filepath.Base(path)
	k, read := table[name]
	switch {
	case k.Lies != "":
		return &DistrustError{name, fmt.Sprintf("it also calls OFF %s (%s of fence-agents %s). Use another agent, or a command of your own", k.Lies, k.Line, knownVersion)}
	case tested != "":
		return nil
	case !read:
		return &DistrustError{name, "it is not known what it calls OFF: test it on a drained node that is on, paused, suspended, shutting down and off, and say who did so, and how, in the field offTested of its feed"}
	}
	version, err := releaseOf(ctx, path)
	if err != nil {
		return AgentError{err}
	}
	if version != knownVersion {
		return &DistrustError{name, fmt.Sprintf("what it calls OFF was read in version %s, and this is %s: test it on a drained node, and say who did so, and how, in the field offTested of its feed", knownVersion, cmp.Or(version, "of no version"))}
	}
	return nil
}

// checkValues refuses what a FenceSource may not set: an option that could send the Secret elsewhere, or change what an answer means.
func checkValues(agent string, options map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(options)) {
		if Reserved(key) { // see set
			continue
		}
		if err := CheckValue(agent, key, options[key]); err != nil {
			return err
		}
	}
	return nil
}

// CheckValue returns why a FenceSource may not set an option of an agent to a value: it may be in the Secret only.
func CheckValue(agent, key, value string) error {
	form := formOf(agent, key)
	if k, read := table[agent]; form == nil && read && k.Lies == "" {
		return fmt.Errorf("option %s of agent %s may be set in the Secret only", key, agent)
	}
	if elsewhere.MatchString(key) {
		return fmt.Errorf("option %s may be set in the Secret only: it says where the Secret is sent", key)
	}
	form = cmp.Or(form, aValue)
	if !form.MatchString(value) {
		return fmt.Errorf("option %s: %q may be set in the Secret only: in a FenceSource a value is of the form %s", key, value, form)
	}
	return nil
}

// formOf is the form of an option that is listed, else nil.
func formOf(agent, key string) *regexp.Regexp {
	return cmp.Or(table[agent].options[key], commonOptions[key])
}

// IsSwitch reports whether an option may be one that is given without a value.
func IsSwitch(agent, key string) bool {
	form := formOf(agent, key)
	return form == nil || form == aSwitch
}

// Lookup returns what was found out about an agent, and whether anything was.
func Lookup(agent string) (k Known, read bool) {
	k, read = table[agent]
	return k, read
}

// elsewhere are options that name a host, and are not ip.
var elsewhere = regexp.MustCompile(`url$|^proxy|host$|^kubeconfig$|^cloud$|endpoint|^(tls)?cacert$|targets$`)
