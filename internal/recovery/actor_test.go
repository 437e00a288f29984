package recovery

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// stage is an actor over the silent node n1 and its fence, on a clock of its own.
type stage struct {
	*actor

	t     *testing.T
	clock time.Time
	said  *events.FakeRecorder
	// write stands for a write of the fence's status.
	write func(store func() error) error
}

func newStage(t *testing.T, phase fencing.Phase) *stage {
	t.Helper()
	s := &stage{t: t, clock: time.Now(), said: events.NewFakeRecorder(100), write: func(store func() error) error { return store() }}
	node, lease, source := nodeOf("n1", 1), leaseOf("n1"), sourceOf("n1", "bmc")
	node.Spec.Taints = []corev1.Taint{{Key: kube.IsolationTaint, Value: taintValue(1), Effect: corev1.TaintEffectNoSchedule}}
	source.Status.Bound = &fencingv1.Bound{NodeUID: "uid-n1", BootID: "boot-n1", MachineID: "hw-n1", HardwareID: "hw-n1", Generation: 1}
	fence := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "fence-1", Finalizers: []string{finalizer}}}
	fence.Spec = fencingv1.NodeFenceSpec{NodeName: "n1", NodeUID: "uid-n1", BootID: "boot-n1", MachineID: "hw-n1", Epoch: 1}
	fence.Status.Phase = fencingv1.Phase(phase)
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(node, lease, source, fence).
		WithStatusSubresource(&corev1.Node{}, &fencingv1.NodeFence{}).WithIndex(&storagev1.VolumeAttachment{}, byNode, nodeOfAttachment).WithIndex(&fencingv1.NodeFence{}, byNode, nodeOfFence).
		WithIndex(&corev1.Pod{}, byNode, func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, o ...client.SubResourcePatchOption) error {
				return s.write(func() error { return c.SubResource(sub).Patch(ctx, object, patch, o...) })
			},
		}).Build()
	p := &parts{client: c, live: c, events: s.said, now: func() time.Time { return s.clock }, identity: "test", Options: Options{Profile: quick}}
	p.ear = &listener{parts: p}
	s.actor = &actor{parts: p, known: map[types.UID]*memory{}}
	must(t, c.Get(t.Context(), client.ObjectKeyFromObject(lease), lease))
	p.ear.silences.Renewed(s.clock.Add(-time.Hour), "n1", renewal(lease), time.Second)
	fence = s.fence()
	fence.Spec.LastRenewal = renewal(lease)
	must(t, c.Update(t.Context(), fence))
	return s
}

func (s *stage) fence() *fencingv1.NodeFence {
	s.t.Helper()
	f := &fencingv1.NodeFence{}
	must(s.t, s.live.Get(s.t.Context(), client.ObjectKey{Name: "n1"}, f))
	return f
}

// changeNode changes the Node with its status.
func (s *stage) changeNode(change func(*corev1.Node)) {
	s.t.Helper()
	node := &corev1.Node{}
	must(s.t, s.live.Get(s.t.Context(), client.ObjectKey{Name: "n1"}, node))
	change(node)
	status := node.DeepCopy()
	must(s.t, s.client.Update(s.t.Context(), node))
	status.ResourceVersion = node.ResourceVersion
	must(s.t, s.client.Status().Update(s.t.Context(), status))
}

// renews: the machine renews its lease.
func (s *stage) renews() {
	s.t.Helper()
	lease := leaseOf("n1")
	must(s.t, s.live.Get(s.t.Context(), client.ObjectKeyFromObject(lease), lease))
	now := metav1.NewMicroTime(s.clock)
	lease.Spec.RenewTime = &now
	must(s.t, s.client.Update(s.t.Context(), lease))
}

// answers: the fencer stores what the switch says to the question.
func (s *stage) answers(power string) {
	s.t.Helper()
	f := s.fence()
	f.Status.Evidence = append(f.Status.Evidence, fencingv1.Evidence{
		Nonce: f.Status.Question.Nonce, Power: power, BootID: "boot-n1", MachineID: "hw-n1", Time: micro(s.clock),
	})
	must(s.t, s.client.Status().Update(s.t.Context(), f))
}

// turns: the actor decides until it waits for more than a moment.
func (s *stage) turns() time.Duration {
	s.t.Helper()
	for range 5 {
		r, err := s.Reconcile(s.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "n1"}})
		if err == nil && r != again {
			return r.RequeueAfter
		}
	}
	s.t.Fatal("it never waits")
	return 0
}

func (s *stage) contradicted() bool {
	s.t.Helper()
	return meta.IsStatusConditionTrue(s.fence().Status.Conditions, conditionContradicted)
}

