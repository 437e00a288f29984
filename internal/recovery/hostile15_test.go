package recovery

import (
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/wait"
)

// The three parts against an API server: a node is cut off together with its BMC, so no command succeeds. A person deletes the Node, and its lease goes
// with it. Then the network heals: the machine never stopped, its pods write, and a kubelet that runs does not register again.
// Expected (ADR 25, docs/recovery/nodes-and-people.md: "A machine is never switched off because its Node was deleted: without a lease, one that runs well could not
// show that it does"): it is not switched off.
func TestHostileHealedMachineWithoutNodeIsNotSwitchedOff(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	m.source()
	s.run()
	m.bound()
	m.mu.Lock()
	m.failing = net.ErrClosed // its BMC is behind the same switch port
	m.mu.Unlock()
	m.dies(fencing.PowerOn)
	m.until(fencing.Fencing)
	wait.Until(t, "the BMC was asked in vain", func() bool { f := m.fence(); return len(f.Status.Evidence) > 0 })
	m.vanishes()
	time.Sleep(2 * time.Second)
	m.mu.Lock()
	m.failing = nil // healed
	before := m.offs
	m.mu.Unlock()
	for end := time.Now().Add(fencing.IntentFor + 15*time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		m.mu.Lock()
		power, offs := m.power, m.offs
		m.mu.Unlock()
		if power == fencing.PowerOff {
			t.Fatalf("%d commands after the Node was deleted: a machine that runs was switched off (phase %s)", offs-before, m.fence().Status.Phase)
		}
	}
}

// A statement must expire within a day after it was written; one for 30 days is no evidence. When it was written is taken from metadata.managedFields,
// whose time is that of the latest write of the same field manager, of whatever field. Any later kubectl patch, of spec.release here, makes the old
// statement young, and it counts, weeks after the person saw the machine.
// Expected: it stays no evidence until a client writes the statement itself again, for example by a time in the statement that the admission
// policy compares with expires, or a CEL rule that refuses a statement that expires too late.
func TestHostileAnotherFieldDoesNotMakeAStatementYoung(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	s.run()
	m.dies(fencing.PowerOn)
	m.waits("no power switch is known")
	s.bind("carol", "belay-fence-confirm")
	s.guarded()
	c, err := client.New(cluster.User(t, "carol"), client.Options{Scheme: scheme})
	must(t, err)
	const kubectl = client.FieldOwner("kubectl-patch")
	patch := func(change func(*fencingv1.NodeFence)) error {
		f := m.fence()
		before := client.MergeFrom(f.DeepCopy())
		change(f)
		return c.Patch(t.Context(), f, before, kubectl)
	}
	// The test does not wait a day: the statement lasts some seconds too long, and would count if it were made that much later.
	var later time.Time
	wait.Until(t, "an event says that the statement counts for too long", func() bool {
		if time.Until(later) < 10*time.Second { // a busy machine takes more than the first seconds
			must(t, patch(func(f *fencingv1.NodeFence) {
				later = time.Now().Add(15 * time.Second)
				expires := metav1.NewTime(later.Add(fencing.StatementFor + time.Minute))
				f.Spec.Statement = &fencingv1.Statement{By: "carol", Reason: "saw it", MachineID: f.Spec.MachineID, Expires: expires}
			}))
		}
		return s.event(reasonStatement)
	})
	wait.Until(t, "the time of the statement is recorded", func() bool { // the event may be about one that was replaced since
		f := m.fence()
		return f.Status.Statement != nil && f.Status.Statement.Expires.Equal(&f.Spec.Statement.Expires)
	})
	made := fenceState(m.fence()).Statement.Made
	time.Sleep(time.Until(later.Add(2 * time.Second)))
	if m.moved() {
		t.Fatal("before")
	}
	must(t, patch(func(f *fencingv1.NodeFence) { f.Spec.Release = fencingv1.ReleaseManual }))
	time.Sleep(5 * time.Second)
	if f := m.fence(); m.moved() || fenceState(f).Statement.Limited(time.Now()) {
		t.Errorf("a statement that was refused counts, because its field manager wrote spec.release: made %v, then %v; %s, moved %t",
			made, fenceState(f).Statement.Made, f.Status.Phase, m.moved())
	}
}

