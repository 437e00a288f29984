package nodevolume

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// inline is a pod's own volume of a driver that stages and attaches others; the Node
// says of it what it says of names that it does not have.
func inline(change ...func(*Observed)) Observed {
	o := Observed{
		Inline: true, AttachRequired: Yes, Node: Node{InUse: No, Attached: No}, Driver: Driver{Registered: true, Stages: Yes},
	}
	for _, c := range change {
		c(&o)
	}
	return o
}

func TestDecideInline(t *testing.T) {
	wanted := Pod{Key: podA, Demand: Wanted}
	noNode := func(o *Observed) { o.Node = Node{} }
	recorded := func(o *Observed) { o.RecordedInUse = true }
	tests := map[string]struct {
		desired  Desired
		observed Observed
		want     Decision
	}{
		"wanted: published without attach, list and stage": {pods(wanted), inline(), Decision{Next: Publish{Key: podA}}},
		"Node unknown: published all the same":             {pods(wanted), inline(noNode), Decision{Next: Publish{Key: podA}}},
		"CSIDrivers not listed: unknown whether the driver has inline volumes": {
			pods(wanted), inline(func(o *Observed) { o.AttachRequired = Unknown }), Decision{Waits: []Wait{{podA, AttachabilityUnknown}}},
		},
		"capabilities unknown: asked for": {
			pods(wanted), inline(func(o *Observed) { o.Driver.Stages = Unknown }), Decision{Next: ReadCapabilities{podA}},
		},
		"driver not registered": {
			pods(wanted), inline(func(o *Observed) { o.Driver = Driver{} }), Decision{Waits: []Wait{{podA, DriverNotRegistered}}},
		},
		"publish uncertain: published again": {
			pods(Pod{Key: podA, Demand: Wanted, Publish: Uncertain}), inline(), Decision{Next: Publish{Key: podA}},
		},
		"published: nothing to do": {pods(Pod{Key: podA, Demand: Wanted, Publish: Confirmed}), inline(), Decision{}},
		"a damaged record says in use: never listed": {
			pods(Pod{Key: podA, Demand: Wanted, Publish: Confirmed}), inline(recorded), Decision{},
		},
		"pod gone, API unreachable: unpublished": {
			pods(Pod{Key: podA, Demand: Released, Publish: Confirmed}),
			inline(noNode, func(o *Observed) { o.AttachRequired = Unknown }), Decision{Next: Unpublish{podA}},
		},
		"unpublished, API unreachable: forgotten": {pods(), inline(noNode), Decision{Forget: true}},
		"unpublished, another client lists the name: left alone": {
			pods(), inline(func(o *Observed) { o.Node.InUse = Yes }), Decision{Forget: true},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, Decide(now, test.desired, test.observed)); diff != "" {
				t.Errorf("Decide (-want +got):\n%s", diff)
			}
		})
	}
}
