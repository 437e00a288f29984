package fenceagent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// What ipmitool 1.8.19-4+deb12u2 printed with -v, asked for the GUID of OpenIPMI's ipmi_sim 2.0.33, and of a port where nothing listens.
const (
	noRegistry = "Loading IANA PEN Registry...\nIANA PEN registry open failed: No such file or directory\n"
	noSession  = "Error: Unable to establish IPMI v2 / RMCP+ session\n"
)

// TestRefusedLogin (hole 19): only what is known to be a refusal is one.
func TestRefusedLogin(t *testing.T) {
	for name, c := range map[string]struct {
		prints string
		exit   int
		want   bool
	}{
		"wrong password":   {noRegistry + "> RAKP 2 HMAC is invalid\n" + noSession, 1, true},
		"unknown user":     {noRegistry + "RAKP 2 message indicates an error : unauthorized name\n" + noSession, 1, true},
		"no answer":        {noRegistry + "Get Auth Capabilities error\nError issuing Get Channel Authentication Capabilities request\n" + noSession, 1, false},
		"busy":             {noRegistry + "RAKP 2 message indicates an error : insufficient resources for session\n" + noSession, 1, false},
		"1.5, user":        {noRegistry + "Invalid user name\nError: Unable to establish LAN session\nError: Unable to establish IPMI v1.5 / RMCP session\n", 1, true},
		"1.5, password":    {noRegistry + "Activate Session command failed\nError: Unable to establish LAN session\nError: Unable to establish IPMI v1.5 / RMCP session\n", 1, false},
		"it answers":       {noRegistry + "System GUID   : 33221100-5544-7766-8899-aabbccddeeff\nGUID Version  : Unknown/unsupported (7)\n", 0, false},
		"a part of a line": {noRegistry + "no > RAKP 2 HMAC is invalid\n" + noSession, 1, false},
	} {
		tool := filepath.Join(t.TempDir(), "ipmitool")
		script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *-v*) ;; *) exit 3 ;; esac\ncat <<'X'\n%sX\nexit %d\n", c.prints, c.exit)
		if err := os.WriteFile(tool, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		a := &Agent{path: "fence_ipmilan", ipmi: true, ipmitool: tool, options: map[string]string{"ip": "192.0.2.1"}}
		id, err := a.Identity(t.Context())
		if errors.Is(err, ErrRefused) != c.want || (err == nil) != (c.exit == 0) || err == nil && id == "" {
			t.Errorf("%s: %q, %v; want refused: %t", name, id, err, c.want)
		}
	}
}

// TestRefusedLoginOfIPMISim: the lines above, from the programs themselves.
func TestRefusedLoginOfIPMISim(t *testing.T) {
	tool, err := exec.LookPath("ipmitool")
	if err != nil {
		t.Skip("ipmitool is not installed: apt-get install openipmi ipmitool fence-agents")
	}
	host, port, _ := bmc(t)
	ask := func(host, port, user, password string) error {
		a := &Agent{path: "fence_ipmilan", ipmi: true, ipmitool: tool, options: map[string]string{
			"ip": host, "ipport": port, "lanplus": "1", "cipher": "3", "username": user, "password": password,
		}}
		_, err := a.Identity(t.Context())
		return err
	}
	repeat(t, "the BMC shows its identity", func() error { return ask(host, port, "admin", password) })
	for _, login := range [][2]string{{"admin", "wrong"}, {"nobody", password}} {
		if err := ask(host, port, login[0], login[1]); !errors.Is(err, ErrRefused) {
			t.Errorf("%v: %v, want a refusal", login, err)
		}
	}
}
