package recovery

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
)

// watched is a detector over dead nodes and as many others, on a clock of its own.
type watched struct {
	*detector

	t      *testing.T
	clock  time.Time
	said   []string // events: the node, the reason
	lives  []string // the nodes that renew their leases
	listed int
	lags   bool // the cache of fences
}

func (w *watched) Eventf(about, _ runtime.Object, _, reason, _, _ string, _ ...any) {
	w.said = append(w.said, about.(client.Object).GetName()+" "+reason)
}

func watch(t *testing.T, b fencing.Brakes, dead ...string) *watched {
	t.Helper()
	w := &watched{t: t, clock: time.Now()}
	var objects []client.Object
	for _, name := range dead {
		n, live := nodeOf(name, 0), "live-"+name
		setReady(n, corev1.ConditionUnknown)
		w.lives = append(w.lives, live)
		source := sourceOf(name, "bmc-of-"+name)
		source.Status.Bound = &fencingv1.Bound{NodeUID: "uid-" + name, BootID: "boot-" + name, MachineID: "hw-" + name, HardwareID: "hw-" + name, Generation: 1}
		objects = append(objects, n, leaseOf(name), nodeOf(live, 0), source, fixture.Pod("default", "db-of-"+name, name, "data"))
	}
	p := partsOver(nil, objects...)
	p.Brakes, p.events, p.now = b, w, func() time.Time { return w.clock }
	p.client = interceptor.NewClient(p.client.(client.WithWatch), interceptor.Funcs{List: w.list})
	w.detector = &detector{parts: p, held: map[string]hold{}}
	for _, name := range dead {
		w.silent(name)
	}
	return w
}

// list is the cache: it has the objects in any order, and may lack all fences.
func (w *watched) list(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
	switch list := list.(type) {
	case *fencingv1.NodeFenceList:
		if w.lags {
			return nil
		}
	case *corev1.NodeList:
		w.listed++
		defer func() { slices.Reverse(list.Items[:len(list.Items)-w.listed%5]) }()
	}
	return c.List(ctx, list, o...)
}

// silent: the node has not renewed its lease for an hour.
func (w *watched) silent(name string) {
	w.t.Helper()
	lease := leaseOf(name)
	must(w.t, w.live.Get(w.t.Context(), client.ObjectKeyFromObject(lease), lease))
	w.ear.silences.Renewed(w.clock.Add(-time.Hour), name, "before", time.Second)
	w.ear.silences.Renewed(w.clock.Add(-time.Hour), name, renewal(lease), time.Second)
}

// looks: the detector looks this often, twice a second.
func (w *watched) looks(times int) {
	w.t.Helper()
	for range times {
		for _, name := range w.lives {
			w.ear.silences.Renewed(w.clock, name, w.clock.String(), time.Minute)
		}
		_ = w.look(w.t.Context()) // it fails where the API server does
		w.clock = w.clock.Add(tickEvery)
	}
}

func (w *watched) fences() int {
	w.t.Helper()
	fences := &fencingv1.NodeFenceList{}
	must(w.t, w.live.List(w.t.Context(), fences))
	return len(fences.Items)
}

// stamps: fences are created with a UID and a time. The fake client sets neither.
func (w *watched) stamps() {
	created := 0
	w.client = interceptor.NewClient(w.client.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.CreateOption) error {
			created++
			object.SetUID(types.UID(fmt.Sprint("fence-", created)))
			object.SetCreationTimestamp(metav1.NewTime(w.clock.Truncate(time.Second)))
			return c.Create(ctx, object, o...)
		},
	})
}

// ends: the fence of a node is over.
func (w *watched) ends(name string, phase fencing.Phase) {
	w.t.Helper()
	f := &fencingv1.NodeFence{}
	must(w.t, w.live.Get(w.t.Context(), client.ObjectKey{Name: name}, f))
	f.Finalizers = nil
	must(w.t, w.client.Update(w.t.Context(), f))
	f.Status.Phase = fencingv1.Phase(phase)
	must(w.t, w.client.Status().Update(w.t.Context(), f))
}