// Volumes of a driver were taken from a node one by one, and then an administrator withdraws the declaration (it was wrong: the very case in which
// the old mount still reaches the volume), or the CSIDriver is deleted while the driver is upgraded. Mounted is made of the drivers that are
// declared now.
// Expected: what was taken before keeps the node isolated until it is unmounted. docs/recovery/nodes-and-people.md: "The declaration is withdrawn: no more volumes are
// taken"; nothing says that the isolation is lifted.
func TestHostileWithdrawnDeclaration(t *testing.T) {
	for name, drivers := range map[string][]client.Object{
		"declared":           {&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: cutting, Annotations: map[string]string{kube.CutsAtUnpublishAnnotation: "true"}}}},
		"withdrawn":          {&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: cutting}}},
		"the driver is away": nil,
	} {
		node := nodeOf("n1", 1)
		node.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(kube.UniqueVolumeName(cutting, "vol-1"))}
		node.Spec.Taints = []corev1.Taint{{Key: kube.IsolationTaint, Value: taintValue(1), Effect: corev1.TaintEffectNoSchedule}}
		lease := leaseOf("n1")
		now := metav1.NowMicro()
		lease.Spec.RenewTime = &now
		fence := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "f", Finalizers: []string{finalizer}}, Spec: fencingv1.NodeFenceSpec{
			NodeName: "n1", NodeUID: "uid-n1", BootID: "boot-n1", MachineID: "hw-n1", Epoch: 1, LastRenewal: "long ago",
		}}
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(drivers, node, lease, fence)...).
			WithStatusSubresource(&corev1.Node{}, &fencingv1.NodeFence{}).
			WithIndex(&storagev1.VolumeAttachment{}, byNode, nodeOfAttachment).WithIndex(&fencingv1.NodeFence{}, byNode, nodeOfFence).Build()
		clock := time.Now()
		p := &parts{client: c, live: c, events: events.NewFakeRecorder(100), now: func() time.Time { return clock }, identity: "test", Options: Options{Profile: quick, Proofs: &Proofs{}}}
		p.ear = &listener{parts: p}
		must(t, c.Get(t.Context(), client.ObjectKey{Name: "n1"}, fence))
		fence.Status.Phase = fencingv1.Phase(fencing.Fencing)
		setCondition(&fence.Status, conditionStorageFenced, metav1.ConditionTrue, "CutsAtUnpublish", "")
		must(t, c.Status().Update(t.Context(), fence))
		turn := &turn{actor: &actor{parts: p}, fence: fence, mem: &memory{asked: map[string]time.Time{}}}
		var d fencing.Decision
		for range 40 { // two minutes in which the kubelet renews its lease
			clock = clock.Add(3 * time.Second)
			renewed := metav1.NewMicroTime(clock)
			must(t, c.Get(t.Context(), client.ObjectKeyFromObject(lease), lease))
			lease.Spec.RenewTime = &renewed
			must(t, c.Update(t.Context(), lease))
			seen, err := turn.observe(t.Context())
			must(t, err)
			d = fencing.Decide(clock, fenceState(fence), seen)
		}
		if len(d.Steps) > 0 || d.Reason != fencing.AwaitingUnmount {
			t.Errorf("%s: %#v, %s, although the node lists the volume that was taken in use", name, d.Steps, d.Reason)
		}
	}
}

