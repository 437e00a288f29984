package cluster

import (
	"os"
	"testing"
)

// TestMissingPartsLookWhereComponentsLook: Debian has runc in /usr/sbin, which is not in the PATH of a root of `su`. The lab's components find it
// (componentEnvironment), and hack/install-packages finds it and installs nothing; the demo must not say that it is missing.
func TestMissingPartsLookWhereComponentsLook(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/runc"); err != nil {
		t.Skip("runc is not in /usr/sbin")
	}
	bin := t.TempDir()
	for name, at := range map[string]string{"containerd": "/usr/bin/containerd"} {
		if err := os.Symlink(at, bin+"/"+name); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	for _, m := range MissingParts() {
		if m.Part == PartKubelets {
			t.Errorf("missing: %v, which is in /usr/sbin", m.Programs)
		}
	}
}
