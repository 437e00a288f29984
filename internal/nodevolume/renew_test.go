package nodevolume

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPublishOfARunningPodIsRenewed(t *testing.T) {
	// runs is a pod whose publish the driver confirmed so long ago.
	runs := func(key PublishKey, ago time.Duration, change ...func(*Pod)) Pod {
		p := Pod{Key: key, Demand: Wanted, Publish: Confirmed, LastConfirmed: Confirmation{At: now.Add(-ago)}}
		for _, c := range change {
			c(&p)
		}
		return p
	}
	asks := func(change ...func(*Observed)) Observed {
		return with(append([]func(*Observed){staged(Confirmed), func(o *Observed) { o.Driver.RepublishEvery = time.Minute }}, change...)...)
	}
	early, late := 40*time.Second, 61*time.Second
	tests := map[string]struct {
		desired  Desired
		observed Observed
		want     Decision
	}{
		"driver does not ask for it": {
			pods(runs(podA, time.Hour)), with(staged(Confirmed)), Decision{InUse: Yes},
		},
		"not due yet: looked at again when it is": {
			pods(runs(podA, early)), asks(), Decision{InUse: Yes, RecheckAt: now.Add(20 * time.Second)},
		},
		"jitter stretches the time by up to a half": {
			pods(runs(podA, late, func(p *Pod) { p.LastConfirmed.Jitter = 0.5 })), asks(),
			Decision{InUse: Yes, RecheckAt: now.Add(14 * time.Second)},
		},
		"two pods: looked at again when the first is due": {
			pods(runs(podA, early), runs(podB, early+5*time.Second)), asks(), Decision{InUse: Yes, RecheckAt: now.Add(15 * time.Second)},
		},
		"due: published again": {
			pods(runs(podA, late)), asks(), Decision{InUse: Yes, Next: Republish{podA}},
		},
		"confirmed by an earlier agent: published again at once": {
			pods(runs(podA, late, func(p *Pod) { p.LastConfirmed = Confirmation{} })), asks(), Decision{InUse: Yes, Next: Republish{podA}},
		},
		"driver does not stage: published again": {
			pods(runs(podA, late)), asks(func(o *Observed) { o.Driver.Stages, o.Stage = No, Stage{} }), Decision{InUse: Yes, Next: Republish{podA}},
		},
		"no attach needed: published again without a handshake": {
			pods(runs(podA, late)), Observed{AttachRequired: No, Node: Node{InUse: No}, Stage: Stage{Phase: Confirmed}, Driver: Driver{true, Yes, time.Minute}},
			Decision{InUse: No, Next: Republish{podA}},
		},
		"another pod is to be published first": {
			pods(runs(podA, late), Pod{Key: podB, Demand: Wanted}), asks(), Decision{InUse: Yes, Next: Publish{Key: podB}},
		},

		// What holds it back.
		"pod is being deleted: left as it is": {
			pods(runs(podA, late, func(p *Pod) { p.Leaving = true })), asks(), Decision{InUse: Yes},
		},
		"pod is gone: unpublished": {
			pods(runs(podA, late, func(p *Pod) { p.Demand = Released })), asks(), Decision{InUse: Yes, Next: Unpublish{podA}},
		},
		"owner silent: left as it is": {
			pods(runs(podA, late, func(p *Pod) { p.Demand = DemandUnknown })), asks(), Decision{InUse: Yes, Waits: []Wait{{podA, OwnerSilent}}},
		},
		"failed a moment ago": {
			pods(runs(podA, late, func(p *Pod) { p.Failure = Failure{Count: 3, At: now} })), asks(),
			Decision{InUse: Yes, Waits: []Wait{{podA, BackingOff}}, RecheckAt: now.Add(2 * time.Second)},
		},
		"driver is away": {
			pods(runs(podA, late)), asks(func(o *Observed) { o.Driver.Registered, o.Driver.Stages = false, Unknown }),
			Decision{InUse: Yes, Waits: []Wait{{podA, DriverNotRegistered}}},
		},
		"S7: not listed in use any more: listed first": {
			pods(runs(podA, late)), asks(func(o *Observed) { o.Node.InUse = No }),
			Decision{InUse: Yes, Waits: []Wait{{podA, NotReportedInUse}}},
		},
		"report withdrawn: waits": {
			pods(runs(podA, late)), asks(func(o *Observed) { o.Node.Attached = No }),
			Decision{InUse: Yes, Waits: []Wait{{podA, NotAttached}}},
		},
		"attachment not read: read for the publish context": {
			pods(runs(podA, late)), asks(func(o *Observed) { o.Attachment = Attachment{} }), Decision{InUse: Yes, Next: ReadAttachment{podA}},
		},
		"attachment deleting": {
			pods(runs(podA, late)), asks(func(o *Observed) { o.Attachment = Attachment{Attached: No} }),
			Decision{InUse: Yes, Waits: []Wait{{podA, AttachmentNotReady}}},
		},
		"attached again since it was staged: the pod keeps what it has": {
			pods(runs(podA, late)), asks(func(o *Observed) { o.Attachment.UID = "va-2" }),
			Decision{InUse: Yes, Waits: []Wait{{podA, AttachmentReplaced}}},
		},
		"unknown whether it is staged: staged first": {
			pods(runs(podA, late)), asks(func(o *Observed) { o.Stage.Phase = Uncertain }), Decision{InUse: Yes, Next: StageVolume{For: podA}},
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

func TestConfirmedPublishSurvivesEveryReply(t *testing.T) {
	for _, reply := range []Reply{OK, Refused, NoAnswer} {
		if got := AfterCall(Confirmed, reply); got != Confirmed {
			t.Errorf("after reply %d to a publish that was repeated: %s", reply, got)
		}
	}
}

// checkRest: the renewal of each confirmed publish is scheduled.
func (w *simWorld) checkRest(decision Decision) error {
	for _, hold := range decision.Waits {
		if exit, ok := exits[hold.Reason]; !ok || exit.By == "" || exit.Timed && decision.RecheckAt.IsZero() {
			return fmt.Errorf("liveness: nothing ends a wait for %s: %+v, to be decided again at %s", hold.Reason, exit, decision.RecheckAt)
		}
	}
	for _, p := range w.agent.life.Pods {
		if w.agent.life.Demand(w.facts(), p) != Wanted || p.Phase != Confirmed || w.pod(p).Deleting {
			continue
		}
		held := slices.ContainsFunc(decision.Waits, func(h Wait) bool { return h.Key == p.Key })
		due := p.ConfirmedAt.At.Add(time.Minute)
		if !held && (decision.RecheckAt.IsZero() || decision.RecheckAt.After(due)) {
			return fmt.Errorf("liveness: the publish for %s is to be renewed at %s, and nothing happens before %s", p.Key.PodUID, due, decision.RecheckAt)
		}
	}
	return nil
}

// checkRenewal is what must hold when a publish is repeated.
func (w *simWorld) checkRenewal(uid string) error {
	a := w.agent
	heard := a.life.EnsurePod(PublishKey{PodUID: uid}).ConfirmedAt.At
	switch state := a.pods[uid]; {
	case !w.inUse() && !w.inline && a.attaches != No:
		return fmt.Errorf("S7: the publish for %s is repeated and the Node does not list the volume in use", uid)
	case w.leaving[uid] || !state.Set:
		return fmt.Errorf("the publish for %s is repeated while it leaves", uid)
	case w.now.Before(heard.Add(time.Minute)):
		return fmt.Errorf("the publish for %s is repeated %s after it was made", uid, w.now.Sub(heard))
	}
	return nil
}
