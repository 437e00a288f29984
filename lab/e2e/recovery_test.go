package e2e

import (
	"os"
	"strconv"
	"testing"
	"time"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
)

// movedWithin bounds a recovery with the profile fast: ten seconds of silence, and the work of a machine of two cores.
const movedWithin = 40 * time.Second

// TestRecovery: a StatefulSet's pod writes again elsewhere after its node lost its power, and after it hung, with nothing but the node's
// BMC as evidence. On both planes. BELAY_RECOVERY_RUNS is how often (1).
func TestRecovery(t *testing.T) {
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: make demo shows a power cut; the rest belongs to the long tests")
	}
	if !cluster.CanFence() {
		t.Skip("NOT RUN: ipmi_sim, ipmitool or fence_ipmilan is missing: run hack/install-packages")
	}
	runs, _ := strconv.Atoi(os.Getenv("BELAY_RECOVERY_RUNS"))
	for _, plane := range []string{cluster.PlaneBelay, cluster.PlaneUpstream} {
		for _, how := range []string{"power cut", "hung"} {
			for range max(runs, 1) {
				t.Run(plane+"/"+how, func(t *testing.T) { recoverOnce(t, plane, how) })
			}
		}
	}
}

func recoverOnce(t *testing.T, plane, how string) {
	t.Helper()
	scene := labtest.Open(t, cluster.Options{
		Name: "e2e-recover", Nodes: 3, NodeKind: cluster.NodeKindBelay, Plane: plane, Drivers: []string{labdisk.DriverDisk}, Recovery: fencing.Fast.Name,
	})
	if _, err := scene.Place(t.Context()); err != nil {
		t.Fatal(err)
	}
	take := scene.PowerCut
	if how == "hung" {
		take = scene.Hang
	}
	began := time.Now()
	move, err := take(t.Context(), how)
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	t.Logf("%s, %s: writing on %s after %.1f s", plane, how, move.To, took.Seconds())
	if took > movedWithin {
		t.Errorf("that is more than %v", movedWithin)
	}
	verified, err := scene.Verify(t.Context())
	if err != nil || verified.Count < verified.Acknowledged {
		t.Errorf("%+v (%v)", verified, err)
	}
	violations, err := scene.Violations(t.Context())
	if err != nil || len(violations) > 0 {
		t.Errorf("writes of a node that had lost the volume: %v (%v)", violations, err)
	}
}
