package recovery

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	died := time.Now() // the fence may begin while the Node is still being written
	m.dies(fencing.PowerOff)
	f := m.until(fencing.Moved)
	t.Logf("moved %v after the power was cut", time.Since(died))
	if !m.moved() {
		t.Fatal("the pod or the VolumeAttachment is left")
	}
	if meta.FindStatusCondition(f.Status.Conditions, conditionUpstreamForces) != nil {
		t.Error("UpstreamForces is set where belay's own controller works")
	}
	if _, offs := m.count(); offs != 0 {
		t.Errorf("a machine that was off was commanded %d times", offs)
	}
	if f.Spec.Epoch < died.Unix() || !m.tainted(kube.OutOfServiceTaint) || !m.tainted(kube.IsolationTaint) {
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
	s.run(func(o *Options) { o.BesideUpstream = true })
	m.bound()
	m.mu.Lock()
	m.silent = true // its node still counts as Ready: that its kubelet does not answer is the second signal
	m.mu.Unlock()
	m.shortens()
	evicting := m.past(fencing.Evicting) // hole 18: kube-controller-manager's timer may run from here on
	if c := meta.FindStatusCondition(evicting.Status.Conditions, conditionUpstreamForces); c == nil || evicting.Status.Phase != fencingv1.Phase(fencing.Moved) && c.Status != metav1.ConditionTrue {
		t.Errorf("%s, and UpstreamForces is %+v", evicting.Status.Phase, c)
	}
	f := m.until(fencing.Moved)
	if !meta.IsStatusConditionFalse(f.Status.Conditions, conditionUpstreamForces) {
		t.Errorf("nothing is left to detach, and the conditions are %+v", f.Status.Conditions)
	}
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
	s.declares(cutting, "true")
	m.attaches(cutting, "vol-1", m.boot) // without an attach/detach controller in the process nothing can use that
	s.run()
	m.dies(fencing.PowerOn)
	f := m.waits("no power switch is known")
	if meta.IsStatusConditionTrue(f.Status.Conditions, conditionStorageFenced) {
		t.Errorf("conditions %v", f.Status.Conditions)
	}
	if f.Status.Advice == "" || m.tainted(kube.OutOfServiceTaint) || !m.tainted(kube.IsolationTaint) {
		t.Errorf("advice %q, taints %v", f.Status.Advice, m.node().Spec.Taints)
	}
	m.mu.Lock()
	m.silent = false
	m.mu.Unlock()
	m.report(corev1.ConditionTrue)
	if f := m.until(fencing.Cancelled); !meta.IsStatusConditionTrue(f.Status.Conditions, conditionEnded) {
		t.Errorf("nothing says when the fence ended: %+v", f.Status.Conditions)
	}
	wait.Until(t, "the isolation is removed", func() bool { return !m.tainted(kube.IsolationTaint) })
	if m.moved() {
		t.Error("the workload is gone")
	}
	m.dies(fencing.PowerOn)
	wait.Until(t, "the next fence has a higher epoch", func() bool { next := m.fence(); return next != nil && next.Spec.Epoch > f.Spec.Epoch })
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
	m.mu.Lock()
	m.afterAnswer = 1 // the first Off is followed by On
	m.mu.Unlock()
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

// TestDeletedNodeAtTheAPI (hole 12): the fence outlives the Node, and its VolumeAttachments are deleted once the machine is off. No command is sent for
// that any more.
func TestDeletedNodeAtTheAPI(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	m.source()
	s.run()
	m.bound()
	m.mu.Lock()
	m.disobeys = true
	m.mu.Unlock()
	m.dies(fencing.PowerOn)
	m.waits("to say Off")
	must(t, s.client.Delete(t.Context(), m.node()))
	m.mu.Lock()
	m.power = fencing.PowerOff // a person switches it off
	m.mu.Unlock()
	m.past(fencing.Moved)
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
	stop := s.run()
	for _, m := range all {
		m.bound()
	}
	stop() // until all three are silent: recovery sees all of them at the same time
	for _, m := range all[:3] {
		m.dies(fencing.PowerOff)
	}
	s.run()
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

// TestMachineIsDeleted: a node whose machine Cluster API or OpenShift deletes is not fenced for its silence, as long as the cluster gives it a chance.
func TestMachineIsDeleted(t *testing.T) {
	s := newSite(t)
	cluster.Apply(t, "testdata/machines.yaml")
	s.fleet("n3", "n4", "n5", "n6")
	for name, one := range map[string]struct {
		kind        schema.GroupVersionKind
		annotations map[string]string
	}{
		"n1": {schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "Machine"},
			map[string]string{"cluster.x-k8s.io/machine": "m1", "cluster.x-k8s.io/cluster-namespace": "default"}},
		"n2": {schema.GroupVersionKind{Group: "machine.openshift.io", Version: "v1beta1", Kind: "Machine"}, map[string]string{"machine.openshift.io/machine": "default/m1"}},
	} {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(one.kind)
		object.SetNamespace("default")
		object.SetName("m1")
		object.SetFinalizers([]string{"test/hold"})
		wait.Until(t, "the machine exists", func() bool { return client.IgnoreAlreadyExists(s.client.Create(t.Context(), object.DeepCopy())) == nil })
		must(t, s.client.Delete(t.Context(), object))
		t.Cleanup(func() {
			must(t, client.IgnoreNotFound(s.client.Patch(context.Background(), object, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
		})
		m := s.machine(name)
		node := m.node()
		node.Annotations = one.annotations
		must(t, s.client.Update(t.Context(), node))
		m.source()
	}
	s.run()
	for _, m := range []*machine{s.machines["n1"], s.machines["n2"]} {
		m.bound()
		m.dies(fencing.PowerOn)
	}
	for _, name := range []string{"n1", "n2"} {
		wait.Until(t, "an event says why "+name+" is not fenced", func() bool {
			events := &corev1.EventList{}
			must(t, s.client.List(t.Context(), events))
			return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
				return e.Reason == string(fencing.SignOfLife) && e.InvolvedObject.Name == name
			})
		})
		if s.machines[name].fence() != nil {
			t.Errorf("%s is fenced", name)
		}
	}
}

// TestStopAnywhere: recovery that is stopped in the middle of a fence continues when it starts again, and sends no command twice.
func TestStopAnywhere(t *testing.T) {
	phases := []fencing.Phase{fencing.Isolating, fencing.Fencing, fencing.Tainting, fencing.Evicting, fencing.Detaching}
	if testing.Short() {
		phases = phases[2:3]
	}
	for _, phase := range phases {
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

// TestStatement: the word of a person who may confirm takes the place of a power switch. A user cannot speak for another one, nor
// confirm without the permission.
func TestStatement(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	s.run()
	m.dies(fencing.PowerOn)
	m.waits("no power switch is known")
	counts := time.Hour
	state := func(user, by, machine string, options ...client.PatchOption) error {
		c, err := client.New(cluster.User(t, user), client.Options{Scheme: scheme})
		must(t, err)
		f := m.fence()
		before := client.MergeFrom(f.DeepCopy())
		f.Spec.Statement = &fencingv1.Statement{By: by, Reason: "pulled the plug", MachineID: machine, Expires: metav1.NewTime(time.Now().Add(counts))}
		return c.Patch(t.Context(), f, before, options...)
	}
	s.bind("alice", "belay-fence-confirm")
	s.bind("bob", "belay-recovery-actor") // may write fences, and not confirm
	machine := m.fence().Spec.MachineID
	s.guarded()
	for name, c := range map[string]struct{ user, by, machine, want string }{
		"no permission":   {"bob", "bob", machine, "may not confirm"},
		"for another":     {"alice", "bob", machine, "must be alice"},
		"another machine": {"alice", "alice", "x", "must be the machine"},
	} {
		if err := state(c.user, c.by, c.machine); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	counts = 2 * fencing.StatementFor
	must(t, state("alice", "alice", machine))
	wait.Until(t, "an event says that the statement counts for too long", func() bool { return s.event(reasonStatement) })
	if f := m.fence(); f.Status.Phase != fencingv1.Phase(fencing.Fencing) || m.moved() {
		t.Errorf("%s on a statement for two days", f.Status.Phase)
	}
	counts = fencing.StatementFor
	must(t, state("alice", "alice", machine))
	if f := m.until(fencing.Moved); !m.moved() || lastOf(f.Status.Evidence, 1)[0].Source != "alice" {
		t.Errorf("moved %t, evidence %v", m.moved(), f.Status.Evidence)
	}
}

// checkRights compares the requests of the three parts in all tests with the rights that are shipped for them: none was refused, and none
// is granted that was not used.
func checkRights() error {
	var wrong []string
	requests, err := cluster.Requests(apiserver.ServiceAccountName("belay-system", "belay-controller"))
	if err != nil {
		return err
	}
	for _, r := range requests { // what it is granted and does not use is the matter of internal/attachdetach
		if r.Refused() {
			wrong = append(wrong, "belay-controller was refused to "+r.Right())
		}
	}
	for name, granted := range granted {
		requests, err := cluster.Requests(apiserver.ServiceAccountName("belay-system", "belay-recovery-"+name))
		if err != nil {
			return err
		}
		used := maps.Clone(rare)
		for _, r := range requests {
			if used[r.Right()] = true; r.Refused() {
				wrong = append(wrong, name+" was refused to "+r.Right())
			}
		}
		for right := range granted {
			if !used[right] {
				wrong = append(wrong, name+" never used "+right)
			}
		}
	}
	if slices.Sort(wrong); len(wrong) > 0 {
		return fmt.Errorf("rights: %s", strings.Join(slices.Compact(wrong), "; "))
	}
	return nil
}

// rare are rights that these tests do not use: those for the leader lease and for an event that repeats, and for Secrets, which the test
// of the program in the lab needs.
var rare = map[string]bool{
	"create coordination.k8s.io/leases": true, "update coordination.k8s.io/leases": true, "patch events.k8s.io/events": true,
	"get /secrets": true,
	// Only where lists cannot be streamed, or a watch fails.
	"list /nodes": true, "list storage.k8s.io/volumeattachments": true, "list fencing.belay.dev/fencesources": true, "list fencing.belay.dev/nodefences": true,
}
