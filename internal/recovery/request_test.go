package recovery

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/wait"
)

// asks has a person ask for the power-off of the machine, as kubectl belay does.
func (m *machine) asks(reason string) *fencingv1.NodeFence {
	m.Helper()
	lease := &coordinationv1.Lease{}
	must(m, m.client.Get(m.Context(), client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: m.name}, lease))
	boot := bootOf(m.node())
	f := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: m.name, Finalizers: []string{finalizer}}, Spec: fencingv1.NodeFenceSpec{
		NodeName: m.name, NodeUID: boot.NodeUID, BootID: boot.ID, MachineID: boot.Machine, Epoch: time.Now().Unix(), Trigger: fencingv1.TriggerRequested,
		LastRenewal: kube.Renewal(lease), Release: fencingv1.ReleaseAuto, Request: &fencingv1.Request{By: "admin", Reason: reason},
	}}
	must(m, m.client.Create(m.Context(), f))
	return f
}

// says reports whether an event about the machine's node has the words.
func (m *machine) says(reason, words string) bool {
	m.Helper()
	events := &corev1.EventList{}
	must(m, m.client.List(m.Context(), events))
	return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
		return e.Reason == reason && e.InvolvedObject.Name == m.name && strings.Contains(e.Message, words)
	})
}

// TestRequestedPowerOff: a person has the machine of a silent node switched off at once that recovery leaves alone by itself: one that refuses connections and
// gets a chance without an end, and one that was drained. The evidence is as always: the volumes go after the switch has said Off.
func TestRequestedPowerOff(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4", "n5", "n6")
	refuses, drained := s.machine("n1"), s.machine("n7")
	for _, m := range []*machine{refuses, drained} {
		m.source()
	}
	refuses.workload()
	must(t, s.client.Delete(t.Context(), fixture.Pod("default", "n7-keeps", "", ""), client.GracePeriodSeconds(0)))
	s.run(func(o *Options) { o.Profile.Chance = 0 })
	refuses.bound()
	drained.bound()
	refuses.port, drained.port = 1, 1 // nothing listens there
	for m, held := range map[*machine]string{refuses: "SignOfLife", drained: "NothingToLose"} {
		m.dies(fencing.PowerOn)
		wait.Until(t, "recovery leaves "+m.name+" alone", func() bool { return m.says(held, "is not fenced") })
		if _, offs := m.count(); offs != 0 || m.fence() != nil {
			t.Fatalf("%s: commanded %d times before a person asked", m.name, offs)
		}
		asked := time.Now()
		m.asks("kubelet is dead")
		f := m.until(fencing.Moved)
		t.Logf("%s: moved %v after a person asked", m.name, time.Since(asked))
		if _, offs := m.count(); offs != 1 || !m.moved() || provenBy(f) != fencing.PoweredOff {
			t.Errorf("%s: commanded %d times, moved %t, proven by %s", m.name, offs, m.moved(), provenBy(f))
		}
		for reason, words := range map[string]string{"Isolating": "admin asked for the power-off of the machine (kubelet is dead)", "Moved": "The power-off that admin asked for is done"} {
			wait.Until(t, "an event says that "+words, func() bool { return m.says(reason, words) })
		}
		m.boots() // so that the next one is not the second that is silent
		m.until(fencing.Releasing)
	}
}

// TestRequestOfALivingNode (S8): a request for a node that renews its lease ends, and says so. Nothing is switched off, although the request has the
// lease's last text. So does one that a person withdraws.
func TestRequestOfALivingNode(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	m.source()
	s.run()
	m.bound()
	m.asks("a mistake")
	f := m.until(fencing.Cancelled)
	wait.Until(t, "an event says that the request has ended", func() bool { return m.says("Cancelled", "The request of admin for a power-off has ended") })
	wait.Until(t, "the isolation is removed", func() bool { return !m.tainted(kube.IsolationTaint) && finished(m.fence()) })

	m.mu.Lock()
	m.failing = net.ErrClosed // its power switch does not answer
	m.silent = true
	m.mu.Unlock()
	m.shortens()
	must(t, s.client.Delete(t.Context(), f))
	asked := m.asks("a mistake too")
	m.waits("did not give the power state")
	must(t, s.client.Delete(t.Context(), m.fence()))
	wait.Until(t, "the request is withdrawn", func() bool { f := m.fence(); return f == nil || f.UID != asked.UID })
	if _, offs := m.count(); offs != 0 || m.moved() {
		t.Errorf("commanded %d times, moved %t", offs, m.moved())
	}
}