// A kubelet whose client certificate has expired, or that an API server refuses, renews no lease and is not Ready, and its machine runs well: it
// answers on its port at each look, twice a second, for a minute. One answer takes longer than 700 ms, as with a busy node, one lost SYN (which is sent
// again after a second), or a busy detector.
// Expected: a sign of life counts for longer than the look in which it was seen (hole 16: at least two and a half missed in a row, for a lease);
// and it is asked for again before Off. Nothing asks after the fence began, although Observed.Renewed says "or the kubelet's port answered".
func TestHostileOneSlowAnswerOfAKubeletIsNoSilence(t *testing.T) {
	var slow atomic.Bool
	var asked atomic.Int32
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if slow.Swap(false) {
			select {
			case <-time.After(2 * time.Second):
			case <-r.Context().Done():
			}
		}
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer kubelet.Close()
	n1 := nodeOf("n1", 0)
	n1.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	n1.Status.VolumesInUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/d^v"} // it has something to lose
	n1.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	n1.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(kubelet.Listener.Addr().(*net.TCPAddr).Port)
	objects := []client.Object{n1, leaseOf("n1")}
	for _, name := range []string{"n2", "n3", "n4"} {
		objects = append(objects, nodeOf(name, 0))
	}
	p := partsOver(nil, objects...)
	p.events, p.Profile, p.Brakes = events.NewFakeRecorder(100), fencing.Default, fencing.DefaultBrakes()
	boot, began := bootOf(n1), time.Now() // it answered a moment ago: also the first look may be too slow
	d := &detector{parts: p, held: map[string]hold{}, answered: map[fencing.Boot]answer{boot: {at: began}}}
	lease := leaseOf("n1")
	must(t, p.client.Get(t.Context(), client.ObjectKeyFromObject(lease), lease))
	p.ear.silences.Renewed(time.Now().Add(-time.Minute), "n1", renewal(lease), 40*time.Second)
	look := func() *fencingv1.NodeFence {
		for _, name := range []string{"n2", "n3", "n4"} {
			p.ear.silences.Renewed(time.Now(), name, time.Now().String(), 40*time.Second)
		}
		must(t, d.look(t.Context()))
		f := &fencingv1.NodeFence{}
		if p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, f) != nil {
			return nil
		}
		return f
	}
	for range 20 {
		if look() != nil {
			t.Fatal("fenced while its kubelet answers")
		}
	}
	if !d.answered[boot].at.After(began) {
		t.Fatalf("asked %d times, and no answer counted", asked.Load())
	}
	slow.Store(true)
	if f := look(); f != nil {
		t.Errorf("a fence begins (its machine is to be switched off) although the kubelet answered %d times, the last one a moment ago", asked.Load()-1)
	}
}

// Two nodes with one outlet (hole 6: Off is never sent). One FenceSource names the port that is the agent's default, the other one does not. An outlet
// gives no identity, so nothing else distinguishes them: both say On while both nodes live, and the Off for one hits the other, which is healthy.
// Expected: an option that has a default does not distinguish them; for what has no identity, the address and the plug are enough.
func TestHostileOneOutletWithAndWithoutItsPort(t *testing.T) {
	for name, change := range map[string]func(*fencingv1.Feed){
		"the same":         func(*fencingv1.Feed) {},
		"the default port": func(f *fencingv1.Feed) { f.Options["ipport"] = "23" },
		"a trailing dot":   func(f *fencingv1.Feed) { f.Options["ip"] = "pdu.example.com." },
		"a space":          func(f *fencingv1.Feed) { f.Options["ip"] = "pdu.example.com " },
	} {
		one, two := sourceOf("n1", "pdu.example.com"), sourceOf("n2", "pdu.example.com")
		for _, s := range []*fencingv1.FenceSource{one, two} {
			s.Spec.Levels[0].Feeds[0].Agent, s.Spec.Levels[0].Feeds[0].Plug = "fence_apc", "7"
		}
		change(&two.Spec.Levels[0].Feeds[0])
		p := partsOver(nil, one, two, nodeOf("n1", 0), nodeOf("n2", 0))
		shared, err := (&fencer{parts: p}).shared(t.Context(), one)
		must(t, err)
		if !shared {
			t.Errorf("%s: outlet 7 of one PDU counts as two switches", name)
		}
	}
}

