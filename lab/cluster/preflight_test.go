package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/labdisk"
)

func TestPreflightErrorsAreOneSentence(t *testing.T) {
	disk := []string{labdisk.DriverDisk}
	deep := paths{cache: "/" + strings.Repeat("long/", 12), name: "lab"}
	bin := t.TempDir() // has some tools, not all
	for _, tool := range []string{"unshare", "mount", "umount"} {
		if err := os.WriteFile(filepath.Join(bin, tool), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		check func() error
		says  []string
	}{
		"cache folder too deep": {
			func() error { return deep.checkLengths(disk, 3) },
			[]string{"BELAY_CACHE", "107"},
		},
		"no mkfs": {
			func() error { return checkTools(Options{Drivers: disk, NodeKind: NodeKindBelay}) },
			[]string{"mkfs.ext4, blkid, fsck are neither in PATH nor", "apt-get install e2fsprogs"},
		},
		"no containerd": {
			func() error {
				return checkTools(Options{Drivers: []string{labdisk.DriverLocal}, NodeKind: NodeKindKubelet})
			},
			[]string{"containerd, ctr, runc are neither in PATH nor", "apt-get install containerd"},
		},
		"belay's programs not built": {
			func() error { _, err := findSiblings([]string{"belay-controller", "ledger"}); return err },
			[]string{"belay-controller, ledger are not in", "make build"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", bin)
			noAdminFolders(t)
			t.Setenv("BELAY_BIN", bin)
			err := test.check()
			if err == nil {
				t.Fatal("no output")
			}
			for _, words := range test.says {
				if !strings.Contains(err.Error(), words) {
					t.Errorf("said %q, want it to hold %q", err, words)
				}
			}
		})
	}
	if err := (paths{cache: "/root/.cache/belay", name: "lab"}).checkLengths(labdisk.Drivers(), MaxNodes); err != nil {
		t.Errorf("the usual folder is refused: %v", err)
	}
}

func TestLabNeedsRoot(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("runs as root")
	}
	if err := preflight(paths{cache: t.TempDir(), name: "lab"}, Options{}); err == nil || !strings.Contains(err.Error(), "sudo") {
		t.Errorf("got %v", err)
	}
}

func TestInvalidOptionsAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		options Options
		says    string
	}{
		"a name that is a path":  {Options{Name: "../lab"}, `--name is "../lab", but`},
		"too many nodes":         {Options{Nodes: 21, NodeKind: NodeKindBelay}, "at most 20"},
		"an unknown kind":        {Options{NodeKind: "kwok"}, `not "kwok"`},
		"an unknown plane":       {Options{NodeKind: NodeKindBelay, Plane: "none"}, `not "none"`},
		"an unknown driver":      {Options{NodeKind: NodeKindBelay, Drivers: []string{"ebs"}}, `--drivers must be of labdisk.belay.dev, labshare.belay.dev, lablocal.belay.dev, not "ebs"`},
		"a name with upper case": {Options{Name: "Lab", NodeKind: NodeKindBelay}, "lower-case"},
		"a controller that does not run": {
			Options{NodeKind: NodeKindBelay, Plane: PlaneUpstream, ControllerArgs: []string{"--v=4"}}, "have no effect with upstream's plane",
		},
		"an unknown flag of belay's node agent": {
			Options{NodeKind: NodeKindBelay, NodeArgs: []string{"--no-such-flag"}}, "unknown flag: --no-such-flag",
		},
		"no log level of the agents": {
			Options{NodeKind: NodeKindBelay, NodeArgs: []string{"--v=loud"}}, `--node-arg: --v is "loud", but must be a whole number (on belay's nodes`,
		},
		"a log level below zero": {Options{NodeKind: NodeKindBelay, Verbosity: -1}, "--verbosity is -1, but must be a log level: 0 or more"},
		"a word that is no flag": {Options{NodeKind: NodeKindBelay, NodeArgs: []string{"--v", "4", "5"}}, `"5"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.options.Validate()
			if _, invalid := errors.AsType[usage.Error](err); !invalid || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want a usage.Error with %q", err, test.says)
			}
		})
	}
	got, err := Options{NodeKind: NodeKindBelay}.withDefaults()
	got.Progress = nil
	want := Options{Name: "lab", Nodes: 3, NodeKind: "belay", Plane: "belay", Drivers: []string{"labdisk.belay.dev"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("defaults (%v) -want +got: %s", err, diff)
	}
}

// The lab runs under the shipped rules: each must be applied exactly once, and the optional permission to read secrets
// must not be applied.
func TestShippedRulesAreApplied(t *testing.T) {
	objects, err := documents(Options{Drivers: []string{labdisk.DriverDisk}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, object := range objects {
		got[object.GetKind()+"/"+object.GetName()]++
	}
	for id, want := range map[string]int{
		"Namespace/belay-system": 1, "ClusterRole/belay-controller": 1, "ClusterRole/belay-attacher": 1, "ClusterRoleBinding/belay-attacher": 1,
		"ClusterRole/belay-lab:csi-attacher": 1, "CSIDriver/labdisk.belay.dev": 1, "CSIDriver/labshare.belay.dev": 0, "StorageClass/lablocal": 0,
		"ClusterRole/belay-attacher-secrets": 0, "Deployment/belay-controller": 0,
	} {
		if got[id] != want {
			t.Errorf("%s is applied %d times, want %d", id, got[id], want)
		}
	}
}

// Without the period kubelet ignores an attach that failed: a pod waits forever at a node that is full.
func TestAttachableDriversSetAllocatableUpdatePeriod(t *testing.T) {
	objects, err := documents(Options{Drivers: []string{labdisk.DriverDisk, labdisk.DriverShare, labdisk.DriverLocal}})
	if err != nil {
		t.Fatal(err)
	}
	drivers := 0
	for _, object := range objects {
		if object.GetKind() != "CSIDriver" {
			continue
		}
		drivers++
		var driver storagev1.CSIDriver
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &driver); err != nil {
			t.Fatal(err)
		}
		if period := driver.Spec.NodeAllocatableUpdatePeriodSeconds; *driver.Spec.AttachRequired != (period != nil) {
			t.Errorf("%s: attachRequired %v, nodeAllocatableUpdatePeriodSeconds %v", driver.Name, *driver.Spec.AttachRequired, period)
		}
	}
	if drivers != 3 {
		t.Errorf("%d drivers, want 3", drivers)
	}
}