// TestRefusedQuestionIsNotAwaited: a question or a command whose write fails is stored by the next turn, in the same moment. One that was stored,
// although its answer was lost, is not stored again.
func TestRefusedQuestionIsNotAwaited(t *testing.T) {
	lost := errors.New("connection reset by peer")
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "nodefences"}, "n1", errors.New("another writer"))
	for name, fails := range map[string]func(store func() error) error{
		"conflict":              func(func() error) error { return conflict },
		"no answer":             func(func() error) error { return lost },
		"no answer, but stored": func(store func() error) error { return errors.Join(store(), lost) },
	} {
		s := newStage(t, fencing.Fencing)
		var stored []int // writes that reached the API server
		once := func() {
			failed, n := false, len(stored)
			stored = append(stored, 0)
			s.write = func(store func() error) error {
				counted := func() error { stored[n]++; return store() }
				if !failed {
					failed = true
					return fails(counted)
				}
				return counted()
			}
		}
		once()
		s.turns()
		if s.fence().Status.Question == nil || stored[0] != 1 {
			t.Fatalf("%s: %d questions are stored, and the last is %+v", name, stored[0], s.fence().Status.Question)
		}
		s.answers(powerOn)
		once()
		s.turns()
		if n := len(s.fence().Status.Intents); n != 1 {
			t.Errorf("%s: %d commands are stored", name, n)
		}
	}
}

// TestContradictionOfTheNextBoot: the kubelet of the next boot renews its lease before its Node shows the new boot. That is no contradiction
// until it lasts.
func TestContradictionOfTheNextBoot(t *testing.T) {
	for name, shows := range map[string]time.Duration{"at once": 0, "in some seconds": 5 * time.Second, "never": -1} {
		s := newStage(t, fencing.Moved)
		s.changeNode(func(n *corev1.Node) { setReady(n, corev1.ConditionUnknown) })
		s.turns()
		s.clock = s.clock.Add(time.Minute)
		s.renews()
		after := s.turns()
		if s.contradicted() || len(s.said.Events) > 0 {
			t.Errorf("%s: reported at the first renewal", name)
		}
		if phase := s.fence().Status.Phase; phase != fencingv1.Phase(fencing.Moved) {
			t.Errorf("%s: %s", name, phase)
		}
		if shows < 0 {
			s.clock = s.clock.Add(after) // no event wakes it
			for range 3 {
				s.turns()
			}
			if after > time.Minute || !s.contradicted() || len(s.said.Events) != 1 {
				t.Errorf("%s: %v later, Contradicted is %t, %d events", name, after, s.contradicted(), len(s.said.Events))
			}
			continue
		}
		s.clock = s.clock.Add(shows)
		s.changeNode(func(n *corev1.Node) {
			n.Status.NodeInfo.BootID = "boot-2"
			setReady(n, corev1.ConditionTrue)
		})
		s.turns()
		close(s.said.Events)
		for e := range s.said.Events {
			if strings.Contains(e, string(fencing.Contradicted)) {
				t.Errorf("%s: %s", name, e)
			}
		}
		if phase := s.fence().Status.Phase; phase != fencingv1.Phase(fencing.Releasing) {
			t.Errorf("%s: %s after the next boot was shown", name, phase)
		}
	}
}

// TestFlappingNodeStaysIsolated (hole 5): a machine was commanded, its switch is silent, and its node renews its lease for a moment every few minutes. It gets pods once it
// has lived on for five minutes, not five minutes after its first sign of life: a late Off of the switch would crash what runs there.
func TestFlappingNodeStaysIsolated(t *testing.T) {
	s := newStage(t, fencing.Fencing)
	f := s.fence()
	f.Status.Intents = []fencingv1.Intent{{Action: powerOff, Nonce: "n", NotAfter: micro(s.clock.Add(fencing.IntentFor)), Renewal: f.Spec.LastRenewal}}
	must(t, s.client.Status().Update(t.Context(), f))
	s.changeNode(func(n *corev1.Node) { setReady(n, corev1.ConditionTrue) })
	lives := func(of time.Duration) {
		t.Helper()
		for end := s.clock.Add(of); s.clock.Before(end); s.clock = s.clock.Add(500 * time.Millisecond) {
			s.renews()
			s.ear.silences.Tick(s.clock)
			s.turns()
		}
	}
	silent := func(of time.Duration) {
		t.Helper()
		for end := s.clock.Add(of); s.clock.Before(end); s.clock = s.clock.Add(500 * time.Millisecond) {
			s.ear.silences.Tick(s.clock)
		}
	}
	phase := func() fencing.Phase { return fencing.Phase(s.fence().Status.Phase) }
	for i := range 4 {
		lives(2 * time.Second)
		if phase() != fencing.Fencing {
			t.Fatalf("flap %d: %s, and it has lived for two seconds", i+1, phase())
		}
		silent(3 * time.Minute)
	}
	lives(fencing.EnduresFor - 5*time.Second)
	if phase() != fencing.Fencing {
		t.Errorf("%s before it has lived for %v", phase(), fencing.EnduresFor)
	}
	lives(10 * time.Second)
	if phase() != fencing.Cancelled {
		t.Errorf("%s after it has lived for %v", phase(), fencing.EnduresFor)
	}
}

