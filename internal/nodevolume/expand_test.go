package nodevolume

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func grown(o *Observed) { o.Growth.Due = true }

func TestDecideExpand(t *testing.T) {
	running := Pod{Key: podA, Demand: Wanted, Publish: Confirmed}
	tests := map[string]struct {
		desired  Desired
		observed Observed
		want     Decision
	}{
		"grown: expanded where it is published": {
			pods(running), with(staged(Confirmed), grown), Decision{InUse: Yes, Next: Expand{podA}},
		},
		"not grown": {
			pods(running), with(staged(Confirmed)), Decision{InUse: Yes},
		},
		"not staged yet: staged first": {
			pods(Pod{Key: podA, Demand: Wanted}), with(grown), Decision{InUse: Yes, Next: StageVolume{For: podA}},
		},
		"not published yet: published first": {
			pods(Pod{Key: podA, Demand: Wanted}), with(staged(Confirmed), grown), Decision{InUse: Yes, Next: Publish{Key: podA}},
		},
		"published without an answer: published again first": {
			pods(Pod{Key: podA, Demand: Wanted, Publish: Uncertain}), with(staged(Confirmed), grown), Decision{InUse: Yes, Next: Publish{Key: podA}},
		},
		"published without an answer, and that backs off: not yet": {
			pods(Pod{Key: podA, Demand: Wanted, Publish: Uncertain, Failure: Failure{Count: 1, At: now}}), with(staged(Confirmed), grown),
			Decision{InUse: Yes, Waits: []Wait{{podA, BackingOff}}, RecheckAt: now.Add(500 * time.Millisecond)},
		},
		"another pod waits for its mount: that first": {
			pods(running, Pod{Key: podB, Demand: Wanted}), with(staged(Confirmed), grown), Decision{InUse: Yes, Next: Publish{Key: podB}},
		},
		"another pod's mount backs off: not delayed by it": {
			pods(running, Pod{Key: podB, Demand: Wanted, Failure: Failure{Count: 1, At: now}}), with(staged(Confirmed), grown),
			Decision{InUse: Yes, Next: Expand{podA}, Waits: []Wait{{podB, BackingOff}}, RecheckAt: now.Add(500 * time.Millisecond)},
		},
		"a stage for another pod has had no answer: not now": {
			pods(running, Pod{Key: podB, Demand: Wanted, Failure: Failure{Count: 1, At: now}}), with(staged(Uncertain), grown),
			Decision{InUse: Yes, Waits: []Wait{{podB, BackingOff}}, RecheckAt: now.Add(500 * time.Millisecond)},
		},
		"the stage is in doubt since a restart, and no pod is staging": {
			pods(running), with(staged(Uncertain), grown), Decision{InUse: Yes, Next: Expand{podA}},
		},
		"the pod is leaving: unpublished": {
			pods(Pod{Key: podA, Demand: Released, Publish: Confirmed}), with(staged(Confirmed), grown), Decision{InUse: Yes, Next: Unpublish{podA}},
		},
		"leaving, and the unpublish backs off: not expanded": {
			pods(Pod{Key: podA, Demand: Released, Publish: Confirmed, Failure: Failure{Count: 1, At: now}}), with(staged(Confirmed), grown),
			Decision{InUse: Yes, Waits: []Wait{{podA, BackingOff}}, RecheckAt: now.Add(500 * time.Millisecond)},
		},
		"known from a record, owner silent: left alone": {
			pods(Pod{Key: podA, Publish: Confirmed}), with(staged(Confirmed), grown), Decision{InUse: Yes, Waits: []Wait{{podA, OwnerSilent}}},
		},
		"read-only for the pod: not for it": {
			pods(Pod{Key: podA, Demand: Wanted, Publish: Confirmed, ReadOnly: true}), with(staged(Confirmed), grown), Decision{InUse: Yes},
		},
		"read-only for one pod, not for the other": {
			pods(Pod{Key: podA, Demand: Wanted, Publish: Confirmed, ReadOnly: true}, Pod{Key: podB, Demand: Wanted, Publish: Confirmed}),
			with(staged(Confirmed), grown), Decision{InUse: Yes, Next: Expand{podB}},
		},
		"failed a moment ago: backs off": {
			pods(running), with(staged(Confirmed), grown, func(o *Observed) { o.Growth.Failure = Failure{Count: 2, At: now} }),
			Decision{InUse: Yes, Waits: []Wait{{podA, BackingOff}}, RecheckAt: now.Add(time.Second)},
		},
		"the failure of an expansion does not delay the unmount": {
			pods(Pod{Key: podA, Demand: Released, Publish: Confirmed}),
			with(staged(Confirmed), grown, func(o *Observed) { o.Growth.Failure = Failure{Count: 9, At: now} }),
			Decision{InUse: Yes, Next: Unpublish{podA}},
		},
		"driver gone": {
			pods(running), with(staged(Confirmed), grown, func(o *Observed) { o.Driver = Driver{} }),
			Decision{InUse: Yes, Waits: []Wait{{podA, DriverNotRegistered}}},
		},
		"detached under the pod: the Node has no say in it": {
			pods(running), with(staged(Confirmed), grown, func(o *Observed) { o.Node, o.Attachment = Node{InUse: Yes}, Attachment{} }),
			Decision{InUse: Yes, Next: Expand{podA}},
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
