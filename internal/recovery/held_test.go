package recovery

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// withFencer runs the actor of a stage beside a fencer whose brake holds every command: five other nodes were commanded a moment ago. Each of the two
// is woken by a change of the fence, and looks again when it said so; the fencer is slower. happens is called before each step with the time since the start.
func withFencer(t *testing.T, s *stage, bmc *machine, slower, until time.Duration, happens func(time.Duration)) {
	t.Helper()
	must(t, s.client.Create(t.Context(), nodeOf("n9", 0)))
	s.ear.silences.Renewed(s.clock, "n9", "", time.Hour)
	p := *s.parts
	p.Brakes, p.Dial = fencing.DefaultBrakes(), dialing(map[string]Switch{"bmc": bmc})
	p.client = interceptor.NewClient(s.client.(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, o ...client.SubResourcePatchOption) error {
			if _, is := object.(*fencingv1.FenceSource); is { // the stage has no subresource of it
				return c.Patch(ctx, object, patch)
			}
			return c.SubResource(sub).Patch(ctx, object, patch, o...)
		},
	})
	p.ear = &listener{parts: &p}
	p.ear.silences = s.ear.silences
	f := newFencer(&p)
	for i := range 5 {
		f.commanded[fmt.Sprintf("other-%d", i)] = s.clock.Add(until)
	}
	start, r := s.clock, reconcile.Request{NamespacedName: types.NamespacedName{Name: "n1"}}
	actorAt, fencerAt, version := s.clock, s.clock, ""
	for s.clock.Sub(start) < until {
		happens(s.clock.Sub(start))
		if v := s.fence().ResourceVersion; v != version {
			version, actorAt, fencerAt = v, s.clock, s.clock.Add(slower)
		}
		if !s.clock.Before(actorAt) {
			result, err := s.Reconcile(t.Context(), r)
			must(t, err)
			actorAt = s.clock.Add(result.RequeueAfter)
		}
		if !s.clock.Before(fencerAt) {
			result, err := f.Reconcile(t.Context(), r)
			must(t, err)
			fencerAt = s.clock.Add(result.RequeueAfter + slower)
		}
		if s.fence().Status.Phase != fencingv1.Phase(fencing.Fencing) {
			return
		}
		s.clock = s.clock.Add(50 * time.Millisecond)
	}
}

// TestHeldCommandIsAskedAbout: while the brake of the fencer holds a command, a person pulls the plug of the machine. The fencer may ask the switch at
// any time, and the actor asks it to: the fence continues as soon as the switch says Off.
func TestHeldCommandIsAskedAbout(t *testing.T) {
	for _, slower := range []time.Duration{0, 50 * time.Millisecond, 200 * time.Millisecond} {
		s, bmc := newStage(t, fencing.Fencing), &machine{uuid: "hw-n1", power: fencing.PowerOn}
		pulled := 40 * time.Second
		var left time.Duration
		withFencer(t, s, bmc, slower, 5*time.Minute, func(since time.Duration) {
			left = since
			if since >= pulled {
				bmc.mu.Lock()
				bmc.power = fencing.PowerOff
				bmc.mu.Unlock()
			}
		})
		f := s.fence()
		if asked, offs := bmc.count(); left > pulled+20*time.Second {
			t.Errorf("a fencer that takes %v: %v after the machine lost its power the fence is %s: the switch was asked %d times and commanded %d times, evidence %d, intents %d",
				slower, left-pulled, f.Status.Phase, asked, offs, len(f.Status.Evidence), len(f.Status.Intents))
		}
	}
}

// TestHeldCommandHearsAPerson: the same, but the whole rack is without power, so that the switch gives no answer. A person who has pulled the plug
// says so.
func TestHeldCommandHearsAPerson(t *testing.T) {
	for pulled := 35 * time.Second; pulled < 65*time.Second; pulled += 5 * time.Second {
		s, bmc := newStage(t, fencing.Fencing), &machine{uuid: "hw-n1", power: fencing.PowerOn}
		for _, o := range statementGuard() {
			must(t, s.client.Create(t.Context(), o))
		}
		stated := false
		var left time.Duration
		withFencer(t, s, bmc, 100*time.Millisecond, 5*time.Minute, func(since time.Duration) {
			left = since
			if since < pulled {
				return
			}
			bmc.mu.Lock()
			bmc.power, bmc.failing = fencing.PowerUnknown, errors.New("no route to host")
			bmc.mu.Unlock()
			if !stated {
				stated = true
				fence := s.fence()
				fence.Spec.Statement = &fencingv1.Statement{By: "admin", Reason: "pulled the plug", MachineID: "hw-n1", Expires: metav1.NewTime(s.clock.Add(time.Hour).Truncate(time.Second))}
				fence.Status.Statement = &fencingv1.StatementRecord{Expires: fence.Spec.Statement.Expires, Made: metav1.NewTime(s.clock)}
				status := fence.DeepCopy()
				must(t, s.client.Update(t.Context(), fence))
				status.ResourceVersion = fence.ResourceVersion
				must(t, s.client.Status().Update(t.Context(), status))
			}
		})
		if f := s.fence(); left > pulled+20*time.Second {
			t.Errorf("pulled after %v: %v after the statement the fence is %s, and misses %v", pulled, left-pulled, f.Status.Phase, f.Status.Missing)
		}
	}
}
