package nodevolume

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"belay.dev/belay/internal/testing/fuzzinput"
)

// FuzzDecide makes a snapshot out of any bytes and checks what must hold of every decision. The rules of the oracle are written
// from invariant S7 and the rules above Decide, not from its code.
func FuzzDecide(f *testing.F) {
	for _, seed := range fuzzinput.Seeds(1000, 120) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		desired, observed := snapshotFrom(fuzzinput.From(input))
		before := fmt.Sprintf("%+v\n%+v", desired, observed)
		got := Decide(fuzzNow, desired, observed)
		if after := fmt.Sprintf("%+v\n%+v", desired, observed); after != before {
			t.Fatalf("the snapshot was changed from\n%s\nto\n%s", before, after)
		}
		if again := Decide(fuzzNow, desired, observed); !reflect.DeepEqual(got, again) {
			t.Fatalf("the same snapshot gave\n%+v\nand\n%+v\nfor\n%s", got, again, before)
		}
		if broken := checkDecision(desired, observed, got); broken != "" {
			t.Fatalf("%s\nby %T%+v\nfor\n%s", broken, got.Next, got, before)
		}
	})
}

var fuzzNow = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func snapshotFrom(in *fuzzinput.Source) (Desired, Observed) {
	var d Desired
	o := Observed{
		Inline:         in.Below(6) == 1,
		AttachRequired: knowledge(in),
		Node:           Node{InUse: knowledge(in), Attached: knowledge(in), Changes: in.Below(3)},
		Driver:         Driver{Registered: in.Below(5) > 0, Stages: knowledge(in), RepublishEvery: fuzzinput.Pick(in, 0, time.Minute)},
		Unaccounted:    in.Below(6) == 1,
		Attachment:     Attachment{Attached: knowledge(in)},
		Unstage:        failureFrom(in),
		Users:          Users{Found: knowledge(in), Search: failureFrom(in)},
		Growth:         Growth{Due: in.Bool(), Failure: failureFrom(in)},
	}
	if o.Attachment.Attached == Yes {
		o.Attachment.UID = fuzzinput.Pick(in, "va-1", "va-2")
	}
	for i := range in.Below(4) {
		d.Pods = append(d.Pods, podFrom(in, PublishKey{PodUID: string(rune('a' + i)), SpecName: "pv"}))
	}
	if !o.Inline && in.Below(3) > 0 {
		o.Stage = Stage{Phase: fuzzinput.Pick(in, Uncertain, Confirmed), AttachmentUID: fuzzinput.Pick(in, "", "va-1", "va-2"), Label: labelFrom(in)}
	}
	if recordedOf(d, o) {
		o.RecordedInUse = in.Bool()
	}
	if o.Inline {
		o.RecordedInUse, o.Unaccounted = false, false
	}
	return d, o
}

func podFrom(in *fuzzinput.Source, key PublishKey) Pod {
	p := Pod{
		Key: key, Demand: fuzzinput.Pick(in, Wanted, Wanted, Released, Ending, DemandUnknown), Publish: fuzzinput.Pick(in, Absent, Uncertain, Confirmed),
		Leaving: in.Below(4) == 1, Label: labelFrom(in), SolePod: in.Below(6) == 1, ReadOnly: in.Below(4) == 1, Failure: failureFrom(in),
	}
	if p.Publish != Absent {
		p.PublishedLabel = labelFrom(in)
		p.Inherited = p.Publish == Uncertain && in.Below(3) == 1
	}
	if p.Publish == Confirmed && in.Bool() {
		p.LastConfirmed = Confirmation{At: fuzzNow.Add(-time.Duration(in.Byte()) * time.Second), Jitter: 0.5}
	}
	return p
}

func failureFrom(in *fuzzinput.Source) Failure {
	if in.Below(3) != 1 {
		return Failure{}
	}
	return Failure{Count: 1 + in.Below(12), At: fuzzNow.Add(-time.Duration(in.Byte()) * time.Second), Jitter: 0.5, AtMost: fuzzinput.Pick(in, 0, 5*time.Second)}
}

func labelFrom(in *fuzzinput.Source) string {
	return fuzzinput.Pick(in, "", "", "", "level-1", "level-2")
}

func knowledge(in *fuzzinput.Source) Knowledge { return fuzzinput.Pick(in, Yes, No, Unknown) }

func recordedOf(d Desired, o Observed) bool {
	return o.Stage.Phase != Absent || slices.ContainsFunc(d.Pods, func(p Pod) bool { return p.Publish != Absent })
}

// checkDecision returns the first rule that a decision breaks.
func checkDecision(d Desired, o Observed, got Decision) string {
	if broken := checkStep(d, o, got.Next); broken != "" {
		return broken
	}
	if broken := checkInUse(d, o, got); broken != "" {
		return broken
	}
	if broken := checkNoneForgotten(d, o, got); broken != "" {
		return broken
	}
	if !got.RecheckAt.IsZero() && !got.RecheckAt.After(fuzzNow) {
		return "it is to be looked at again at a time that has passed"
	}
	return ""
}

func find(d Desired, key PublishKey) Pod {
	if i := slices.IndexFunc(d.Pods, func(p Pod) bool { return p.Key == key }); i >= 0 {
		return d.Pods[i]
	}
	return Pod{}
}

