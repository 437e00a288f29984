package recovery

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/wait"
)

// commanded is a fencer over a fence with a command that is to be sent now.
func commanded(t *testing.T) (*fencer, *machine, *fencingv1.FenceSource, *fencingv1.NodeFence) {
	t.Helper()
	bmc := &machine{uuid: "hw-n1", power: fencing.PowerOn}
	source := sourceOf("n1", "bmc")
	source.Status.Bound = &fencingv1.Bound{NodeUID: "uid-n1", BootID: "boot-n1", MachineID: "hw-n1", HardwareID: "hw-n1", Generation: 1}
	fence := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: fencingv1.NodeFenceSpec{NodeName: "n1", NodeUID: "uid-n1", BootID: "boot-n1", MachineID: "hw-n1"}}
	lease := leaseOf("n1")
	p := partsOver(dialing(map[string]Switch{"bmc": bmc}), nodeOf("n1", 0), nodeOf("n9", 0), source, fence, lease)
	clock := time.Now() // stands still: on a busy machine the Node is read again if the first reading is too old
	p.now = func() time.Time { return clock }
	must(t, p.client.Get(t.Context(), client.ObjectKeyFromObject(lease), lease))
	p.hears(lease)
	must(t, p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, fence))
	fence.Status.Phase = fencingv1.Phase(fencing.Fencing)
	fence.Status.Intents = []fencingv1.Intent{{Action: powerOff, Nonce: "n", NotAfter: micro(clock.Add(fencing.IntentFor)), Renewal: renewal(lease)}}
	must(t, p.client.Status().Update(t.Context(), fence))
	must(t, p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, source))
	return newFencer(p), bmc, source, fence
}

// slowly is a switch that shows whose it is after something has happened.
type slowly struct {
	*machine
	happens func()
}

func (s slowly) Identity(ctx context.Context) (string, error) {
	s.happens()
	return s.machine.Identity(ctx)
}

// TestOptOutBeforeOff: a node whose owner opts it out after the command was stored is not switched off, also if that was after the fencer had
// stored that it is about to send the command, and while a switch that did not respond for a while shows whose it is. Without that the machine is
// switched off.
func TestOptOutBeforeOff(t *testing.T) {
	for name, wantOffs := range map[string]int{
		"not opted out": 1, "after the command was stored": 0, "before the command is sent": 0, "while the switch is asked whose it is": 0,
	} {
		f, bmc, source, fence := commanded(t)
		inner := f.client
		optOut := func() {
			node := nodeOf("n1", 0)
			must(t, inner.Get(t.Context(), client.ObjectKey{Name: "n1"}, node))
			node.Annotations = map[string]string{kube.FenceOptOutAnnotation: ""}
			must(t, inner.Update(t.Context(), node))
		}
		switch name {
		case "after the command was stored":
			optOut()
		case "before the command is sent":
			f.client = interceptor.NewClient(inner.(client.WithWatch), interceptor.Funcs{
				SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
					if x, ok := object.(*fencingv1.FenceSource); ok && x.Status.Command != nil {
						optOut()
					}
					return c.SubResource(sub).Patch(ctx, object, patch, opts...)
				},
			})
		case "while the switch is asked whose it is":
			f.Dial = dialing(map[string]Switch{"bmc": slowly{bmc, optOut}})
		}
		_, err := f.serve(t.Context(), f.state("n1"), source, fence)
		must(t, err)
		if _, offs := bmc.count(); offs != wantOffs {
			t.Errorf("%s: commanded %d times, want %d", name, offs, wantOffs)
		}
		last := lastOf(fence.Status.Evidence, 1)
		if len(last) != 1 || strings.HasPrefix(last[0].Raw, "not sent") != (wantOffs == 0) {
			t.Errorf("%s: the answer is %+v", name, last)
		}
	}
}

// TestClockOfTheFencer: a fencer whose clock is so far ahead that each command is too old sends nothing, and reports that once for each. One
// whose clock is a little ahead does its work.
func TestClockOfTheFencer(t *testing.T) {
	for ahead, wantOffs := range map[time.Duration]int{fencing.IntentFor / 2: 1, fencing.IntentFor + time.Second: 0} {
		f, bmc, source, fence := commanded(t)
		recorder := events.NewFakeRecorder(10)
		now := f.now()
		f.events, f.now = recorder, func() time.Time { return now.Add(ahead) }
		for range 3 {
			_, err := f.serve(t.Context(), f.state("n1"), source, fence)
			must(t, err)
		}
		asked, offs := bmc.count()
		if offs != wantOffs || wantOffs == 0 && asked+len(fence.Status.Evidence) > 0 {
			t.Errorf("%v ahead: commanded %d times, asked %d times, answers %+v", ahead, offs, asked, fence.Status.Evidence)
		}
		close(recorder.Events)
		var said []string
		for e := range recorder.Events {
			said = append(said, e)
		}
		if len(said) != 1-wantOffs || len(said) == 1 && !strings.Contains(said[0], reasonLate) {
			t.Errorf("%v ahead: events %q", ahead, said)
		}
	}
}

// TestLateCommandAtTheAPI: the fencer has the right to report a command that is too old.
func TestLateCommandAtTheAPI(t *testing.T) {
	s := newSite(t)
	s.fleet("n2")
	m := s.machine("n1")
	m.source()
	stop := s.run()
	m.bound()
	stop()
	f := m.makeFence(fencing.Fencing)
	f.Status.Intents = []fencingv1.Intent{{Action: powerOff, Nonce: "off", NotAfter: micro(time.Now()), Renewal: renewal(m.lease())}}
	must(t, s.client.Status().Update(t.Context(), f))
	s.run(func(o *Options) { o.DryRun = !o.Roles.Fencer })
	wait.Until(t, "an event reports it", func() bool { return s.event(reasonLate) })
	if _, offs := m.count(); offs != 0 {
		t.Errorf("commanded %d times", offs)
	}
}

// TestFenceBeforeExercises: while as many exercises as may be hang, no other begins, and a fence is served.
func TestFenceBeforeExercises(t *testing.T) {
	f, bmc, source, fence := commanded(t)
	for range cap(f.exercises) {
		f.exercises <- struct{}{}
	}
	for range cap(f.looks) {
		f.looks <- struct{}{}
	}
	if busy := cap(f.exercises) + cap(f.looks); busy+fencing.DefaultBrakes().InFlight > agents {
		t.Errorf("%d exercises and looks of %d workers", busy, agents)
	}
	if after, err := f.exercise(t.Context(), f.state("n1"), source); err != nil || after != lookEvery {
		t.Errorf("an exercise: again after %v (%v)", after, err)
	}
	if asked, _ := bmc.count(); asked != 0 {
		t.Errorf("asked %d times", asked)
	}
	if _, err := f.serve(t.Context(), f.state("n1"), source, fence); err != nil {
		t.Fatal(err)
	}
	if _, offs := bmc.count(); offs != 1 {
		t.Errorf("commanded %d times", offs)
	}
}