// TestFlappingNodeTakesNoPlace (hole 17): fences of one node that begin and are cancelled before a command hold back neither that node nor another.
func TestFlappingNodeTakesNoPlace(t *testing.T) {
	w := watch(t, fencing.Brakes{Share: 1, ZoneShare: 1, Window: 10 * time.Minute, Fences: 2, InFlight: 2}, "n1", "n2", "n3")
	w.stamps()
	w.ear.silences.Forget("n2")
	w.ear.silences.Forget("n3")
	for i := range 7 {
		w.looks(2)
		f := &fencingv1.NodeFence{}
		must(t, w.live.Get(t.Context(), client.ObjectKey{Name: "n1"}, f))
		if finished(f) {
			t.Fatalf("fence %d of the node did not begin: %q", i, w.said)
		}
		w.ends("n1", fencing.Cancelled)
	}
	w.silent("n2")
	w.looks(3)
	if w.fences() != 2 {
		t.Errorf("another node is not fenced: %q", w.said)
	}
}

// TestNodesWithoutASwitchTakeNoPlace (hole 17): what waits for a person, because there is no power switch, holds back no node that has one.
func TestNodesWithoutASwitchTakeNoPlace(t *testing.T) {
	w := watch(t, fencing.Brakes{Share: 1, ZoneShare: 1, Window: 10 * time.Minute, Fences: 2, InFlight: 2}, "n1", "n2", "n3", "n4")
	w.stamps()
	for _, name := range []string{"n1", "n2", "n3"} { // n4 has one, and a place
		must(t, w.client.Delete(t.Context(), sourceOf(name)))
	}
	for range 10 {
		w.looks(2)
		fences := &fencingv1.NodeFenceList{}
		must(t, w.live.List(t.Context(), fences))
		for i := range fences.Items { // the actor has found out
			fences.Items[i].Status.Phase, fences.Items[i].Status.Missing = fencingv1.Phase(fencing.Fencing), []string{"a power switch"}
			must(t, w.client.Status().Update(t.Context(), &fences.Items[i]))
		}
	}
	if n := w.fences(); n != 4 {
		t.Errorf("%d of 4 fences began: %q", n, w.said)
	}
}

// TestFencesThatWaitForOthers (hole 17): what a fence waits for in Detaching is done by others, and keeps no other node from being fenced.
func TestFencesThatWaitForOthers(t *testing.T) {
	for phase, want := range map[fencing.Phase]int{fencing.Fencing: 2, fencing.Evicting: 2, fencing.Detaching: 4} {
		w := watch(t, fencing.Brakes{Share: 1, ZoneShare: 1, Window: 10 * time.Minute, Fences: 9, InFlight: 2}, "n1", "n2", "n3", "n4")
		w.stamps()
		w.looks(5)
		fences := &fencingv1.NodeFenceList{}
		must(t, w.live.List(t.Context(), fences))
		for i := range fences.Items {
			fences.Items[i].Status.Phase = fencingv1.Phase(phase)
			must(t, w.client.Status().Update(t.Context(), &fences.Items[i]))
		}
		if w.looks(5); len(fences.Items) != 2 || w.fences() != want {
			t.Errorf("%s: %d fences after %d, want %d", phase, w.fences(), len(fences.Items), want)
		}
	}
}

// TestNothingBegunInVain: no fence is begun that the actor would cancel, whatever changed since the node was looked at.
func TestNothingBegunInVain(t *testing.T) {
	for name, change := range map[string]func(*corev1.Node){
		"opted out": func(n *corev1.Node) { n.Annotations[kube.FenceOptOutAnnotation] = "" },
		"under maintenance": func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: "MaintenanceInProgress", Status: corev1.ConditionTrue}}
		},
		"another boot": func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-of-another" },
	} {
		before, now := nodeOf("n1", 0), nodeOf("n1", 0)
		change(now)
		p := partsOver(nil, now)
		must(t, (&detector{parts: p, held: map[string]hold{}}).suspect(t.Context(), fencing.Node{Boot: bootOf(before)}))
		if err := p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, &fencingv1.NodeFence{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: a fence was begun: %v", name, err)
		}
	}
}

