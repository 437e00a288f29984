package nodevolume

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestVolumeUsedByAContainerIsNotTaken: the last call that takes a volume from the machine waits until
// nothing else there has it mounted.
func TestVolumeUsedByAContainerIsNotTaken(t *testing.T) {
	looked := func(found Knowledge) func(*Observed) {
		return func(o *Observed) {
			if o.Users.Found = found; found == Yes {
				o.Users.Search = Failure{Count: 1, At: now}
			}
		}
	}
	handshake := func(o *Observed) { o.RecordedInUse = true }
	released := func(key PublishKey) Pod { return Pod{Key: key, Demand: Released, Publish: Confirmed} }
	held := now.Add(firstBackOff)
	tests := map[string]struct {
		desired  Desired
		observed Observed
		want     Decision
	}{
		"not searched yet: searched": {
			pods(), with(staged(Confirmed), looked(Unknown)), Decision{InUse: Yes, Next: LookForUsers{}},
		},
		"another process has it: stays staged and in use, and is searched again": {
			pods(), with(staged(Confirmed), looked(Yes)),
			Decision{InUse: Yes, Waits: []Wait{{PublishKey{}, StillMountedElsewhere}}, RecheckAt: held},
		},
		"woken: looked for at once": {
			pods(), with(staged(Confirmed), looked(Yes), func(o *Observed) { o.Users.Search.At = time.Time{} }), Decision{InUse: Yes, Next: LookForUsers{}},
		},
		"its object is gone and its containers may run: stays as it is": {
			pods(Pod{Key: podA, Demand: Ending, Publish: Confirmed}), with(staged(Confirmed)),
			Decision{InUse: Yes, Waits: []Wait{{podA, ContainersMayRun}}},
		},
		"the same, with an answer to its publish that was lost": {
			pods(Pod{Key: podA, Demand: Ending, Publish: Uncertain}), with(staged(Confirmed)),
			Decision{InUse: Yes, Waits: []Wait{{podA, ContainersMayRun}}},
		},
		"the same, before it was published: not published any more": {
			pods(Pod{Key: podA, Demand: Ending}), with(staged(Confirmed)),
			Decision{InUse: Yes, Waits: []Wait{{podA, ContainersMayRun}}},
		},
		"no process has it: unstaged": {pods(), with(staged(Confirmed), looked(No)), Decision{InUse: Yes, Next: Unstage{}}},
		"no attach is needed: not unstaged under a user either": {
			pods(), with(staged(Confirmed), looked(Unknown), func(o *Observed) { o.AttachRequired, o.RecordedInUse, o.Node.InUse = No, false, No }),
			Decision{InUse: No, Next: LookForUsers{}},
		},
		"its last publish, which may be all that there is of it": {
			pods(released(podA)), with(handshake, looked(Unknown)), Decision{InUse: Yes, Next: LookForUsers{Key: podA}},
		},
		"its last publish, and another process has it": {
			pods(released(podA)), with(handshake, looked(Yes)),
			Decision{InUse: Yes, Waits: []Wait{{podA, StillMountedElsewhere}}, RecheckAt: held},
		},
		"another pod has it published: not taken from the machine": {
			pods(released(podA), Pod{Key: podB, Demand: Wanted, Publish: Confirmed}), with(staged(Confirmed), looked(Yes)),
			Decision{InUse: Yes, Next: Unpublish{podA}},
		},
		"staged with an attachment that is no more: not restaged under a container": {
			pods(Pod{Key: podA, Demand: Wanted}),
			with(staged(Confirmed), looked(Yes), func(o *Observed) { o.Stage.AttachmentUID = "va-0" }),
			Decision{InUse: Yes, Waits: []Wait{{PublishKey{}, StillMountedElsewhere}, {podA, AttachmentReplaced}}, RecheckAt: held},
		},
		"staged with an attachment that is no more: nothing is taken from a pod that is over and may run": {
			pods(Pod{Key: podA, Demand: Wanted}, Pod{Key: podB, Demand: Ending, Publish: Uncertain}),
			with(staged(Confirmed), func(o *Observed) { o.Stage.AttachmentUID = "va-0" }),
			Decision{InUse: Yes, Waits: []Wait{{podB, ContainersMayRun}, {podA, AttachmentReplaced}}},
		},
		"nor from one whose owner has not spoken": {
			pods(Pod{Key: podA, Demand: Wanted}, Pod{Key: podB, Demand: DemandUnknown, Publish: Uncertain}),
			with(staged(Confirmed), func(o *Observed) { o.Stage.AttachmentUID = "va-0" }),
			Decision{InUse: Yes, Waits: []Wait{{podB, OwnerSilent}, {podA, AttachmentReplaced}}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Decide(now, tt.desired, tt.observed)); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}
