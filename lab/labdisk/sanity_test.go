package labdisk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// csi-sanity has a modfile of its own, for it needs a newer CSI spec than the kubelet compiles with. To run this test:
//
//	cd lab && go build -modfile=sanity.mod -o /tmp/csi-sanity github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity
//	sudo BELAY_CSI_SANITY=/tmp/csi-sanity go test -run TestSanity -v ./labdisk
func TestSanity(t *testing.T) {
	program := os.Getenv("BELAY_CSI_SANITY")
	if program == "" {
		t.Skip("SKIPPED: BELAY_CSI_SANITY does not name the csi-sanity program; build it with: " +
			"cd lab && go build -modfile=sanity.mod -o /tmp/csi-sanity github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity")
	}
	needRoot(t)
	for name, want := range map[string]struct{ driver, access string }{
		"disk":      {DriverDisk, "mount"},
		"raw block": {DriverDisk, "block"},
		"share":     {DriverShare, "mount"},
		"local":     {DriverLocal, "mount"},
	} {
		t.Run(name, func(t *testing.T) {
			driver := want.driver
			s := startStorage(t)
			m := s.startNode("n1", "--max-volumes", "3")
			skip := "-ginkgo.skip=^$"
			if name == "disk" && !mayResizeExt4(t) {
				t.Log("NOT RUN: resizing a mounted ext4 takes CAP_SYS_RESOURCE, which this container lacks")
				skip = "-ginkgo.skip=node-expand is called after node-publish"
			}
			cmd := m.run(program, skip,
				"-csi.endpoint="+m.socket(driver), "-csi.controllerendpoint="+filepath.Join(s.dir, "csi", driver+".sock"),
				"-csi.mountdir="+filepath.Join(m.dir, "mount"), "-csi.stagingdir="+filepath.Join(m.dir, "staging"),
				"-csi.testvolumesize=134217728", "-csi.testvolumeaccesstype="+want.access, "-csi.testnodevolumeattachlimit=true", "-ginkgo.no-color")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("csi-sanity: %v\n%s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "Passed") {
					t.Log(strings.TrimSpace(line))
				}
			}
			s.wantNoLoops()
			s.wantNoViolations()
		})
	}
}
