package nodevolume

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// stagedAs is a stage with an SELinux label.
func stagedAs(label string, phase Phase) func(*Observed) {
	return func(o *Observed) {
		staged(phase)(o)
		o.Stage.Label = label
	}
}

func TestOneSELinuxLabelAtATime(t *testing.T) {
	noStage := func(o *Observed) { o.Driver.Stages = No }
	x, y := Pod{Key: podA, Demand: Wanted, Label: "x"}, Pod{Key: podB, Demand: Wanted, Label: "y"}
	as := func(p Pod, claim Demand, phase Phase, label string) Pod {
		p.Demand, p.Publish, p.PublishedLabel = claim, phase, label
		return p
	}
	tests := map[string]struct {
		pods     []Pod
		observed Observed
		want     Decision
	}{
		"nothing is mounted: staged with the pod's label": {
			[]Pod{x}, ready(), Decision{InUse: Yes, Next: StageVolume{For: podA, Label: "x"}},
		},
		"staged with the pod's label: published with it": {
			[]Pod{x}, with(stagedAs("x", Confirmed)), Decision{InUse: Yes, Next: Publish{Key: podA, Label: "x"}},
		},
		"stage with the pod's label uncertain: staged again": {
			[]Pod{x}, with(stagedAs("x", Uncertain)), Decision{InUse: Yes, Next: StageVolume{For: podA, Label: "x"}},
		},
		"staged without a label: unstaged first": {
			[]Pod{x}, with(staged(Confirmed)), Decision{InUse: Yes, Next: Unstage{}},
		},
		"staged with a label, the pod wants none: unstaged first": {
			[]Pod{{Key: podA, Demand: Wanted}}, with(stagedAs("x", Confirmed)), Decision{InUse: Yes, Next: Unstage{}},
		},
		"another stage uncertain: unstaged first": {
			[]Pod{y}, with(stagedAs("x", Uncertain)), Decision{InUse: Yes, Next: Unstage{}},
		},
		"its unstage backs off: waits": {
			[]Pod{y}, with(stagedAs("x", Uncertain), func(o *Observed) { o.Unstage = Failure{Count: 1, At: now} }),
			Decision{
				InUse: Yes, Waits: []Wait{{PublishKey{}, BackingOff}, {podB, OtherSELinuxLabelMounted}}, RecheckAt: now.Add(500 * time.Millisecond),
			},
		},
		"unstaged though the Node is not known, as for every unmount": {
			[]Pod{y}, with(stagedAs("x", Confirmed), func(o *Observed) { o.Node = Node{} }), Decision{InUse: Yes, Next: Unstage{}},
		},
		"a pod that stays has it with another label: waits": {
			[]Pod{as(x, Wanted, Confirmed, "x"), y}, with(stagedAs("x", Confirmed)),
			Decision{InUse: Yes, Waits: []Wait{{podB, OtherSELinuxLabelWanted}}},
		},
		"a pod whose owner is silent may have it with another label: waits": {
			[]Pod{as(x, DemandUnknown, Absent, ""), y}, with(stagedAs("x", Confirmed)),
			Decision{InUse: Yes, Waits: []Wait{{podA, OwnerSilent}, {podB, OtherSELinuxLabelWanted}}},
		},
		"staged for a pod that is not mounted yet: the first one keeps it": {
			[]Pod{x, y}, with(stagedAs("x", Confirmed)), Decision{InUse: Yes, Next: Publish{Key: podA, Label: "x"}},
		},
		"and keeps it while it backs off": {
			[]Pod{{Key: podA, Demand: Wanted, Label: "x", Failure: Failure{Count: 1, At: now}}, y}, with(stagedAs("x", Uncertain)),
			Decision{
				InUse: Yes, Waits: []Wait{{podA, BackingOff}, {podB, OtherSELinuxLabelWanted}}, RecheckAt: now.Add(500 * time.Millisecond),
			},
		},
		"the pod that has it is gone: unpublished": {
			[]Pod{as(x, Released, Confirmed, "x"), y}, with(stagedAs("x", Confirmed)), Decision{InUse: Yes, Next: Unpublish{podA}},
		},
		"its unpublish backs off: waits": {
			[]Pod{{Key: podA, Demand: Released, Publish: Uncertain, PublishedLabel: "x", Failure: Failure{Count: 1, At: now}}, y}, with(stagedAs("x", Confirmed)),
			Decision{
				InUse: Yes, Waits: []Wait{{podA, BackingOff}, {podB, OtherSELinuxLabelMounted}}, RecheckAt: now.Add(500 * time.Millisecond),
			},
		},
		"the same label: stays staged": {
			[]Pod{as(x, Released, Absent, ""), {Key: podB, Demand: Wanted, Label: "x"}}, with(stagedAs("x", Confirmed)),
			Decision{InUse: Yes, Next: Publish{Key: podB, Label: "x"}},
		},
		"driver does not stage, another pod has it otherwise: waits": {
			[]Pod{as(x, Wanted, Confirmed, "x"), y}, with(noStage), Decision{InUse: Yes, Waits: []Wait{{podB, OtherSELinuxLabelWanted}}},
		},
		"half published with another label: undone first": {
			[]Pod{as(y, Wanted, Uncertain, "x")}, with(stagedAs("x", Confirmed)), Decision{InUse: Yes, Next: Unpublish{podB}},
		},
		"that backs off: waits": {
			[]Pod{{Key: podB, Demand: Wanted, Publish: Uncertain, PublishedLabel: "x", Label: "y", Failure: Failure{Count: 1, At: now}}}, with(stagedAs("x", Confirmed)),
			Decision{InUse: Yes, Waits: []Wait{{podB, BackingOff}}, RecheckAt: now.Add(500 * time.Millisecond)},
		},
		"runs with another label than it would get now: left as it is": {
			[]Pod{as(y, Wanted, Confirmed, "x")}, with(stagedAs("x", Confirmed)), Decision{InUse: Yes},
		},
		"and is renewed with what it has": {
			[]Pod{as(y, Wanted, Confirmed, "x")}, with(stagedAs("x", Uncertain), func(o *Observed) { o.Driver.RepublishEvery = time.Minute }),
			Decision{InUse: Yes, Next: StageVolume{For: podB, Label: "x"}},
		},
		"CSIDrivers not listed, so the label is unknown: left as it is": {
			[]Pod{as(y, Wanted, Uncertain, "x")}, with(stagedAs("x", Confirmed), func(o *Observed) { o.AttachRequired = Unknown }),
			Decision{InUse: Yes, Waits: []Wait{{podB, AttachabilityUnknown}}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for _, sole := range []bool{false, true} {
				desired := pods(slices.Clone(test.pods)...)
				for i := range desired.Pods {
					desired.Pods[i].SolePod = sole
				}
				got := Decide(now, desired, test.observed)
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("Decide, sole pod %v (-want +got):\n%s", sole, diff)
				}
			}
		})
	}
}