func checkStep(d Desired, o Observed, step Step) string {
	_, looks := step.(LookForUsers)
	if step == nil || looks {
		return ""
	}
	if _, reads := step.(ReadAttachment); !o.Driver.Registered && !reads {
		return "the driver is called and is not registered"
	}
	switch x := step.(type) {
	case StageVolume:
		if o.Inline || o.Driver.Stages != Yes {
			return "a volume is staged that is inline, or by a driver that does not stage"
		}
		// What is published is staged again, or now that the driver stages, only to be renewed.
		if p := find(d, x.For); p.Publish == Confirmed && (o.Driver.RepublishEvery == 0 || p.Leaving) {
			return "staged for a pod that has it"
		}
		return checkMount(d, o, find(d, x.For), x.Label)
	case Publish:
		if find(d, x.Key).Publish == Confirmed {
			return "published for a pod that has it"
		}
		if o.Driver.Stages == Yes && !o.Inline && o.Stage.Phase != Confirmed {
			return "published before it is staged"
		}
		return checkMount(d, o, find(d, x.Key), x.Label)
	case Republish:
		if p := find(d, x.Key); p.Publish != Confirmed || p.Demand != Wanted || p.Leaving {
			return "renewed for a pod that does not have it, or shall not keep it"
		}
		return checkHandshake(o)
	case Unpublish:
		return checkUnpublish(d, o, find(d, x.Key))
	case Unstage:
		return checkUnstage(d, o)
	}
	return ""
}

// checkHandshake is S7 for what gives the volume to the machine.
func checkHandshake(o Observed) string {
	switch {
	case o.AttachRequired == Unknown:
		return "S7: the driver is called before it is known whether the volume is attached"
	case o.AttachRequired == Yes && !o.Inline && (o.Node.InUse != Yes || o.Node.Attached != Yes):
		return "S7: the driver is called while the Node is not known to list the volume in use and as attached"
	case o.AttachRequired == Yes && !o.Inline && o.Attachment.Attached != Yes:
		return "S7: the driver is called without an attachment that was read"
	}
	return ""
}

func checkMount(d Desired, o Observed, p Pod, label string) string {
	switch {
	case p.Demand != Wanted:
		return "mounted for a pod that does not want it"
	case o.AttachRequired == Yes && o.Stage.Phase != Absent && o.Stage.AttachmentUID != "" && o.Stage.AttachmentUID != o.Attachment.UID && !o.Inline:
		return "mounted on the stage of another attachment"
	case o.Stage.Phase != Absent && o.Stage.Label != label:
		return "mounted with another label than it is, or may be, staged with"
	}
	for _, other := range d.Pods {
		switch {
		case other.Key == p.Key || other.Publish == Absent:
		case other.PublishedLabel != label:
			return "mounted with two labels at once"
		case other.SolePod || p.SolePod:
			return "mounted for a second pod of a volume for one pod"
		}
	}
	return checkHandshake(o)
}

func checkUnpublish(d Desired, o Observed, p Pod) string {
	last := !slices.ContainsFunc(d.Pods, func(other Pod) bool { return other.Key != p.Key && other.Publish == Confirmed })
	switch {
	case p.Publish == Absent:
		return "unpublished where nothing is published"
	case p.Demand == DemandUnknown || p.Demand == Ending:
		return "S7: taken from a pod whose containers may run"
	case p.Demand == Wanted && (p.Publish == Confirmed || p.Inherited):
		return "S7: taken from a pod that wants it, and may run on it"
	case o.RecordedInUse && last && o.Users.Found != No:
		return "S7: the last publish is undone while other mounts of the volume may be there"
	}
	return ""
}

func checkUnstage(d Desired, o Observed) string {
	switch {
	case o.Stage.Phase == Absent:
		return "unstaged where nothing is staged"
	case o.Unaccounted:
		return "S7: unstaged while it may be mounted without a record"
	case slices.ContainsFunc(d.Pods, func(p Pod) bool { return p.Publish != Absent }):
		return "S7: unstaged while it is, or may be, published"
	case o.Users.Found != No:
		return "S7: unstaged while other mounts of the volume may be there"
	}
	return ""
}

// checkInUse is S7 for the list of the Node.
func checkInUse(d Desired, o Observed, got Decision) string {
	recorded := recordedOf(d, o) || o.Unaccounted
	_, calls := got.Next.(StageVolume)
	_, publishes := got.Next.(Publish)
	switch {
	case o.Inline && got.InUse == Yes:
		return "an inline volume is listed in use"
	case o.Inline:
		return ""
	case recorded && o.RecordedInUse && got.InUse != Yes:
		return "S7: taken off the list while something stands that was made in use"
	case o.Unaccounted && got.InUse != Yes:
		return "S7: taken off the list while it may be mounted without a record"
	case (calls || publishes) && o.AttachRequired == Yes && got.InUse != Yes:
		return "S7: the driver is called and the volume is not to be listed"
	case got.Forget && (recorded || o.Node.InUse != No || len(d.Pods) > 0):
		return "forgotten while something of it is left, or listed"
	}
	return ""
}

// checkNoneForgotten: of each pod that wants the volume, and each that is released and has it, there is a step to do or a reason to wait.
func checkNoneForgotten(d Desired, _ Observed, got Decision) string {
	if got.Next != nil {
		return "" // one at a time
	}
	for _, p := range d.Pods {
		waits := p.Demand == Wanted && p.Publish != Confirmed || p.Demand != Wanted && p.Publish != Absent
		if waits && !slices.ContainsFunc(got.Waits, func(h Wait) bool { return h.Key == p.Key }) {
			return "nothing is done for pod " + p.Key.PodUID + ", and no reason is given"
		}
	}
	return ""
}
