package recovery

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// slow is a switch whose answers take their time.
type slow struct {
	Switch

	identity, status, off time.Duration
}

// takes waits for an answer, or until the agent is ended.
func takes(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (s slow) Identity(ctx context.Context) (string, error) {
	if err := takes(ctx, s.identity); err != nil {
		return "", err
	}
	return s.Switch.Identity(ctx)
}

func (s slow) Status(ctx context.Context) (fencing.Power, string, error) {
	if err := takes(ctx, s.status); err != nil {
		return fencing.PowerUnknown, "", err
	}
	return s.Switch.Status(ctx)
}

func (s slow) Off(ctx context.Context) error {
	if err := takes(ctx, s.off); err != nil {
		return err
	}
	return s.Switch.Off(ctx)
}

// deadBMC is a BMC without power: fence_ipmilan needs 22.8 s to report that, and ipmitool 20.9 s.
func deadBMC() Switch {
	return slow{Switch: &machine{failing: errors.New("no answer")}, identity: 20900 * time.Millisecond, status: 22800 * time.Millisecond}
}

// fenced runs an actor and a fencer over the silent node n1 until its boot is proven to have ended, and returns how long that took.
func fenced(t *testing.T, source *fencingv1.FenceSource, switches map[string]Switch) (took time.Duration, f *fencingv1.NodeFence) {
	t.Helper()
	lease, fence := leaseOf("n1"), &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "fence-1", Finalizers: []string{finalizer}}}
	fence.Spec = fencingv1.NodeFenceSpec{NodeName: "n1", NodeUID: "uid-n1", BootID: "boot-n1", MachineID: "hw-n1", Epoch: 1}
	source.Status.Bound = &fencingv1.Bound{NodeUID: "uid-n1", BootID: "boot-n1", MachineID: "hw-n1", HardwareID: "hw-n1", Generation: 1, Levels: []int32{0, 1}}
	p := partsOver(dialing(switches), nodeOf("n1", 1), nodeOf("n9", 0), source, fence, lease)
	must(t, p.client.Get(t.Context(), client.ObjectKeyFromObject(lease), lease))
	moments := time.Duration(0)
	p.now = func() time.Time { // no two are the same
		moments += time.Microsecond
		return time.Now().Add(moments)
	}
	p.hears(lease)
	must(t, p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, fence))
	fence.Spec.LastRenewal = renewal(lease)
	must(t, p.client.Update(t.Context(), fence))
	a, n, begun := &actor{parts: p, known: map[types.UID]*memory{}}, newFencer(p), time.Now()
	for time.Since(begun) < 10*time.Minute {
		for _, r := range []reconcile.Reconciler{a, n} {
			_, err := r.Reconcile(t.Context(), request("n1")[0])
			must(t, err)
		}
		must(t, p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, fence))
		if fenceState(fence).Proven() {
			return time.Since(begun), fence
		}
		time.Sleep(100 * time.Millisecond)
	}
	return time.Since(begun), fence
}

