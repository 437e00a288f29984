package nodevolume

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var (
	now  = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	podA = PublishKey{PodUID: "a", SpecName: "pv"}
	podB = PublishKey{PodUID: "b", SpecName: "pv"}
)

// ready is a volume that nothing blocks: in use, attached, driver registered, attachment read.
func ready() Observed {
	return Observed{
		Node:           Node{InUse: Yes, Attached: Yes},
		AttachRequired: Yes,
		Attachment:     Attachment{Attached: Yes, UID: "va-1"},
		Driver:         Driver{Registered: true, Stages: Yes},
		Users:          Users{Found: No},
	}
}

func with(change ...func(*Observed)) Observed {
	o := ready()
	for _, c := range change {
		c(&o)
	}
	return o
}

func staged(phase Phase) func(*Observed) {
	return func(o *Observed) { o.Stage, o.RecordedInUse = Stage{Phase: phase, AttachmentUID: "va-1"}, true }
}

func unaccounted(o *Observed) { o.Unaccounted = true }

func pods(list ...Pod) Desired { return Desired{Pods: list} }

func sole(list ...Pod) Desired {
	for i := range list {
		list[i].SolePod = true
	}
	return pods(list...)
}

func TestDecide(t *testing.T) {
	wanted := Pod{Key: podA, Demand: Wanted}
	tests := map[string]struct {
		desired  Desired
		observed Observed
		want     Decision
	}{
		// S7: nothing is staged before the Node lists the volume in use and as attached.
		"wanted, Node not read yet: reported, and waited for": {
			pods(wanted), with(func(o *Observed) { o.Node = Node{} }),
			Decision{InUse: Yes, Waits: []Wait{{podA, NodeUnknown}}},
		},
		"wanted and attached, but not listed in use: not staged": {
			pods(wanted), with(func(o *Observed) { o.Node.InUse = No }),
			Decision{InUse: Yes, Waits: []Wait{{podA, NotReportedInUse}}},
		},
		"wanted and attached, a write that clears it may still be carried out: not staged": {
			pods(wanted), with(func(o *Observed) { o.Node.InUse = Unknown }),
			Decision{InUse: Yes, Waits: []Wait{{podA, NotReportedInUse}}},
		},
		"in use, not reported as attached: waits, though the attachment was read": {
			pods(wanted), with(func(o *Observed) { o.Node.Attached = No }),
			Decision{InUse: Yes, Waits: []Wait{{podA, NotAttached}}},
		},
		"driver does not stage: publish waits for the Node as well": {
			pods(wanted), with(func(o *Observed) { o.Node.InUse, o.Driver.Stages = No, No }),
			Decision{InUse: Yes, Waits: []Wait{{podA, NotReportedInUse}}},
		},
		"unstage not confirmed: stays listed though no pod wants it": {
			pods(), with(staged(Uncertain), func(o *Observed) { o.Driver.Registered = false }),
			Decision{InUse: Yes, Waits: []Wait{{PublishKey{}, DriverNotRegistered}}},
		},
		"record found, Node lost its list: listed again before anything else": {
			pods(Pod{Key: podA, Demand: DemandUnknown, Publish: Confirmed}), with(staged(Confirmed), func(o *Observed) { o.Node.InUse = No }),
			Decision{InUse: Yes, Waits: []Wait{{podA, OwnerSilent}}},
		},
		"record was made in use, CSIDriver says now that no attach is needed: stays listed": {
			pods(Pod{Key: podA, Demand: Wanted, Publish: Confirmed}),
			with(staged(Confirmed), func(o *Observed) { o.AttachRequired, o.Node.InUse = No, No }),
			Decision{InUse: Yes},
		},
		"only an uncertain publish is left of a driver that does not stage: stays listed": {
			pods(Pod{Key: podA, Demand: Released, Publish: Uncertain}),
			with(func(o *Observed) { o.RecordedInUse, o.Driver = true, Driver{} }),
			Decision{InUse: Yes, Waits: []Wait{{podA, DriverNotRegistered}}},
		},

		// The way there.
		"attachability unknown: waits and reports nothing": {
			pods(wanted), with(func(o *Observed) { o.AttachRequired, o.Node.InUse = Unknown, No }),
			Decision{Waits: []Wait{{podA, AttachabilityUnknown}}},
		},
		"driver not registered": {
			pods(wanted), with(func(o *Observed) { o.Driver = Driver{} }),
			Decision{InUse: Yes, Waits: []Wait{{podA, DriverNotRegistered}}},
		},
		"capabilities unknown: asked for, never guessed": {
			pods(wanted), with(func(o *Observed) { o.Driver.Stages = Unknown }),
			Decision{InUse: Yes, Next: ReadCapabilities{podA}},
		},
		"all gates open: the attachment is read first": {
			pods(wanted), with(func(o *Observed) { o.Attachment = Attachment{} }),
			Decision{InUse: Yes, Next: ReadAttachment{podA}},
		},
		"attachment deleting": {
			pods(wanted), with(func(o *Observed) { o.Attachment = Attachment{Attached: No} }),
			Decision{InUse: Yes, Waits: []Wait{{podA, AttachmentNotReady}}},
		},
		"attached: staged":                             {pods(wanted), ready(), Decision{InUse: Yes, Next: StageVolume{For: podA}}},
		"stage uncertain: staged again":                {pods(wanted), with(staged(Uncertain)), Decision{InUse: Yes, Next: StageVolume{For: podA}}},
		"staged: published":                            {pods(wanted), with(staged(Confirmed)), Decision{InUse: Yes, Next: Publish{Key: podA}}},
		"publish uncertain: published again":           {pods(Pod{Key: podA, Demand: Wanted, Publish: Uncertain}), with(staged(Confirmed)), Decision{InUse: Yes, Next: Publish{Key: podA}}},
		"published: nothing to do":                     {pods(Pod{Key: podA, Demand: Wanted, Publish: Confirmed}), with(staged(Confirmed)), Decision{InUse: Yes}},
		"driver does not stage: published at once":     {pods(wanted), with(func(o *Observed) { o.Driver.Stages = No }), Decision{InUse: Yes, Next: Publish{Key: podA}}},
		"no attach needed: staged without a handshake": {pods(wanted), Observed{AttachRequired: No, Driver: Driver{Registered: true, Stages: Yes}}, Decision{InUse: No, Next: StageVolume{For: podA}}},
		"listed, and the CSIDriver says now that no attach is needed: taken out before it is staged": {
			pods(wanted), with(func(o *Observed) { o.AttachRequired = No }), Decision{InUse: No, Next: StageVolume{For: podA}},
		},
		"first pod backs off, second is mounted": {
			pods(Pod{Key: podA, Demand: Wanted, Failure: Failure{Count: 1, At: now}}, Pod{Key: podB, Demand: Wanted}), with(staged(Confirmed)),
			Decision{InUse: Yes, Next: Publish{Key: podB}, Waits: []Wait{{podA, BackingOff}}, RecheckAt: now.Add(500 * time.Millisecond)},
		},
		"back-off cut short by what it waited for": {
			pods(Pod{Key: podA, Demand: Wanted, Failure: Failure{Count: 9}}), ready(),
			Decision{InUse: Yes, Next: StageVolume{For: podA}},
		},
		"ReadWriteOncePod, another pod has it": {
			sole(Pod{Key: podA, Demand: Wanted, Publish: Confirmed}, Pod{Key: podB, Demand: Wanted}), with(staged(Confirmed)),
			Decision{InUse: Yes, Waits: []Wait{{podB, OtherPodMounted}}},
		},
		"ReadWriteOncePod, unknown whether another pod has it": {
			sole(Pod{Key: podA, Demand: DemandUnknown, Publish: Uncertain}, Pod{Key: podB, Demand: Wanted}), with(staged(Confirmed)),
			Decision{InUse: Yes, Waits: []Wait{{podA, OwnerSilent}, {podB, OtherPodMounted}}},
		},

		"ReadWriteOncePod, another pod has it through another PersistentVolume": {
			pods(Pod{Key: podA, Demand: Wanted, Publish: Confirmed, SolePod: true}, Pod{Key: podB, Demand: Wanted}), with(staged(Confirmed)),
			Decision{InUse: Yes, Waits: []Wait{{podB, OtherPodMounted}}},
		},
		"ReadWriteOncePod of a pod that waits blocks no other": {
			pods(Pod{Key: podA, Demand: Wanted, Publish: Confirmed}, Pod{Key: podB, Demand: Wanted}, Pod{Key: PublishKey{PodUID: "c"}, Demand: Wanted, SolePod: true}),
			with(staged(Confirmed)), Decision{InUse: Yes, Next: Publish{Key: podB}},
		},
		"ReadWriteOncePod, one pod with two PersistentVolumes": {
			sole(Pod{Key: podA, Demand: Wanted, Publish: Confirmed}, Pod{Key: PublishKey{PodUID: podA.PodUID, SpecName: "pv-2"}, Demand: Wanted}), with(staged(Confirmed)),
			Decision{InUse: Yes, Next: Publish{Key: PublishKey{PodUID: podA.PodUID, SpecName: "pv-2"}}},
		},

		// S7: it may be mounted without a record.
		"unaccounted, nothing recorded and unwanted: stays listed": {
			pods(), with(unaccounted), Decision{InUse: Yes, Waits: []Wait{{PublishKey{}, UnaccountedMount}}},
		},
		"unaccounted, the Node lost its list: listed again": {
			pods(), with(unaccounted, func(o *Observed) { o.Node.InUse = No }), Decision{InUse: Yes, Waits: []Wait{{PublishKey{}, UnaccountedMount}}},
		},
		"unaccounted, CSIDriver says now that no attach is needed: stays listed": {
			pods(), with(unaccounted, func(o *Observed) { o.AttachRequired = No }), Decision{InUse: Yes, Waits: []Wait{{PublishKey{}, UnaccountedMount}}},
		},
		"unaccounted, last pod unpublished: not unstaged": {
			pods(), with(staged(Confirmed), unaccounted), Decision{InUse: Yes, Waits: []Wait{{PublishKey{}, UnaccountedMount}}},
		},
		"unaccounted, pod gone: what is recorded for it is unpublished": {
			pods(Pod{Key: podA, Demand: Released, Publish: Confirmed}), with(unaccounted), Decision{InUse: Yes, Next: Unpublish{podA}},
		},
		"unaccounted, wanted: staged, which recreates the record": {
			pods(wanted), with(unaccounted), Decision{InUse: Yes, Next: StageVolume{For: podA}},
		},
		"unaccounted, ReadWriteOncePod: it may be another pod's": {
			sole(wanted), with(unaccounted), Decision{InUse: Yes, Waits: []Wait{{podA, UnaccountedMount}}},
		},
		"unaccounted, ReadWriteOncePod, the pod has it: renewed": {
			sole(Pod{Key: podA, Demand: Wanted, Publish: Confirmed}),
			with(staged(Confirmed), unaccounted, func(o *Observed) { o.Driver.RepublishEvery = time.Minute }), Decision{InUse: Yes, Next: Republish{podA}},
		},
		"unaccounted, wanted with an SELinux label: it may be mounted with another": {
			pods(Pod{Key: podA, Demand: Wanted, Label: "x"}), with(unaccounted), Decision{InUse: Yes, Waits: []Wait{{PublishKey{}, UnaccountedMount}, {podA, UnaccountedMount}}},
		},
		"unaccounted, staged for an earlier attachment: not unstaged": {
			pods(wanted), with(staged(Confirmed), unaccounted, func(o *Observed) { o.Attachment.UID = "va-2" }),
			Decision{InUse: Yes, Waits: []Wait{{podA, UnaccountedMount}}},
		},

		// The attachment was recreated since the volume was staged (k/k#119273).
		"staged for an earlier attachment, no pod on it: unstaged first": {
			pods(wanted), with(staged(Confirmed), func(o *Observed) { o.Attachment.UID = "va-2" }),
			Decision{InUse: Yes, Next: Unstage{}},
		},
		"staged for an earlier attachment, half published: unpublished first": {
			pods(Pod{Key: podA, Demand: Wanted, Publish: Uncertain}), with(staged(Confirmed), func(o *Observed) { o.Attachment.UID = "va-2" }),
			Decision{InUse: Yes, Next: Unpublish{podA}},
		},
		"staged for an earlier attachment, a pod runs on it: waits": {
			pods(Pod{Key: podA, Demand: Wanted, Publish: Confirmed}, Pod{Key: podB, Demand: Wanted}),
			with(staged(Confirmed), func(o *Observed) { o.Attachment.UID = "va-2" }),
			Decision{InUse: Yes, Waits: []Wait{{podB, AttachmentReplaced}}},
		},

		// The unmount needs no API.
		"pod gone, API unreachable: unpublished": {
			pods(Pod{Key: podA, Demand: Released, Publish: Confirmed}),
			with(staged(Confirmed), func(o *Observed) { o.Node, o.AttachRequired, o.Attachment = Node{}, Unknown, Attachment{} }),
			Decision{InUse: Yes, Next: Unpublish{podA}},
		},
		"last pod unpublished: unstaged": {
			pods(Pod{Key: podA, Demand: Released}), with(staged(Confirmed)),
			Decision{InUse: Yes, Next: Unstage{}},
		},
		"one pod gone, another wants it: unpublished, not unstaged": {
			pods(Pod{Key: podA, Demand: Released}, Pod{Key: podB, Demand: Wanted, Publish: Confirmed}), with(staged(Confirmed)),
			Decision{InUse: Yes},
		},
		"known from records, owner silent: left as it is": {
			pods(Pod{Key: podA, Publish: Uncertain}), with(staged(Confirmed)),
			Decision{InUse: Yes, Waits: []Wait{{podA, OwnerSilent}}},
		},
		"staged for a pod whose owner is silent, nothing published: left staged": {
			pods(Pod{Key: podA}), with(staged(Confirmed)),
			Decision{InUse: Yes, Waits: []Wait{{podA, OwnerSilent}}},
		},
		"unstage failed a moment ago": {
			pods(), with(staged(Uncertain), func(o *Observed) { o.Unstage = Failure{Count: 2, At: now, Jitter: 0.5} }),
			Decision{InUse: Yes, Waits: []Wait{{PublishKey{}, BackingOff}}, RecheckAt: now.Add(1050 * time.Millisecond)},
		},
		"unstaged: cleared": {
			pods(), ready(), Decision{InUse: No, Waits: []Wait{{PublishKey{}, InUseNotCleared}}},
		},
		"unstaged, Node unknown: cleared when it is known": {
			pods(), with(func(o *Observed) { o.Node = Node{} }), Decision{InUse: No, Waits: []Wait{{PublishKey{}, InUseNotCleared}}},
		},
		"cleared: forgotten": {
			pods(), with(func(o *Observed) { o.Node = Node{InUse: No, Attached: Yes} }), Decision{Forget: true},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := Decide(now, test.desired, test.observed)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("Decide (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPhasesAfterReplies(t *testing.T) {
	type after struct{ First, Again, Undo Phase }
	tests := map[string]struct {
		reply Reply
		want  after
	}{
		"ok":        {OK, after{First: Confirmed, Again: Confirmed, Undo: Absent}},
		"refused":   {Refused, after{First: Absent, Again: Uncertain, Undo: Uncertain}},
		"no answer": {NoAnswer, after{First: Uncertain, Again: Uncertain, Undo: Uncertain}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := after{AfterCall(Absent, test.reply), AfterCall(Uncertain, test.reply), AfterUndo(test.reply)}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("phases (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBackOffGrowsToKubeletsMaximum(t *testing.T) {
	var got []time.Duration
	for count := range 11 {
		got = append(got, Failure{Count: count + 1, At: now}.retryAt().Sub(now))
	}
	ms := time.Millisecond
	want := []time.Duration{500 * ms, 1000 * ms, 2000 * ms, 4000 * ms, 8000 * ms, 16000 * ms, 32000 * ms, 64000 * ms, 122000 * ms, 122000 * ms, 122000 * ms}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
	bounded := Failure{Count: 9, At: now, AtMost: 5 * time.Second}
	if got := bounded.retryAt().Sub(now); got != 5*time.Second {
		t.Errorf("waits %v where 5 s are the most", got)
	}
	bounded.Count = 1
	if got := bounded.retryAt().Sub(now); got != 500*ms {
		t.Errorf("waits %v after the first failure", got)
	}
}