// TestBrakesWithACacheThatLags (hole 17): a fence counts from its creation, not from when the cache shows it.
func TestBrakesWithACacheThatLags(t *testing.T) {
	w := watch(t, fencing.Brakes{Share: 1, ZoneShare: 1, Window: 10 * time.Minute, Fences: 9, InFlight: 2}, "n1", "n2", "n3", "n4")
	w.lags = true
	w.stamps()
	w.looks(10)
	if n := w.fences(); n != 2 {
		t.Errorf("%d fences began within five seconds, want 2", n)
	}
}

// TestBrakesWithACreateWithoutAnAnswer (hole 17): a create that timed out may still be carried out, so it counts until it is answered, or no
// request lives any more. One that was refused does not count.
func TestBrakesWithACreateWithoutAnAnswer(t *testing.T) {
	gr := schema.GroupResource{Group: "fencing.belay.dev", Resource: "nodefences"}
	for name, c := range map[string]struct {
		failed error
		tried  int
	}{
		"timed out": {context.DeadlineExceeded, 2},
		"refused":   {apierrors.NewForbidden(gr, "x", nil), 4},
	} {
		w := watch(t, fencing.Brakes{Share: 1, ZoneShare: 1, Window: 10 * time.Minute, Fences: 9, InFlight: 2}, "n1", "n2", "n3", "n4")
		tried, failed := map[string]int{}, c.failed
		w.client = interceptor.NewClient(w.client.(client.WithWatch), interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.CreateOption) error {
				tried[object.GetName()]++
				if failed == nil {
					return c.Create(ctx, object, o...)
				}
				return failed
			},
		})
		for _, dead := range []string{"n1", "n2", "n3", "n4"} { // one after the other, as they die
			for _, other := range []string{"n1", "n2", "n3", "n4"} {
				w.ear.silences.Forget(other)
			}
			w.silent(dead)
			w.looks(2)
		}
		if len(tried) != c.tried {
			t.Errorf("%s: creates sent: %v, want those of %d nodes", name, tried, c.tried)
		}
		failed = nil
		if w.clock = w.clock.Add(time.Minute); name == "timed out" {
			if w.looks(2); w.fences() != 1 {
				t.Errorf("%s: %d fences a minute later, want that of the last node", name, w.fences())
			}
		}
	}
}

// TestEpochOfACreateWithoutAnAnswer (seed 18 of the simulation): a create that timed out may be carried out after the fence of the next one was withdrawn,
// and has another epoch.
func TestEpochOfACreateWithoutAnAnswer(t *testing.T) {
	w := watch(t, fencing.Brakes{Share: 1, ZoneShare: 1, Window: 10 * time.Minute, Fences: 9, InFlight: 2}, "n1", "n2")
	w.ear.silences.Forget("n2")
	var epochs []int64
	w.client = interceptor.NewClient(w.client.(client.WithWatch), interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, object client.Object, _ ...client.CreateOption) error {
			epochs = append(epochs, object.(*fencingv1.NodeFence).Spec.Epoch)
			return context.DeadlineExceeded
		},
	})
	w.silent("n1")
	w.looks(4)
	if slices.Sort(epochs); len(epochs) < 2 || len(slices.Compact(slices.Clone(epochs))) < len(epochs) {
		t.Errorf("epochs %v", epochs)
	}
}

// TestDryRunReportsOnce: each node that would be fenced is reported once while it is silent, also if there are several.
func TestDryRunReportsOnce(t *testing.T) {
	w := watch(t, fencing.Brakes{Share: 1, ZoneShare: 1, Window: time.Minute, Fences: 9, InFlight: 9}, "n1", "n2", "n3", "n4", "n5", "n6")
	w.DryRun = true
	w.looks(20)
	for _, name := range []string{"n1", "n2", "n3", "n4", "n5", "n6"} {
		if n := strings.Count(strings.Join(w.said, "\n")+"\n", name+" "+string(dryRun)+"\n"); n != 1 {
			t.Errorf("%d reports about %s: %q", n, name, w.said)
		}
	}
	if n := w.fences(); n != 0 {
		t.Errorf("%d fences", n)
	}
	w.said = nil
	w.ear.silences.Renewed(w.clock, "n1", "again", time.Second)
	w.looks(1)
	w.silent("n1")
	if w.looks(5); len(w.said) != 1 {
		t.Errorf("n1 is silent again: %q", w.said)
	}
}

