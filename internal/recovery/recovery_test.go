package recovery

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/wait"
)

// TestPowerCut: a machine without power is proven to be off, its pod and VolumeAttachment go, and the node is released once it has started
// again.
func TestPowerCut(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	m.source()
	s.run()
	m.bound()
	m.dies(fencing.PowerOff)
	died := time.Now()
	f := m.until(fencing.Moved)
	t.Logf("moved %v after the power was cut", time.Since(died))
	if !m.moved() {
		t.Fatal("the pod or the VolumeAttachment is left")
	}
	if _, offs := m.count(); offs != 0 {
		t.Errorf("a machine that was off was commanded %d times", offs)
	}
	if f.Spec.Epoch != 1 || !m.tainted(kube.OutOfServiceTaint) || !m.tainted(kube.IsolationTaint) {
		t.Errorf("epoch %d, taints %v", f.Spec.Epoch, m.node().Spec.Taints)
	}
	m.boots()
	m.until(fencing.Releasing)
	wait.Until(t, "the out-of-service taint is gone", func() bool { return !m.tainted(kube.OutOfServiceTaint) })
	if !m.tainted(kube.IsolationTaint) {
		t.Error("pods were admitted at once")
	}
}

// TestHungMachine: a machine that is on and silent is switched off before anything is taken from it.
func TestHungMachine(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	m.source()
	s.run()
	m.bound()
	m.dies(fencing.PowerOn)
	m.until(fencing.Moved)
	if _, offs := m.count(); offs != 1 || !m.moved() {
		t.Errorf("commanded %d times, moved %t", offs, m.moved())
	}
}

// TestPartition: without evidence nothing is deleted, for as long as it lasts, and a node that comes back is left alone.
func TestPartition(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	s.run()
	m.dies(fencing.PowerOn)
	f := m.waits("no power switch is known")
	if f.Status.Advice == "" || m.tainted(kube.OutOfServiceTaint) || !m.tainted(kube.IsolationTaint) {
		t.Errorf("advice %q, taints %v", f.Status.Advice, m.node().Spec.Taints)
	}
	m.mu.Lock()
	m.silent = false
	m.mu.Unlock()
	m.report(corev1.ConditionTrue)
	m.until(fencing.Cancelled)
	wait.Until(t, "the isolation is removed", func() bool { return !m.tainted(kube.IsolationTaint) })
	if m.moved() {
		t.Error("the workload is gone")
	}
}

// TestBracketAtTheAPI (hole 1): power that comes back while the taint is being set keeps every pod, and the taint goes again.
func TestBracketAtTheAPI(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	m.source()
	s.run()
	m.bound()
	m.afterAnswer = 1 // the first Off is followed by On
	m.dies(fencing.PowerOff)
	wait.Until(t, "the switch was asked often", func() bool { asked, _ := m.count(); return asked > 4 })
	m.until(fencing.Moved)
	for _, e := range m.fence().Status.Evidence {
		if e.Power == powerOn {
			return
		}
	}
	t.Error("the switch never said On")
}

// TestRestoredRecord (hole 4): a record that says Evicting with evidence, and a machine that runs: nothing is tainted or deleted.
func TestRestoredRecord(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	m.source()
	f := &fencingv1.NodeFence{
		ObjectMeta: metav1.ObjectMeta{Name: m.name, Finalizers: []string{finalizer}},
		Spec: fencingv1.NodeFenceSpec{
			NodeName: m.name, NodeUID: string(m.node().UID), BootID: m.boot, MachineID: strings.ToLower(m.uuid), Epoch: 7, Release: fencingv1.ReleaseAuto,
		},
	}
	must(t, s.client.Create(t.Context(), f))
	for _, phase := range []fencing.Phase{fencing.Suspected, fencing.Isolating, fencing.Fencing, fencing.Tainting, fencing.Evicting} {
		f.Status.Phase = fencingv1.Phase(phase)
		if phase == fencing.Tainting {
			f.Status.Evidence = []fencingv1.Evidence{{Class: string(fencing.PoweredOff), Power: powerOff, BootID: m.boot, Nonce: "old", Time: metav1.NowMicro()}}
			setCondition(&f.Status, conditionProven, metav1.ConditionTrue, string(fencing.PoweredOff), "then")
		}
		must(t, s.client.Status().Update(t.Context(), f))
	}
	s.run()
	m.waits("renews its lease")
	if m.tainted(kube.OutOfServiceTaint) || m.moved() {
		t.Error("stored evidence authorized something")
	}
}

