package fenceagent

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestWrapperKeepsEveryOtherWord: ipmitool gets all words that the agent gives, in their order, apart from -P and the one word behind it.
func TestWrapperKeepsEveryOtherWord(t *testing.T) {
	real := filepath.Join(t.TempDir(), "ipmitool")
	if err := os.WriteFile(real, []byte("#!/bin/sh\nprintf '%s\\n' \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	folder, err := (&Agent{ipmitool: real}).privateFolder(password)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	for name, c := range map[string]struct{ given, want []string }{
		"a name that begins with yes":     {[]string{"-U", "yesterday", "-P", placeholder, "chassis"}, []string{"-U", "yesterday", "chassis"}},
		"the word yes":                    {[]string{"yes", "-P", placeholder, "yes"}, []string{"yes", "yes"}},
		"a password that looks like -P":   {[]string{"-P", "-P", "-H", "bmc"}, []string{"-H", "bmc"}},
		"a password that begins with yes": {[]string{"-P", "yes", "-H", "yes.example.org"}, []string{"-H", "yes.example.org"}},
		"words with spaces and patterns":  {[]string{"-U", "a b", "*", "", "-P", placeholder}, []string{"-U", "a b", "*", ""}},
	} {
		out, err := exec.CommandContext(t.Context(), filepath.Join(folder, "ipmitool"), c.given...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		got := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		if want := append([]string{"-f", filepath.Join(folder, "password")}, c.want...); !slices.Equal(got, want) {
			t.Errorf("%s: ipmitool got %q, want %q", name, got, want)
		}
	}
}
