package recovery

import (
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/wait"
)

// slowTurns is the actor over the API server, on a clock of the test, with a switch that always says On.
type slowTurns struct {
	*actor

	m     *machine
	clock time.Time
	asked int
}

// newSlowTurns has the actor's rights and caches, and no controller: the test takes the turns.
func newSlowTurns(m *machine) *slowTurns {
	m.Helper()
	s := &slowTurns{m: m, clock: time.Now()}
	mgr, err := kube.NewManager(cluster.ServiceAccount(m, "belay-system", "belay-recovery-actor", rbac+"actor.yaml"), kube.ManagerConfig{MetricsAddress: "0", HealthAddress: "0"})
	must(m, err)
	p := &parts{client: mgr.GetClient(), live: mgr.GetAPIReader(), events: mgr.GetEventRecorder(Name), now: func() time.Time { return s.clock }, identity: "actor"}
	p.Options = Options{Roles: Roles{Actor: true}, Profile: quick, Brakes: fencing.DefaultBrakes()}
	p.ear = &listener{parts: p}
	must(m, p.index(mgr.GetFieldIndexer()))
	s.actor = &actor{parts: p, known: map[types.UID]*memory{}}
	var running sync.WaitGroup
	running.Go(func() {
		if err := mgr.Start(m.Context()); err != nil {
			m.Errorf("the caches: %v", err)
		}
	})
	m.Cleanup(running.Wait)
	wait.Until(m, "the caches have the power switch", func() bool {
		return p.client.Get(m.Context(), client.ObjectKey{Name: m.name}, &fencingv1.FenceSource{}) == nil && len(p.fenceOf(m.Context(), m.name)) == 1
	})
	return s
}

// minute takes a turn each second, and returns how often the switch was asked or commanded.
func (s *slowTurns) minute() int {
	s.m.Helper()
	before := s.asked
	for range 60 {
		for { // until it waits
			r, err := s.Reconcile(s.m.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: s.m.name}})
			must(s.m, err)
			if !s.says() && r != again {
				break
			}
		}
		s.clock = s.clock.Add(time.Second)
	}
	return s.asked - before
}

// says stores the answer to what was asked or commanded last, and reports whether there was anything.
func (s *slowTurns) says() (asked bool) {
	s.m.Helper()
	f := s.m.fence()
	answered := map[string]bool{}
	for i := range f.Status.Evidence {
		answered[f.Status.Evidence[i].Nonce] = true
	}
	nonces := []string{}
	if q := f.Status.Question; q != nil {
		nonces = append(nonces, q.Nonce)
	}
	for _, i := range f.Status.Intents {
		nonces = append(nonces, i.Nonce)
	}
	before := f.DeepCopy()
	for _, n := range nonces {
		if !answered[n] {
			asked = true
			s.asked++
			f.Status.Evidence = lastOf(append(f.Status.Evidence, fencingv1.Evidence{
				Nonce: n, Power: powerOn, Source: s.m.name, BootID: f.Spec.BootID, MachineID: f.Spec.MachineID, Time: micro(s.clock),
			}), maxEvidence)
		}
	}
	if asked {
		must(s.m, s.m.client.Status().Patch(s.m.Context(), f, client.MergeFrom(before)))
	}
	return asked
}

// TestActorKnowsWhatIsNews: the actor itself finds out since when nothing of a fence has changed, so that one whose machine ignores its command asks seldom after an
// hour (fencing.NoNewsFor), and often again once something has.
func TestActorKnowsWhatIsNews(t *testing.T) {
	site := newSite(t)
	m := site.machine("n1")
	m.source()
	m.dies(fencing.PowerOn)
	node := m.node()
	source := &fencingv1.FenceSource{}
	must(t, m.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, source))
	boot := bootOf(node)
	source.Status.Bound = &fencingv1.Bound{
		NodeUID: boot.NodeUID, BootID: boot.ID, MachineID: boot.Machine, HardwareID: boot.Machine, Generation: source.Generation, Time: micro(time.Now()),
	}
	meta.SetStatusCondition(&source.Status.Conditions, metav1.Condition{Type: conditionFenceReady, Status: metav1.ConditionTrue, Reason: reasonReady})
	must(t, m.client.Status().Update(t.Context(), source))
	lease := leaseOf("n1")
	must(t, m.client.Get(t.Context(), client.ObjectKeyFromObject(lease), lease))
	must(t, m.client.Create(t.Context(), &fencingv1.NodeFence{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Finalizers: []string{finalizer}},
		Spec: fencingv1.NodeFenceSpec{
			NodeName: "n1", NodeUID: boot.NodeUID, BootID: boot.ID, MachineID: boot.Machine, Epoch: 1, Trigger: fencingv1.TriggerNodeSilent,
			LastRenewal: kube.Renewal(lease), Release: fencingv1.ReleaseAuto,
		},
	}))
	s := newSlowTurns(m)
	s.ear.silences.Renewed(s.clock.Add(-time.Hour), "n1", kube.Renewal(lease), time.Second)
	if n := s.minute(); n < 50 {
		t.Fatalf("in its first minute the fence asked %d times; it is %+v", n, m.fence().Status)
	}
	s.clock = s.clock.Add(fencing.NoNewsFor)
	most := int(time.Minute/fencing.AskDeletedEvery) + 2 // the first after an hour, and a command
	if n := s.minute(); n > most || n < 4 {
		t.Errorf("after an hour without news the fence asked %d times in a minute, want at most %d", n, most)
	}
	m.report(corev1.ConditionTrue)
	if n := s.minute(); n < 50 {
		t.Errorf("something has changed, and the fence asked %d times in a minute", n)
	}
}