// TestCancelledAfterACommand: the event of a fence that ends after its command says that the machine may be off.
func TestCancelledAfterACommand(t *testing.T) {
	for _, commanded := range []bool{false, true} {
		s := newStage(t, fencing.Fencing)
		if commanded {
			f := s.fence()
			f.Status.Intents = []fencingv1.Intent{{Action: powerOff, Nonce: "n", NotAfter: micro(s.clock.Add(-time.Second))}}
			must(t, s.client.Status().Update(t.Context(), f))
			must(t, s.client.Delete(t.Context(), f))
		}
		s.changeNode(func(n *corev1.Node) { n.Annotations = map[string]string{kube.FenceOptOutAnnotation: "true"} })
		s.turns()
		close(s.said.Events)
		var said string
		for e := range s.said.Events {
			if strings.Contains(e, string(fencing.Cancelled)) {
				said = e
			}
		}
		if said == "" || strings.Contains(said, "the machine may be off") != commanded {
			t.Errorf("commanded: %t: %q", commanded, said)
		}
	}
}

// TestTaintIsRecorded: the condition Tainted says what the Node has, also if the process that set or removed the taint ended before it wrote that.
func TestTaintIsRecorded(t *testing.T) {
	s := newStage(t, fencing.Moved)
	tainted := func() metav1.ConditionStatus {
		t.Helper()
		s.turns()
		c := meta.FindStatusCondition(s.fence().Status.Conditions, conditionTainted)
		if c == nil {
			return ""
		}
		return c.Status
	}
	if got := tainted(); got != "" {
		t.Errorf("no taint yet: %s", got)
	}
	s.changeNode(func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: kube.OutOfServiceTaint, Value: taintValue(1), Effect: corev1.TaintEffectNoExecute})
	})
	if got := tainted(); got != metav1.ConditionTrue {
		t.Errorf("the Node has the taint: %q", got)
	}
	s.changeNode(func(n *corev1.Node) { n.Spec.Taints = nil })
	if got := tainted(); got != metav1.ConditionFalse {
		t.Errorf("the Node has lost the taint: %q", got)
	}
}

// TestLogsOnlyWhatItDid: a write that found nothing, or another version, did nothing.
func TestLogsOnlyWhatItDid(t *testing.T) {
	steps := []fencing.Step{
		fencing.DeletePod{Pod: fencing.Pod{Namespace: "default", Name: "p"}}, fencing.DeleteAttachment{Attachment: fencing.Attachment{Name: "va"}},
		fencing.Unfence{Attachment: fencing.Attachment{Name: "va"}},
	}
	gr := schema.GroupResource{Resource: "x"}
	for name, c := range map[string]struct {
		answer error
		want   int
	}{
		"done": {nil, 3}, "gone": {apierrors.NewNotFound(gr, "x"), 0}, "another version": {apierrors.NewConflict(gr, "x", errors.New("changed")), 0},
	} {
		s := newStage(t, fencing.Evicting)
		s.client = interceptor.NewClient(s.client.(client.WithWatch), interceptor.Funcs{
			Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return c.answer },
			Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				return c.answer
			},
		})
		var lines []string
		logger := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
		turn := &turn{actor: s.actor, fence: s.fence(), mem: &memory{}}
		for _, step := range steps {
			must(t, turn.act(log.IntoContext(t.Context(), logger), step))
		}
		if len(lines) != c.want {
			t.Errorf("%s: %q", name, slices.Sorted(slices.Values(lines)))
		}
	}
}

// TestCancelledSaysWhy: the event of a fence that is cancelled, and its record, name the one cause: a person who has withdrawn a fence reads something else than one
// whose node is back.
func TestCancelledSaysWhy(t *testing.T) {
	for want, change := range map[string]func(*stage){
		"the NodeFence was deleted, as kubectl belay unfence does": func(s *stage) { must(t, s.client.Delete(t.Context(), s.fence())) },
		"the node is opted out": func(s *stage) {
			s.changeNode(func(n *corev1.Node) { metav1.SetMetaDataAnnotation(&n.ObjectMeta, kube.FenceOptOutAnnotation, "true") })
		},
		"the node showed a sign of life": func(s *stage) {
			lease := leaseOf("n1")
			must(t, s.client.Get(t.Context(), client.ObjectKeyFromObject(lease), lease))
			now := metav1.NewMicroTime(s.clock.Add(time.Second))
			lease.Spec.RenewTime = &now
			must(t, s.client.Update(t.Context(), lease))
		},
		"its machine has started again": func(s *stage) { s.changeNode(func(n *corev1.Node) { n.Status.NodeInfo.BootID = "next" }) },
	} {
		s := newStage(t, fencing.Fencing)
		change(s)
		record := ""
		s.write = func(store func() error) error {
			err := store()
			f := &fencingv1.NodeFence{}
			if s.live.Get(t.Context(), client.ObjectKey{Name: "n1"}, f) == nil {
				if c := meta.FindStatusCondition(f.Status.Conditions, kube.ConditionEnded); c != nil {
					record = c.Message
				}
			}
			return err
		}
		s.turns()
		if record != "the fence is over: "+want {
			t.Errorf("%s: the record says %q", want, record)
		}
		said := ""
		for len(s.said.Events) > 0 {
			said += <-s.said.Events + "\n"
		}
		if !strings.Contains(said, "The fence is cancelled: "+want+"; no pod") {
			t.Errorf("%s: the events say %q", want, said)
		}
	}
}