// TestZoneIsWhatTheFencerRecorded: a silent node whose kubelet has written the zone of another into its label holds back no fence there, whether its
// zone is recorded or not.
func TestZoneIsWhatTheFencerRecorded(t *testing.T) {
	objects, zones := []client.Object{}, map[string]string{"n1": "a", "n2": "a", "n3": "b", "liar": "b", "n5": "b", "n6": "b", "n7": "b", "n8": "b", "n9": "b", "n10": "b", "new": "a"}
	for name, zone := range zones {
		n := nodeOf(name, 0)
		n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
		if name == "n1" || name == "liar" || name == "new" {
			setReady(n, corev1.ConditionUnknown)
		}
		objects = append(objects, n)
		if name != "new" {
			source := sourceOf(name, name)
			recordZone(source, n)
			objects = append(objects, source)
		}
	}
	p := partsOver(nil, objects...)
	p.Profile, p.Brakes = fencing.Default, fencing.DefaultBrakes()
	d := &detector{parts: p, held: map[string]hold{}}
	suspicion := func() fencing.Suspicion {
		fleet, _, err := d.fleet(t.Context())
		must(t, err)
		for _, n := range fleet.Nodes {
			if n.ReadAt = p.now(); n.Boot.Node == "n1" {
				return fencing.Suspect(p.now(), p.Profile, p.Brakes, fleet.Count(), n)
			}
		}
		return fencing.Suspicion{}
	}
	for name := range zones {
		p.ear.silences.Renewed(p.now(), name, "r", 40*time.Second)
	}
	suspicion()
	label := func(zone string, silent ...string) {
		liar := &corev1.Node{}
		must(t, p.client.Get(t.Context(), client.ObjectKey{Name: "liar"}, liar))
		liar.Labels[corev1.LabelTopologyZone] = zone
		must(t, p.client.Update(t.Context(), liar))
		for _, name := range silent {
			p.ear.silences.Renewed(p.now().Add(-time.Minute), name, "before", 40*time.Second)
		}
	}
	label("a", "n1", "liar", "new")
	if s := suspicion(); !s.Suspected {
		t.Errorf("held back by nodes that say they are in the zone: %s", s.Reason)
	}
	label("b", "n2")
	if s := suspicion(); s.Reason != fencing.ZoneSilent {
		t.Errorf("both nodes of a zone are silent: %+v", s)
	}
}

// TestPowerOfTheMachineBefore: what the switch says counts for the machine that it is bound to, in each of its boots, and not for another one that has
// replaced it under the name.
func TestPowerOfTheMachineBefore(t *testing.T) {
	for machine, want := range map[string]fencing.Knowledge{"hw-n1": fencing.Yes, "hw-before": fencing.Unknown} {
		node, source := nodeOf("n1", 0), sourceOf("n1", "bmc")
		source.Status.Bound = &fencingv1.Bound{NodeUID: "uid-n1", BootID: "boot-before", MachineID: machine, HardwareID: machine, Generation: 1}
		source.Status.Power = &fencingv1.PowerState{State: powerOff}
		p := partsOver(nil, node, source)
		p.hears(leaseOf("n1"))
		d := &detector{parts: p, held: map[string]hold{}}
		if got := d.node(node, source).PowerOff; got != want {
			t.Errorf("the switch of %s says Off: for hw-n1 that is %v, want %v", machine, got, want)
		}
	}
	// The hardware behind the address is another machine's.
	f := newFencer(partsOver(dialing(map[string]Switch{"bmc": &machine{uuid: "hw-other", power: fencing.PowerOff}}), nodeOf("n1", 0)))
	source := sourceOf("n1", "bmc")
	source.Status.Bound = &fencingv1.Bound{NodeUID: "uid-n1", BootID: "boot-n1", MachineID: "hw-n1", HardwareID: "hw-n1", Generation: 1}
	if f.check(t.Context(), source, nodeOf("n1", 0), true); source.Status.Power != nil {
		t.Errorf("the hardware of another machine says Off: %+v", source.Status.Power)
	}
}
