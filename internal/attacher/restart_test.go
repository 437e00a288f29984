package attacher

import (
	"context"
	"os/exec"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/process"
	"belay.dev/belay/internal/testing/wait"
)

// The driver's process ends twice with calls in flight, and comes back immediately and after a while. The attacher
// keeps running and keeps its lease, everything is attached, a volume that was recorded as attached is not published
// again, and no call is tried while the driver is away.
func TestDriverRestartsWithCallsInFlight(t *testing.T) {
	w := newWorld(t)
	made := make(chan struct{})
	w.driver.SetAnswer(func(ctx context.Context, _ call, _ int) (map[string]string, error) {
		<-made
		select {
		case <-time.After(100 * time.Millisecond):
			return nil, nil
		case <-ctx.Done(): // the process is gone
			return nil, ctx.Err()
		}
	})
	health := process.FreeAddress()
	s := w.candidate("host-a", w.driver.Address, append(aloofTimes, "--worker-threads=10", "--http-endpoint="+health)...)
	w.untilLeads("host-a")
	attachments := w.fleet(60)
	close(made)
	recorded := map[string]int{} // the calls until the driver went for each volume that was attached then
	for restart, away := range []time.Duration{0, 1500 * time.Millisecond} {
		w.driver.WaitCalls(15 * (restart + 1))
		// Before the driver goes: the attacher does not wait for it for longer than maxAbsence.
		attached := w.list()
		before := callsByVolume(w.driver.Calls())
		for _, va := range attached {
			if volume := *va.Spec.Source.PersistentVolumeName; isAttached(&va) {
				recorded[volume] = before[volume]
			}
		}
		w.driver.Stop()
		if away > 0 {
			wait.Until(t, "the driver is missed", func() bool { return ask(t, health, "/readyz") != "200 ok" })
		}
		<-time.After(away) // longer than the first back-offs
		w.driver.Start()
	}
	w.untilAttached(attachments)
	calls := w.driver.Calls()
	t.Logf("%d calls, %d of them surplus", len(calls), surplus(calls))
	for volume, sent := range callsByVolume(calls) {
		if then, ok := recorded[volume]; ok && sent != then {
			t.Errorf("%s was asked for again although it was recorded as attached", volume)
		}
		// At each loss the call in flight fails, and one that is begun in that moment.
		if failed := s.Logged("Failed to attach volume", `handle="`+volume+`"`); failed > 4 {
			t.Errorf("%d calls for %s failed: the driver was away twice, and they should wait for it", failed, volume)
		}
	}
	if w.driver.Overlaps > 0 {
		t.Errorf("%d calls overlapped", w.driver.Overlaps)
	}
	select {
	case <-s.Exited():
		t.Error("the process ended")
	default:
	}
	if spec := w.lease().Spec; *spec.HolderIdentity != "host-a" || *spec.LeaseTransitions != 0 {
		t.Errorf("lease of %s after %d transitions", *spec.HolderIdentity, *spec.LeaseTransitions)
	}
}

func callsByVolume(calls []call) map[string]int {
	sent := map[string]int{}
	for _, c := range calls {
		sent[c.Volume]++
	}
	return sent
}

// Another driver behind the socket, or one with other capabilities, gets no call: the process exits with status 1,
// releases its lease, and starts again with that driver.
func TestDriverComesBackAsAnother(t *testing.T) {
	for name, change := range map[string]func(*csidriver.Driver){
		"another name": func(d *csidriver.Driver) { d.Name = "other." + d.Name },
		"more capabilities": func(d *csidriver.Driver) {
			d.ControllerServices = append(d.ControllerServices, csispec.ControllerServiceCapability_RPC_LIST_VOLUMES)
		},
		"no attach any more": func(d *csidriver.Driver) { d.ControllerServices = nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.node("node1")
			w.volume("pv1")
			w.volume("pv2")
			s := w.candidate("host-a", w.driver.Address)
			w.until(w.attachment("pv1", "node1"), "attached", isAttached)
			before := w.lease()
			waiting := w.attachment("pv2", "node1", func(*storagev1.VolumeAttachment) { w.driver.Stop() })
			change(w.driver)
			w.driver.Start()
			s.WantExit(1, "a different CSI driver is behind the socket")
			if calls := len(w.driver.Calls()); calls != 1 {
				t.Errorf("%d calls, want the first alone", calls)
			}
			if isAttached(w.get(waiting)) {
				t.Error("attached by another driver")
			}
			lease, err := w.client.CoordinationV1().Leases(shippedNamespace).Get(t.Context(), before.Name, metav1.GetOptions{})
			if err != nil || held(lease) {
				t.Errorf("the lease was not released: %v, %v", lease.Spec, err)
			}
		})
	}
}

// A driver that stays away costs the leader its lease, so that a standby whose driver is running can lead. Without
// leader election there is no standby, and the process keeps waiting.
func TestDriverStaysAway(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT RUN with -short: waits half a minute for a driver")
	}
	w := newWorld(t)
	health := process.FreeAddress()
	// The program as it is shipped: the other tests' children wait for longer.
	leader := w.candidateOf(programPath(t), "host-a", w.driver.Address)
	single := w.launch(exec.Command(programPath(t), w.arguments(w.driver.Address, "--http-endpoint="+health)...))
	w.untilLeads("host-a")
	wait.Until(t, "the other works without a lease", func() bool { return ask(t, health, "/readyz") == "200 ok" })
	left := time.Now()
	w.driver.Stop()
	leader.WantExit(1, "the CSI driver did not reconnect in time")
	if took := time.Since(left); took < maxAbsence {
		t.Errorf("exited after %v, want %v", took, maxAbsence)
	}
	if lease := w.lease(); held(lease) {
		t.Errorf("the lease was not released: %v", lease.Spec)
	}
	select {
	case <-single.Exited():
		t.Error("the one without leader election ended")
	default:
	}
}