// A NodeFence that a client deletes while the fencer learns whose the switch is (some seconds of IPMI): the last read before Off looks at the node, at the
// opt-out and at the maintenance, and not at the fence.
// Expected: as TestOptOutBeforeOff.
func TestHostileFenceDeletedBeforeOff(t *testing.T) {
	for _, when := range []string{"after the command was stored", "while the switch is asked whose it is"} {
		f, bmc, source, fence := commanded(t)
		inner := f.client
		fence.Finalizers = []string{finalizer}
		must(t, inner.Update(t.Context(), fence))
		must(t, inner.Get(t.Context(), client.ObjectKey{Name: "n1"}, fence))
		unfence := func() {
			must(t, inner.Delete(t.Context(), &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
		}
		if when == "after the command was stored" {
			unfence()
			must(t, inner.Get(t.Context(), client.ObjectKey{Name: "n1"}, fence))
		} else {
			f.Dial = dialing(map[string]Switch{"bmc": slowly{bmc, unfence}})
		}
		_, _ = f.serve(t.Context(), f.state("n1"), source, fence)
		if _, offs := bmc.count(); offs != 0 {
			t.Errorf("deleted %s: commanded %d times", when, offs)
		}
	}
}

// The sliding window of the brake (hole 17) compares the time of the commands with that of the API server, not with the clock of the detector. One that is
// ten minutes ahead saw nothing in the window: node after node was switched off as they fell silent one by one. docs/recovery/nodes-and-people.md asks for
// clocks that agree of the actor and the fencer alone.
func TestHostileBrakeOnAClockThatIsAhead(t *testing.T) {
	for _, ahead := range []time.Duration{0, fencing.DefaultBrakes().Window + time.Minute} {
		var objects []client.Object
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			source := sourceOf(name, "bmc-of-"+name)
			source.Status.Command = &fencingv1.SentCommand{Nonce: "1", Time: micro(time.Now())}
			objects = append(objects, source, nodeOf(name, 0))
		}
		p := partsOver(nil, append(objects, nodeOf("n1", 0))...)
		p.Profile, p.Brakes = fencing.Default, fencing.DefaultBrakes()
		p.now, p.ServerTime = func() time.Time { return time.Now().Add(ahead) }, time.Now
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			p.ear.silences.Renewed(p.now(), name, "r", 40*time.Second)
		}
		d := &detector{parts: p, held: map[string]hold{}}
		fleet, _, err := d.fleet(t.Context())
		must(t, err)
		n := fencing.Node{Boot: fencing.Boot{Node: "n1", NodeUID: "u", ID: "b", Machine: "m"}, Heard: true, Silent: time.Hour, Limit: time.Minute, Ready: fencing.No, Endpoint: fencing.No, ReadAt: p.now()}
		if s := fencing.Suspect(p.now(), p.Profile, p.Brakes, fleet.Count(), n); s.Suspected {
			t.Errorf("clock %v ahead: a sixth node is fenced within seconds of five others (%d in the window)", ahead, len(fleet.Commanded))
		}
	}
}

// The lease of a dead node is gone: a person deleted it, or the garbage collector, because it was owned by an earlier Node object. This process heard the
// node and knows how long it is silent. The closer look ends without a result when it finds no lease, and NotReadLive, which "the next look ends",
// is not reported either: the node is never fenced, and no event, log or metric says why.
// Expected: no lease under a Node that is not Ready is silence as any other, or a reason that is reported.
func TestHostileDeadNodeWithoutALease(t *testing.T) {
	dark, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = dark.Close() }()
	n1 := nodeOf("n1", 0)
	n1.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	n1.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	n1.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(dark.Addr().(*net.TCPAddr).Port)
	for name, lease := range map[string][]client.Object{"with its lease": {leaseOf("n1")}, "without": nil} {
		p := partsOver(nil, append(lease, n1.DeepCopy(), nodeOf("n2", 0), nodeOf("n3", 0), nodeOf("n4", 0))...)
		recorder := events.NewFakeRecorder(100)
		p.events, p.Brakes = recorder, fencing.DefaultBrakes()
		d := &detector{parts: p, held: map[string]hold{}}
		said := leaseOf("n1")
		if lease != nil {
			must(t, p.client.Get(t.Context(), client.ObjectKeyFromObject(said), said))
		}
		p.ear.silences.Renewed(time.Now().Add(-time.Hour), "n1", renewal(said), 40*time.Second)
		for range 5 {
			for _, other := range []string{"n2", "n3", "n4"} {
				p.ear.silences.Renewed(time.Now(), other, time.Now().String(), 40*time.Second)
			}
			must(t, d.look(t.Context()))
		}
		fenced := p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, &fencingv1.NodeFence{}) == nil
		if !fenced && len(recorder.Events) == 0 {
			t.Errorf("%s: a node that is dead for an hour is not fenced, and nothing says why (%q)", name, d.held["n1"].reason)
		}
	}
}
