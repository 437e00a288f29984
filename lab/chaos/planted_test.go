package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"belay.dev/belay/lab/callcheck"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
)

// TestRecordShowsPlantedFault: an attacher that takes an unpublish that failed for done (the planted fault s5) moves the volume all the
// same, with all records in place, if the driver does not refuse the second publish. Only the record of the calls shows it.
func TestRecordShowsPlantedFault(t *testing.T) {
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: builds an attacher with a fault")
	}
	t.Setenv("BELAY_BIN", binWithFault(t, "belay-attacher", "s5"))
	r := newRun(t, true)
	fabric := r.scene.Cluster.Fabric()
	fault := labdisk.Fault{Method: "ControllerUnpublishVolume", Effect: labdisk.EffectError, Code: codes.Internal.String(), Count: 1}
	if _, err := fabric.SetFault(t.Context(), fault); err != nil {
		t.Fatal(err)
	}
	if _, err := r.scene.DeleteAndCordon(t.Context(), "an unpublish fails"); err != nil {
		t.Fatal(err)
	}
	found, err := r.scene.Verify(t.Context())
	if err != nil {
		t.Errorf("the data shows the fault: %v", err)
	}
	calls, err := fabric.Calls(t.Context(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	wrong := callcheck.Check(calls)
	if len(wrong) != 1 || !strings.Contains(wrong[0], "ControllerPublishVolume") {
		t.Errorf("the record of %d calls shows %q, want a publish that was not permitted", len(calls), wrong)
	}
	t.Logf("%d records in place; %s", found.Count, wrong)
}

// binWithFault is a folder with belay's programs, of which one has a planted fault.
func binWithFault(t *testing.T, program, fault string) string {
	t.Helper()
	dir, bin := t.TempDir(), os.Getenv("BELAY_BIN")
	programs, err := os.ReadDir(bin)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		if p.Name() == program {
			continue
		}
		if err := os.Symlink(filepath.Join(bin, p.Name()), filepath.Join(dir, p.Name())); err != nil {
			t.Fatal(err)
		}
	}
	faulty := filepath.Join(dir, program+"-with-faults")
	build := exec.CommandContext(t.Context(), "go", "build", "-tags", "belay_faults", "-o", faulty, "./cmd/"+program)
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build with the faults: %v\n%s", err, out)
	}
	script := fmt.Sprintf("#!/bin/sh\nBELAY_FAULT=%s exec %s \"$@\"\n", fault, faulty)
	if err := os.WriteFile(filepath.Join(dir, program), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}
