package fenceagent

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"belay.dev/belay/internal/fencing"
)

// device is a fake of what an agent asks: it says raw, and the options are those with which the agent finds it. Some of them belay refuses: the tests alone
// set them.
type device func(t *testing.T, raw string) (options map[string]string, plug string)

// debian returns the path of an agent of Debian in the version of the table.
func debian(t *testing.T, name string) string {
	t.Helper()
	path, err := Find("/usr/sbin", name)
	if err != nil {
		t.Skip("NOT RUN: " + name + " is not installed: apt-get install fence-agents")
	}
	if v, err := releaseOf(t.Context(), path); err != nil || v != knownVersion {
		t.Skipf("NOT RUN: %s is of version %s (%v), and the table of %s", name, v, err, knownVersion)
	}
	return path
}

// script writes a program.
func script(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// answer writes what a device says, for a script.
func answer(t *testing.T, raw string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "answer")
	if err := os.WriteFile(path, []byte(raw), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// ipmitoolSays is a BMC: the program ipmitool answers, with exit status 0.
func ipmitoolSays(t *testing.T, raw string) (map[string]string, string) {
	t.Helper()
	tool := script(t, "ipmitool", "cat "+answer(t, raw)+"\n")
	t.Setenv("PATH", filepath.Dir(tool)+":"+os.Getenv("PATH"))
	return map[string]string{"ip": "192.0.2.1", "username": "admin", "password": "x", "lanplus": "1", "power_wait": "0"}, ""
}

// httpsSays is a device that answers each request with the same, over TLS that is not verified.
func httpsSays(t *testing.T, raw string) (map[string]string, string) {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, raw) }))
	t.Cleanup(s.Close)
	host, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	return map[string]string{"ip": host, "ipport": port, "username": "admin", "password": "x", "ssl_insecure": "1"}, ""
}

func redfishSays(t *testing.T, raw string) (map[string]string, string) {
	t.Helper()
	o, _ := httpsSays(t, raw)
	o["systems_uri"] = "/redfish/v1/Systems/1"
	return o, ""
}

func vcenterSays(t *testing.T, raw string) (map[string]string, string) {
	t.Helper()
	o, _ := httpsSays(t, `{"value":[{"vm":"vm-1","name":"node","power_state":"`+raw+`"}]}`)
	return o, "node"
}

// snmpSays is a PDU of a kind, by its system OID: its outlets have a state.
func snmpSays(oid string) device {
	return func(t *testing.T, raw string) (map[string]string, string) {
		t.Helper()
		return map[string]string{
			"ip": "192.0.2.1", "username": "admin",
			"snmpget_path":  script(t, "snmpget", "echo .1.2.3 \"$(cat "+answer(t, raw)+")\"\n"),
			"snmpwalk_path": script(t, "snmpwalk", "echo .1.3.6.1.2.1.1.2.0 "+oid+"\n"),
		}, "1"
	}
}

// sshSays is a machine that one logs in to: it answers each line with the same.
func sshSays(prompt, plug string) device {
	return func(t *testing.T, raw string) (map[string]string, string) {
		t.Helper()
		ssh := script(t, "ssh", "stty -echo\nprintf '"+prompt+"'\nwhile read -r line; do cat "+answer(t, raw)+"; printf '"+prompt+"'; done\n")
		return map[string]string{
			"ip": "192.0.2.1", "username": "admin", "identity_file": answer(t, ""), "ssh_path": ssh, "secure": "1", "ipport": "22", "login_timeout": "20", "shell_timeout": "20",
		}, plug
	}
}