// TestDeletedNodeAtTheAPI (hole 12): the fence outlives the Node, and its VolumeAttachments are deleted.
func TestDeletedNodeAtTheAPI(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	m.source()
	s.run()
	m.bound()
	m.disobeys = true
	m.dies(fencing.PowerOn)
	m.waits("to say Off")
	must(t, s.client.Delete(t.Context(), m.node()))
	m.mu.Lock()
	m.disobeys = false
	m.mu.Unlock()
	m.until(fencing.Moved)
	if !m.moved() {
		t.Error("something is left")
	}
}

// TestBrake: when most nodes fall silent, none is fenced.
func TestBrake(t *testing.T) {
	s := newSite(t)
	var all []*machine
	for _, name := range []string{"n1", "n2", "n3", "n4", "n5"} {
		m := s.machine(name)
		m.source()
		all = append(all, m)
	}
	s.run()
	for _, m := range all {
		m.bound()
	}
	for _, m := range all[:3] {
		m.dies(fencing.PowerOff)
	}
	wait.Until(t, "an event says why", func() bool {
		return s.event(string(fencing.TooManySilent))
	})
	for _, m := range all {
		if m.fence() != nil || m.tainted(kube.IsolationTaint) || m.tainted(corev1.TaintNodeOutOfService) {
			t.Errorf("%s is fenced", m.name)
		}
	}
}

// TestOptOut: the annotation keeps a node from being fenced.
func TestOptOut(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	node := m.node()
	node.Annotations = map[string]string{kube.FenceOptOutAnnotation: ""}
	must(t, s.client.Update(t.Context(), node))
	s.run()
	m.dies(fencing.PowerOff)
	wait.Until(t, "an event says why", func() bool {
		return s.event(string(fencing.NodeOptedOut))
	})
	if m.fence() != nil {
		t.Error("the node is fenced")
	}
}

// TestStopAnywhere: recovery that is stopped in the middle of a fence continues when it starts again, and sends no command twice.
func TestStopAnywhere(t *testing.T) {
	for _, phase := range []fencing.Phase{fencing.Isolating, fencing.Fencing, fencing.Tainting, fencing.Evicting, fencing.Detaching} {
		t.Run(string(phase), func(t *testing.T) {
			s := newSite(t)
			s.fleet("n2", "n3", "n4")
			m := s.machine("n1")
			m.workload()
			m.source()
			stop := s.run()
			m.bound()
			m.dies(fencing.PowerOn)
			wait.Until(t, "the fence is past "+string(phase), func() bool {
				f := m.fence()
				return f != nil && slices.Index(fencing.Phases(), fencing.Phase(f.Status.Phase)) >= slices.Index(fencing.Phases(), phase)
			})
			stop()
			s.run()
			m.until(fencing.Moved)
			if _, offs := m.count(); offs > 1 || !m.moved() {
				t.Errorf("commanded %d times, moved %t", offs, m.moved())
			}
		})
	}
}

// TestSharedSwitch (hole 6): a switch that two nodes are configured with is never used.
func TestSharedSwitch(t *testing.T) {
	s := newSite(t)
	s.fleet("n3", "n4", "n5")
	m, other := s.machine("n1"), s.machine("n2")
	m.source()
	other.source(func(f *fencingv1.FenceSource) { f.Spec.Levels[0].Feeds[0].Options["ip"] = "N1" })
	s.run()
	m.dies(fencing.PowerOn)
	m.waits("no power switch is known")
	if _, offs := m.count(); offs != 0 {
		t.Errorf("commanded %d times", offs)
	}
}

// TestRights: the three parts need the rights that are shipped for them, and were refused none by the tests before.
func TestRights(t *testing.T) {
	TestHungMachine(t)
	for _, name := range []string{"detector", "fencer", "actor"} {
		requests, err := cluster.Requests(apiserver.ServiceAccountName("belay-system", "belay-recovery-"+name))
		must(t, err)
		used := map[string]bool{}
		for _, r := range requests {
			used[r.Right()] = true
			if r.Refused() {
				t.Errorf("%s has no right to %s", name, r.Right())
			}
		}
		t.Logf("%s used %v", name, slices.Sorted(maps.Keys(used)))
	}
}