// TestSlowSwitch: what a switch says counts however long it takes to say it, and a level that is dead leaves time for the next one. Two answers are
// needed (hole 1), and before a command a third.
func TestSlowSwitch(t *testing.T) {
	const second = time.Second
	off, on := func() *machine { return &machine{uuid: "hw-n1", power: fencing.PowerOff} }, func() *machine { return &machine{uuid: "hw-n1", power: fencing.PowerOn} }
	takes := func(d time.Duration, s Switch) Switch { return slow{s, d, d, d} }
	for name, c := range map[string]struct {
		levels   [][]string
		switches map[string]Switch
		within   time.Duration
	}{
		"identity and status take 2.8 s each":      {[][]string{{"bmc"}}, map[string]Switch{"bmc": takes(2800*time.Millisecond, off())}, 13 * second},
		"they take 9 s each":                       {[][]string{{"bmc"}}, map[string]Switch{"bmc": takes(9*second, off())}, 38 * second},
		"it takes 2.8 s, and the machine is on":    {[][]string{{"bmc"}}, map[string]Switch{"bmc": takes(2800*time.Millisecond, on())}, 30 * second},
		"the BMC is dead":                          {[][]string{{"bmc"}, {"pdu"}}, map[string]Switch{"bmc": deadBMC(), "pdu": nameless{off()}}, 25 * second},
		"the BMC is dead, and the machine is on":   {[][]string{{"bmc"}, {"pdu"}}, map[string]Switch{"bmc": deadBMC(), "pdu": takes(2*second, nameless{on()})}, 45 * second},
		"two feeds, which take 9 s each":           {[][]string{{"a", "b"}}, map[string]Switch{"a": takes(9*second, nameless{off()}), "b": takes(9*second, nameless{off()})}, 38 * second},
		"two feeds of a dead PDU, and then others": {[][]string{{"a", "b"}, {"pdu"}}, map[string]Switch{"a": deadBMC(), "b": deadBMC(), "pdu": nameless{off()}}, 25 * second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				source := sourceOf("n1")
				for _, level := range c.levels {
					var feeds []fencingv1.Feed
					for _, ip := range level {
						feeds = append(feeds, fencingv1.Feed{Agent: "fence_test", Options: map[string]fencingv1.FeedOption{"ip": fencingv1.FeedOption(ip)}})
					}
					source.Spec.Levels = append(source.Spec.Levels, fencingv1.FenceLevel{Feeds: feeds})
				}
				took, f := fenced(t, source, c.switches)
				t.Logf("proven after %v", took)
				if !fenceState(f).Proven() || took > c.within {
					t.Errorf("after %v the fence is %s with %d answers, want proven within %v: %+v", took, f.Status.Phase, len(f.Status.Evidence), c.within, lastOf(f.Status.Evidence, 2))
				}
			})
		})
	}
}

// TestSlowAnswerIsAwaited: the actor asks again once the fencer cannot answer any more, which is later the more levels there are.
func TestSlowAnswerIsAwaited(t *testing.T) {
	for levels, within := range map[int]time.Duration{1: 35 * time.Second, 2: 65 * time.Second} {
		s := newStage(t, fencing.Fencing)
		if levels == 2 {
			source := &fencingv1.FenceSource{}
			must(t, s.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, source))
			source.Spec = sourceOf("n1", "bmc", "pdu").Spec
			must(t, s.client.Update(t.Context(), source))
		}
		s.turns()
		asked := s.fence().Status.Question.Nonce
		for _, later := range []time.Duration{0, 20 * time.Second, within - time.Second, within} {
			begun := s.clock
			s.clock = begun.Add(later)
			s.turns()
			if again := s.fence().Status.Question.Nonce != asked; again != (later == within) {
				t.Errorf("%d levels: asked again after %v: %t", levels, later, again)
			}
			s.clock = begun
		}
	}
}

// flips is an outlet that another client switches: it says in turn what it was at each question, and the last for good.
type flips struct {
	Switch

	says []fencing.Power
}

func (f *flips) Status(context.Context) (fencing.Power, string, error) {
	now := f.says[0]
	if len(f.says) > 1 {
		f.says = f.says[1:]
	}
	return now, "flips", nil
}

// TestFeedsAreOffTogether: a machine with two feeds has lost its power when both were off at one time. One that said Off long before the other is asked
// again, since another client may have switched it on meanwhile.
func TestFeedsAreOffTogether(t *testing.T) {
	const second = time.Second
	off := nameless{&machine{power: fencing.PowerOff}}
	flip := func(says ...fencing.Power) Switch { return &flips{Switch: off, says: says} }
	takes := func(d time.Duration, s Switch) Switch { return slow{Switch: s, status: d} }
	for name, c := range map[string]struct {
		level []Switch
		want  fencing.Power
	}{
		"both at once":                            {[]Switch{off, off}, fencing.PowerOff},
		"a few seconds apart":                     {[]Switch{off, takes(4*second, off)}, fencing.PowerOff},
		"long apart, and the first one stays off": {[]Switch{off, takes(9*second, off)}, fencing.PowerOff},
		"long apart, and the first one is on":     {[]Switch{flip(fencing.PowerOff, fencing.PowerOn), takes(9*second, off)}, fencing.PowerOn},
		"it does not answer again":                {[]Switch{flip(fencing.PowerOff, fencing.PowerUnknown), takes(9*second, off)}, fencing.PowerUnknown},
		"each takes as long again":                {[]Switch{takes(6*second, off), takes(14*second, off)}, fencing.PowerUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if r := askLevel(t.Context(), c.level, nil, true); r.power != c.want {
					t.Errorf("%v (%s), want %v", r.power, r.raw, c.want)
				}
			})
		})
	}
}