// TestWhatAgentsCallOff: the real agents of Debian say OFF for what the table has, and for nothing else; and those that are known to lie do.
func TestWhatAgentsCallOff(t *testing.T) {
	const on, off, unknown = fencing.PowerOn, fencing.PowerOff, fencing.PowerUnknown
	managed, switched, apc := snmpSays(".1.3.6.1.4.1.534.6.6.6"), snmpSays(".1.3.6.1.4.1.20677.1"), snmpSays(".1.3.6.1.4.1.318.1.3.4.5")
	for _, c := range []struct {
		agent string
		asked device
		says  map[string]fencing.Power
	}{
		{"fence_ipmilan", ipmitoolSays, map[string]fencing.Power{
			"Chassis Power is on\n": on, "Chassis Power is off\n": off, "": unknown, "Chassis Power is unknown\n": unknown,
			"Error: Unable to establish IPMI v2 / RMCP+ session\n": unknown, "Chassis Power Control: Down/Off\n": unknown, "Unable to get Chassis Power Status\n": unknown,
		}},
		{"fence_redfish", redfishSays, map[string]fencing.Power{
			`{"PowerState":"On"}`: on, `{"PowerState":"Off"}`: off, `{"PowerState":" Off "}`: off, `{"PowerState":"PoweringOff"}`: on, `{"PowerState":"PoweringOn"}`: on,
			`{"PowerState":"Paused"}`: on, `{"PowerState":"off"}`: on, `{"PowerState":null}`: unknown, `{}`: unknown, `{"error":{}}`: unknown, `Off`: unknown, ``: unknown,
		}},
		{"fence_eaton_snmp", managed, map[string]fencing.Power{"1": on, "0": off, "2": unknown, "3": unknown, "": unknown, "No Such Instance": unknown}},
		{"fence_eaton_snmp", switched, map[string]fencing.Power{"1": on, "2": off, "0": unknown, "3": unknown, "": unknown}},
		{"fence_eaton_snmp", snmpSays(".1.3.6.1.4.1.318.1.3.4.5"), map[string]fencing.Power{"0": unknown, "2": unknown}},
		// These lie: a reading that differs ends their row.
		{"fence_virsh", sshSays("[EXPECT]# ", "node"), map[string]fencing.Power{
			"running\n": on, "shut off\n": off, "in shutdown\n": off, "pmsuspended\n": off, "virsh: command not found\n": off, "laufend\n": off, "": off,
		}},
		{"fence_vmware_rest", vcenterSays, map[string]fencing.Power{"POWERED_ON": on, "POWERED_OFF": off, "SUSPENDED": off}},
		{"fence_apc_snmp", apc, map[string]fencing.Power{"1": on, "2": off, "0": off, "No Such Instance": off}},
		{"fence_tripplite_snmp", apc, map[string]fencing.Power{"1": on, "0": off}},
		{"fence_raritan_px3", sshSays("[My PDU] #", "1"), map[string]fencing.Power{
			"Outlet 1 - node:\nPower state: On\nOutlet 2 - other:\nPower state: Off\n": on, "Outlet 1 - node:\nPower state: On\nOutlet 2 - the other:\nPower state: Off\n": off,
		}},
	} {
		for _, raw := range slices.Sorted(maps.Keys(c.says)) {
			t.Run(fmt.Sprintf("%s/%q", c.agent, raw), func(t *testing.T) {
				path := debian(t, c.agent)
				options, plug := c.asked(t, raw)
				a, err := New(t.Context(), path, nil, plug, nil)
				if err != nil {
					t.Fatal(err)
				}
				maps.Copy(a.options, options)
				if got, answered, err := a.Status(t.Context()); got != c.says[raw] {
					t.Errorf("%v, want %v: %s (%v)", got, c.says[raw], answered, err)
				}
			})
		}
	}
}

// TestTableIsTried: TestWhatAgentsCallOff asks every agent of the table whose Off counts; the agents of IPMI are one program.
func TestTableIsTried(t *testing.T) {
	tried := []string{"fence_redfish", "fence_eaton_snmp"}
	for name, k := range table {
		if (k.Off == "") == (k.Lies == "") || k.Line == "" || k.Off != "" && !slices.Contains(tried, name) && !slices.Contains(ipmiAgents, name) {
			t.Errorf("%s: %+v", name, k)
		}
	}
	first, err := os.ReadFile(debian(t, "fence_ipmilan"))
	for _, name := range ipmiAgents {
		if other, fails := os.ReadFile(debian(t, name)); err != nil || fails != nil || string(other) != string(first) {
			t.Errorf("%s is not the program of fence_ipmilan (%v, %v)", name, err, fails)
		}
	}
}
