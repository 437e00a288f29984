package publication

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var (
	noon   = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	policy = Policy{RetryStart: time.Second, RetryMax: 5 * time.Minute}
)

// fresh is an attachment without any work done.
func fresh(name string) Attachment {
	return Attachment{UID: "uid-" + name, Name: name, Node: "node-" + name, NodeID: "id-" + name, Created: noon, Inputs: "i"}
}

// begun is an attachment whose finalizers are stored.
func begun(name string) Attachment {
	a := fresh(name)
	a.Finalizer, a.VolumeProtected, a.RecordedNodeID = true, true, "id-"+name
	return a
}

func attached(name string) Attachment {
	a := begun(name)
	a.Attached = true
	return a
}

func with(a Attachment, change func(*Attachment)) Attachment {
	change(&a)
	return a
}

func requestedAt(a Attachment, at time.Time) Attachment { a.DetachRequested = at; return a }

func deleting(a Attachment) Attachment { a.Deleting, a.DeletedAt = true, noon; return a }

func called(a Attachment, c Call) Attachment { a.Call = c; return a }

func recorded(c Call) Call { c.Recorded = true; return c }

func untouched(a Attachment) Attachment { a.Untouched = true; return a }

// allSteps lets steps be compared.
var allSteps = cmp.AllowUnexported(target{}, CancelCall{}, WriteFinalizers{}, CallDriver{}, RecordAttached{}, RecordDetached{}, RemoveFinalizer{}, RecordError{}, Forget{}, Reread{})

func to(name string) target { return target{"uid-" + name} }

const stillExists = `volume may be attached to one node only and VolumeAttachment a for node "node-a" still exists`

const wasRemoved = `volume can be attached to only one node: VolumeAttachment a for node "node-a" was removed before the driver confirmed the detach, which is under way. ` +
	`If that node is known not to write to the volume, restart the attacher to stop waiting`

func TestDecide(t *testing.T) {
	failed := Call{Verb: Publish, Sent: true, NodeID: "id-a", Failures: 1, Ended: noon, Message: "no space", Inputs: "i"}
	published := Call{Verb: Publish, Sent: true, NodeID: "id-a", Confirmed: true}
	unpublished := Call{Verb: Unpublish, NodeID: "id-a", Confirmed: true}
	notFound := Call{Verb: Unpublish, NodeID: "id-a", Sent: true, Failures: 9, Ended: noon, Message: "no node", NotFound: true, Inputs: "i"}
	unknownOnRecord := Call{Verb: Unpublish, NodeID: "id-old", Sent: true, NotFound: true, Failures: 1, Ended: noon, Message: "no node", Inputs: "i", Recorded: true, OnRecord: true}
	confirmedAtNew := Call{Verb: Unpublish, NodeID: "id-new", Sent: true, Confirmed: true, Previous: []Call{notFound}}
	renamed := func(a Attachment, c Call) Attachment { a.NodeID, a.Call = "id-new", c; return a }
	tests := map[string]struct {
		seen Observed
		want []Step
	}{
		"S1: deleted while it is observed: what was called for it is not forgotten": {Observed{Exclusive: true, Attachments: []Attachment{
			deleting(called(begun("a"), failed)), {UID: "uid-a", Name: "a", Node: "node-a", Gone: true, Created: noon, Inputs: "i", Call: failed}}},
			[]Step{CallDriver{to("a"), Unpublish, "id-a"}}},
		// S10
		"new attachment, both finalizers first": {Observed{Attachments: []Attachment{fresh("a")}},
			[]Step{WriteFinalizers{to("a"), "id-a", true, true}}},
		"S10: volume protected, attachment not: no call": {Observed{Attachments: []Attachment{with(fresh("a"), func(a *Attachment) { a.VolumeProtected = true })}},
			[]Step{WriteFinalizers{to("a"), "id-a", true, false}}},
		"S10: attachment ready, volume not protected: no call": {Observed{Attachments: []Attachment{with(begun("a"), func(a *Attachment) { a.VolumeProtected = false })}},
			[]Step{WriteFinalizers{to("a"), "id-a", false, true}}},
		"finalizers sent, no answer": {Observed{Exclusive: true, Attachments: []Attachment{with(begun("a"), func(a *Attachment) { a.UnconfirmedWrite = true }), fresh("b")}},
			[]Step{Reread{to("a")}, RecordError{to("b"), Publish, stillExists, false}}},
		"finalizers sent, no answer, deleting": {Observed{Attachments: []Attachment{with(deleting(begun("a")), func(a *Attachment) { a.UnconfirmedWrite = true })}},
			[]Step{Reread{to("a")}}},
		"finalizers stored": {Observed{Attachments: []Attachment{begun("a")}},
			[]Step{CallDriver{to("a"), Publish, "id-a"}}},
		"S10: confirmed publish of an attachment that lost its finalizer is not taken for ours": {
			Observed{Attachments: []Attachment{called(fresh("a"), published)}},
			[]Step{WriteFinalizers{to("a"), "id-a", true, true}}},
		// exactly one publish
		"driver said OK": {Observed{Attachments: []Attachment{called(begun("a"), published)}},
			[]Step{RecordAttached{to("a")}}},
		// about to be deleted
		"detach requested before the first publish": {Observed{Attachments: []Attachment{requestedAt(fresh("a"), noon)}}, nil},
		"detach requested after a publish that failed": {
			Observed{Attachments: []Attachment{requestedAt(called(begun("a"), with2(failed, func(c *Call) { c.Inputs = "before" })), noon)}},
			[]Step{RecordError{to("a"), Publish, "no space", true}}},
		"detach requested after a publish that succeeded": {Observed{Attachments: []Attachment{requestedAt(called(begun("a"), published), noon)}},
			[]Step{RecordAttached{to("a")}}},
		"published again, and the list agreed before the result was recorded": {Observed{Attachments: []Attachment{called(attached("a"), published)}},
			[]Step{RecordAttached{to("a")}}},
		"published again and recorded": {Observed{Attachments: []Attachment{called(attached("a"), recorded(published))}}, nil},
		"detach requested a minute ago": {Observed{Attachments: []Attachment{requestedAt(begun("a"), noon.Add(-time.Minute))}},
			[]Step{CallDriver{to("a"), Publish, "id-a"}}},
		"detach requested by a clock that is far ahead": {Observed{Attachments: []Attachment{requestedAt(begun("a"), noon.Add(time.Hour))}},
			[]Step{CallDriver{to("a"), Publish, "id-a"}}},
		"detach requested, deleting": {Observed{Attachments: []Attachment{requestedAt(deleting(begun("a")), noon)}},
			[]Step{CallDriver{to("a"), Unpublish, "id-a"}}},
		"publish in flight": {Observed{Attachments: []Attachment{called(begun("a"), Call{Verb: Publish, NodeID: "id-a", InFlight: true})}}, nil},
		"attached":          {Observed{Attachments: []Attachment{attached("a")}}, nil},
		"attached, and the volume's own object came later": {Observed{Attachments: []Attachment{with(attached("a"), func(a *Attachment) { a.VolumeUnprotected = true })}},
			[]Step{WriteFinalizers{to("a"), "id-a", false, true}}},
		"attached by a driver that had nothing to attach": {Observed{Attachments: []Attachment{{UID: "uid-a", Name: "a", Attached: true, VolumeUnprotected: true}}}, nil},
		"recorded as attached, and another client reset it: publish again": {
			Observed{Attachments: []Attachment{called(begun("a"), Call{Verb: Publish, NodeID: "id-a", Confirmed: true, Recorded: true})}},
			[]Step{CallDriver{to("a"), Publish, "id-a"}}},
		// failures
		"failed a moment ago": {Observed{Attachments: []Attachment{called(begun("a"), failed)}},
			[]Step{RecordError{to("a"), Publish, "no space", true}}},
		"not answered a moment ago": {Observed{Attachments: []Attachment{called(begun("a"), with2(failed, func(c *Call) { c.Message, c.Unanswered = "no answer", true }))}},
			[]Step{RecordError{to("a"), Publish, "no answer; next attempt at 2026-01-01T12:00:01Z", true}}},
		"failed, recorded": {Observed{Attachments: []Attachment{called(begun("a"), with2(failed, func(c *Call) { c.Recorded = true }))}}, nil},
		"failed, back-off over": {Observed{Attachments: []Attachment{called(begun("a"), with2(failed, func(c *Call) { c.Ended = noon.Add(-time.Second) }))}},
			[]Step{CallDriver{to("a"), Publish, "id-a"}}},
		"failed, and something changed": {Observed{Attachments: []Attachment{called(begun("a"), with2(failed, func(c *Call) { c.Inputs = "before" }))}},
			[]Step{CallDriver{to("a"), Publish, "id-a"}}},
		"no request possible": {Observed{Attachments: []Attachment{with(fresh("a"), func(a *Attachment) { a.PublishProblem = "no such node" })}},
			[]Step{RecordError{to("a"), Publish, "no such node", false}}},
		"no request possible, said already": {Observed{Attachments: []Attachment{with(fresh("a"), func(a *Attachment) { a.PublishProblem, a.AttachError = "no such node", "no such node" })}}, nil},
		// a machine that a person declared gone
		"declared gone: the finalizer goes": {Observed{Attachments: []Attachment{with(deleting(begun("a")), func(a *Attachment) { a.DeclaredGone = "id-a" })}},
			[]Step{RemoveFinalizer{to("a")}}},
		"declared gone, not deleted": {Observed{Attachments: []Attachment{with(begun("a"), func(a *Attachment) { a.DeclaredGone = "id-a" })}},
			[]Step{CallDriver{to("a"), Publish, "id-a"}}},
		"declared gone, and a call is in flight": {Observed{Attachments: []Attachment{with(called(deleting(begun("a")), Call{Verb: Unpublish, NodeID: "id-a", Sent: true, InFlight: true}),
			func(a *Attachment) { a.DeclaredGone = "id-a" })}}, nil},
		"S5: no node ID is recorded or known, and none is declared gone": {Observed{Attachments: []Attachment{with(deleting(begun("a")), func(a *Attachment) { a.NodeID, a.RecordedNodeID = "", "" })}},
			[]Step{CallDriver{to("a"), Unpublish, ""}}}, // for which there is an UnpublishProblem
		"S5: another node ID is declared gone": {Observed{Attachments: []Attachment{with(deleting(begun("a")), func(a *Attachment) { a.DeclaredGone = "id-b" })}},
			[]Step{CallDriver{to("a"), Unpublish, "id-a"}}},
		// a restored attachment
		"restored, wanted: nothing is called": {Observed{Attachments: []Attachment{with(begun("a"), func(a *Attachment) { a.RecordedNodeID, a.Restored = "id-other", "restored" })}},
			[]Step{RecordError{to("a"), Publish, "restored", false}}},
		"restored, attached": {Observed{Attachments: []Attachment{with(attached("a"), func(a *Attachment) { a.RecordedNodeID, a.Restored, a.AttachError = "id-other", "restored", "restored" })}}, nil},
		"restored, deleted: nothing is unpublished": {Observed{Attachments: []Attachment{with(deleting(begun("a")), func(a *Attachment) { a.RecordedNodeID, a.Restored = "id-other", "restored" })}},
			[]Step{RecordError{to("a"), Unpublish, "restored", false}}},
		"restored, listed there": {Observed{Attachments: []Attachment{with(deleting(fresh("a")), func(a *Attachment) {
			a.RecordedNodeID, a.Restored, a.Drift, a.OtherFinalizers = "id-other", "restored", StillPublished, true
		})}}, nil},
		"restored, deleted and declared gone": {Observed{Attachments: []Attachment{with(deleting(begun("a")), func(a *Attachment) {
			a.RecordedNodeID, a.Restored, a.DeclaredGone, a.NodeID = "id-other", "restored", "id-other", ""
		})}}, []Step{RemoveFinalizer{to("a")}}},
		"restored, wanted and declared gone": {Observed{Attachments: []Attachment{with(begun("a"), func(a *Attachment) {
			a.RecordedNodeID, a.Restored, a.DeclaredGone = "id-other", "restored", "id-other"
		})}}, []Step{RecordError{to("a"), Publish, "restored", false}}},
		"restored: its own volume waits": {Observed{Exclusive: true, Attachments: []Attachment{
			with(deleting(begun("a")), func(a *Attachment) { a.RecordedNodeID, a.Restored, a.DetachError = "id-other", "restored", "restored" }), fresh("b")}},
			[]Step{RecordError{to("b"), Publish, stillExists, false}}},
		// S1
		"S1: other one attached": {Observed{Exclusive: true, Attachments: []Attachment{attached("a"), fresh("b")}},
			[]Step{RecordError{to("b"), Publish, stillExists, false}}},
		"S1: other one uncertain": {Observed{Exclusive: true, Attachments: []Attachment{called(begun("a"), with2(failed, func(c *Call) { c.Recorded = true })), fresh("b")}},
			[]Step{RecordError{to("b"), Publish, stillExists, false}}},
		"S1: younger one published, its finalizer taken off before that was recorded": {Observed{Exclusive: true, Attachments: []Attachment{
			with(fresh("b"), func(b *Attachment) { b.Created = noon.Add(-time.Hour) }),
			called(with(begun("a"), func(a *Attachment) { a.Finalizer = false }), Call{Verb: Publish, NodeID: "id-a", Sent: true, Confirmed: true})}},
			[]Step{RecordError{to("b"), Publish, stillExists, false}, WriteFinalizers{target: to("a"), NodeID: "id-a", Attachment: true}}},
		"S1: other one detaching": {Observed{Exclusive: true, Attachments: []Attachment{deleting(attached("a")), fresh("b")}},
			[]Step{CallDriver{to("a"), Unpublish, "id-a"}, RecordError{to("b"), Publish, stillExists, false}}},
		"S1: other one unpublished, its finalizer still on": {Observed{Exclusive: true, Attachments: []Attachment{called(deleting(attached("a")), unpublished), fresh("b")}},
			[]Step{RemoveFinalizer{to("a")}, RecordError{to("b"), Publish, stillExists, false}}},
		"S1: other one kept by another client's finalizer": {Observed{Exclusive: true, Attachments: []Attachment{deleting(fresh("a")), fresh("b")}},
			[]Step{RecordError{to("b"), Publish, stillExists, false}}},
		"S1: younger one being deleted, kept by another client's finalizer": {Observed{Exclusive: true, Attachments: []Attachment{
			with(fresh("b"), func(b *Attachment) { b.Created = noon.Add(-time.Hour) }), deleting(fresh("a"))}},
			[]Step{RecordError{to("b"), Publish, stillExists, false}}},
		"S1: younger one attached, its finalizer taken off": {Observed{Exclusive: true, Attachments: []Attachment{
			with(fresh("b"), func(b *Attachment) { b.Created = noon.Add(-time.Hour) }),
			with(attached("a"), func(a *Attachment) { a.Finalizer = false })}},
			[]Step{RecordError{to("b"), Publish, stillExists, false}, WriteFinalizers{to("a"), "id-a", true, false}}},
		"S1: attached and not in the driver's list, an older one begun by another attacher: nothing is taken back": {
			Observed{Exclusive: true, Attachments: []Attachment{begun("a"), with(attached("b"), func(b *Attachment) { b.Drift = NotPublished })}},
			[]Step{RecordError{to("a"), Publish, strings.ReplaceAll(stillExists, "a for node \"node-a\"", "b for node \"node-b\""), false}}},
		"refused, listed at a node that no attachment is for: taken from there first": {
			Observed{Exclusive: true, Attachments: []Attachment{with(called(begun("a"), with2(failed, func(c *Call) { c.Ended = noon.Add(-time.Minute) })),
				func(a *Attachment) { a.Drift, a.DriftNodeID = Abandoned, "id-x" })}},
			[]Step{CallDriver{to("a"), Unpublish, "id-x"}}},
		"refused a moment ago, listed at a node that no attachment is for: the back-off holds only what failed": {
			Observed{Exclusive: true, Attachments: []Attachment{with(called(begun("a"), failed), func(a *Attachment) { a.Drift, a.DriftNodeID = Abandoned, "id-x" })}},
			[]Step{CallDriver{to("a"), Unpublish, "id-x"}}},
		"taking it from there failed a moment ago": {
			Observed{Exclusive: true, Attachments: []Attachment{with(called(begun("a"), with2(failed, func(c *Call) { c.Verb, c.NodeID = Unpublish, "id-x" })),
				func(a *Attachment) { a.Drift, a.DriftNodeID = Abandoned, "id-x" })}},
			[]Step{RecordError{to("a"), Publish, "no space", true}}},
		"refused a moment ago by a Secret, for the node ID that the node has now": {
			Observed{Attachments: []Attachment{with(called(fresh("a"), Call{Verb: Publish, NodeID: "id-old", Failures: 3}.Refuse(Publish, "id-a", "i").Fail(noon, "no secret", false)),
				func(a *Attachment) { a.VolumeProtected = true })}},
			[]Step{RecordError{to("a"), Publish, "no secret", true}}},
		"S1: refused, listed at a node whose attachment has come back: it is taken back and waits": {
			Observed{Exclusive: true, Attachments: []Attachment{begun("a"), with(called(begun("b"), with2(failed, func(c *Call) { c.NodeID = "id-b" })),
				func(b *Attachment) { b.Attached, b.Drift, b.DriftNodeID = false, Abandoned, "id-a" })}},
			[]Step{RecordError{to("a"), Publish, strings.ReplaceAll(stillExists, "a for node \"node-a\"", "b for node \"node-b\""), false}, CallDriver{to("b"), Unpublish, "id-b"}}},
		"detach that failed before: its success is recorded before the object goes": {
			Observed{Attachments: []Attachment{with(called(deleting(attached("a")), unpublished), func(a *Attachment) { a.DetachError = "busy" })}},
			[]Step{RecordDetached{to("a")}}},
		"detach that took its time: the same": {
			Observed{Attachments: []Attachment{with(called(deleting(attached("a")), unpublished), func(a *Attachment) { a.DeletedAt = noon.Add(-10 * time.Second) })}},
			[]Step{RecordDetached{to("a")}}},
		"finalizer taken off an attached volume's attachment": {Observed{Attachments: []Attachment{with(attached("a"), func(a *Attachment) { a.Finalizer = false })}},
			[]Step{WriteFinalizers{to("a"), "id-a", true, false}}},
		"begun by another attacher, which volume is not recorded": {Observed{Attachments: []Attachment{with(begun("a"), func(a *Attachment) { a.VolumeUnrecorded = true })}},
			[]Step{WriteFinalizers{to("a"), "id-a", true, false}}},
		"two that wait to begin: the older goes first": {Observed{Exclusive: true, Attachments: []Attachment{fresh("b"), fresh("a")}},
			[]Step{WriteFinalizers{to("a"), "id-a", true, true}, RecordError{to("b"), Publish, stillExists, false}}},
		"the younger has begun: the older waits": {Observed{Exclusive: true, Attachments: []Attachment{begun("a"), with(fresh("b"), func(b *Attachment) { b.Created = noon.Add(-time.Hour) })}},
			[]Step{RecordError{to("b"), Publish, stillExists, false}, CallDriver{to("a"), Publish, "id-a"}}},
		"S1: two begun by another attacher: the later is taken back first": {Observed{Exclusive: true, Attachments: []Attachment{begun("a"), begun("b")}},
			[]Step{RecordError{to("a"), Publish, strings.ReplaceAll(stillExists, "a for node \"node-a\"", "b for node \"node-b\""), false}, CallDriver{to("b"), Unpublish, "id-b"}}},
		"S1: two begun, the later undone: the first continues": {Observed{Exclusive: true, Attachments: []Attachment{begun("a"),
			called(begun("b"), Call{Verb: Unpublish, NodeID: "id-b", Confirmed: true})}},
			[]Step{CallDriver{to("a"), Publish, "id-a"}, RecordError{to("b"), Publish, stillExists, false}}},
		"S1: gone by force with a publish of unknown end": {Observed{Exclusive: true, Attachments: []Attachment{
			{UID: "uid-a", Name: "a", Node: "node-a", Gone: true, Created: noon, Inputs: "x", Call: failed}, fresh("b")}},
			[]Step{CallDriver{to("a"), Unpublish, "id-a"}, RecordError{to("b"), Publish, wasRemoved, false}}},
		"gone, and no attempt ever reached the driver": {Observed{Exclusive: true, Attachments: []Attachment{
			{UID: "uid-a", Name: "a", Node: "node-a", Gone: true, Created: noon, Inputs: "x", Call: with2(failed, func(c *Call) { c.Sent = false })}, begun("b")}},
			[]Step{Forget{to("a")}, CallDriver{to("b"), Publish, "id-b"}}},
		"gone by force, recorded as attached, no other attachment wants it": {Observed{Exclusive: true, Attachments: []Attachment{
			{UID: "uid-a", Name: "a", Gone: true, Call: with2(published, func(c *Call) { c.Recorded = true })}}}, nil},
		"gone by force and made again for the same node": {Observed{Exclusive: true, Attachments: []Attachment{
			{UID: "uid-old", Name: "a", Gone: true, Created: noon.Add(-time.Hour), Call: with2(published, func(c *Call) { c.Recorded = true })}, begun("a")}},
			[]Step{Forget{target{"uid-old"}}, CallDriver{to("a"), Publish, "id-a"}}},
		"gone by force, made again for the same node, and published": {Observed{Exclusive: true, Attachments: []Attachment{
			{UID: "uid-old", Name: "a", Gone: true, Created: noon.Add(-time.Hour), Call: with2(published, func(c *Call) { c.Recorded = true })}, called(begun("a"), published)}},
			[]Step{Forget{target{"uid-old"}}, RecordAttached{to("a")}}},
		"shared: other node's attachment is no obstacle": {Observed{Attachments: []Attachment{attached("a"), begun("b")}},
			[]Step{CallDriver{to("b"), Publish, "id-b"}}},
		// S4
		"S4: call for another attachment in flight": {Observed{Exclusive: true, Attachments: []Attachment{
			called(deleting(attached("a")), Call{Verb: Unpublish, NodeID: "id-a", InFlight: true}), deleting(attached("b"))}}, nil},
		"S4: two to detach: one call": {Observed{Exclusive: true, Attachments: []Attachment{deleting(attached("a")), deleting(attached("b"))}},
			[]Step{CallDriver{to("a"), Unpublish, "id-a"}}},
		"S1: gone by force, and the last call took the volume from another node": {Observed{Exclusive: true, Attachments: []Attachment{
			{UID: "uid-a", Name: "a", Node: "node-a", Gone: true, Created: noon,
				Call: with2(unpublished, func(c *Call) { c.NodeID, c.Sent, c.Previous = "id-x", true, []Call{published} })}, fresh("b")}},
			[]Step{CallDriver{to("a"), Unpublish, "id-a"}, RecordError{to("b"), Publish, wasRemoved, false}}},
		"gone by force, and taken from both nodes": {Observed{Exclusive: true, Attachments: []Attachment{
			{UID: "uid-a", Name: "a", Node: "node-a", Gone: true, Created: noon,
				Call: with2(unpublished, func(c *Call) { c.NodeID, c.Sent, c.Previous = "id-x", true, []Call{unpublished} })}, begun("b")}},
			[]Step{Forget{to("a")}, CallDriver{to("b"), Publish, "id-b"}}},
		// nothing was sent
		"finalizer stored by this process, nothing sent, deleting: no call": {Observed{Attachments: []Attachment{untouched(deleting(begun("a")))}},
			[]Step{RemoveFinalizer{to("a")}}},
		"nothing sent for the younger: the older goes first": {Observed{Exclusive: true, Attachments: []Attachment{untouched(begun("a")),
			with(fresh("b"), func(b *Attachment) { b.Created = noon.Add(-time.Hour) })}},
			[]Step{WriteFinalizers{to("b"), "id-b", true, true}, RecordError{to("a"), Publish, strings.ReplaceAll(stillExists, "a for node \"node-a\"", "b for node \"node-b\""), false}}},
		// S5
		"deleting, the node has another ID by now: both": {Observed{Attachments: []Attachment{
			called(with(deleting(attached("a")), func(a *Attachment) { a.NodeID = "id-new" }), unpublished)}},
			[]Step{CallDriver{to("a"), Unpublish, "id-new"}}},
		"deleting, another attachment needs the volume at the ID that the node has by now": {Observed{Attachments: []Attachment{
			called(with(deleting(attached("a")), func(a *Attachment) { a.NodeID = "id-b" }), unpublished), attached("b")}},
			[]Step{RemoveFinalizer{to("a")}}},
		"deleting, taken from both IDs": {Observed{Attachments: []Attachment{
			called(with(deleting(attached("a")), func(a *Attachment) { a.NodeID = "id-new" }), with2(unpublished, func(c *Call) {
				c.NodeID, c.Sent, c.Previous = "id-new", true, []Call{unpublished}
			}))}},
			[]Step{RemoveFinalizer{to("a")}}},
		"deleting, the recorded ID backs off: the node's present ID is tried": {Observed{Attachments: []Attachment{
			renamed(deleting(attached("a")), recorded(notFound))}}, []Step{CallDriver{to("a"), Unpublish, "id-new"}}},
		"deleting, the recorded ID is unknown, its error is recorded first": {Observed{Attachments: []Attachment{
			renamed(deleting(attached("a")), notFound)}}, []Step{RecordError{to("a"), Unpublish, "no node", true}}},
		"S5: the recorded ID is unknown, the present one confirmed, and nothing says that both are one machine": {Observed{Attachments: []Attachment{
			renamed(deleting(attached("a")), confirmedAtNew)}}, nil},
		"S5: the recorded ID is unknown, and the present one of the same machine confirmed": {Observed{Attachments: []Attachment{
			with(renamed(deleting(begun("a")), confirmedAtNew), func(a *Attachment) { a.SameMachine = "id-new" })}}, []Step{RemoveFinalizer{to("a")}}},
		"S5: the recorded ID refused, and the present one of the same machine confirmed": {Observed{Attachments: []Attachment{
			with(renamed(deleting(begun("a")), with2(confirmedAtNew, func(c *Call) {
				c.Previous = []Call{with2(notFound, func(c *Call) { c.NotFound = false })}
			})), func(a *Attachment) { a.SameMachine = "id-new" })}}, nil},
		"an earlier process has recorded another ID for one that the driver does not know": {Observed{Attachments: []Attachment{
			called(deleting(attached("a")), with2(unpublished, func(c *Call) { c.Sent, c.Previous = true, []Call{unknownOnRecord} }))}},
			[]Step{RemoveFinalizer{to("a")}}},
		"S5: the same, and this process has published there": {Observed{Attachments: []Attachment{
			called(deleting(attached("a")), with2(unpublished, func(c *Call) {
				c.Sent, c.Previous = true, []Call{with2(unknownOnRecord, func(c *Call) { c.OnRecord = false })}
			}))}},
			nil},
		"deleting": {Observed{Attachments: []Attachment{deleting(attached("a"))}},
			[]Step{CallDriver{to("a"), Unpublish, "id-a"}}},
		"S5: node came back under another id: the recorded one is sent": {Observed{Attachments: []Attachment{with(deleting(attached("a")), func(a *Attachment) { a.NodeID = "id-new" })}},
			[]Step{CallDriver{to("a"), Unpublish, "id-a"}}},
		"S5: unpublish of another id is no confirmation": {Observed{Attachments: []Attachment{called(deleting(attached("a")), Call{Verb: Unpublish, NodeID: "id-new", Confirmed: true})}},
			[]Step{CallDriver{to("a"), Unpublish, "id-a"}}},
		"S5: unpublish failed": {Observed{Attachments: []Attachment{called(deleting(attached("a")), Call{Verb: Unpublish, NodeID: "id-a", Failures: 1, Ended: noon, Message: "busy", Inputs: "i"})}},
			[]Step{RecordError{to("a"), Unpublish, "busy", true}}},
		"S5: unpublish confirmed": {Observed{Attachments: []Attachment{called(deleting(attached("a")), unpublished)}},
			[]Step{RemoveFinalizer{to("a")}}},
		"unpublish confirmed, object outlives us": {Observed{Attachments: []Attachment{with(called(deleting(attached("a")), unpublished), func(a *Attachment) { a.OtherFinalizers = true })}},
			[]Step{RecordDetached{to("a")}}},
		"deleted while the publish failed": {Observed{Attachments: []Attachment{called(deleting(begun("a")), with2(failed, func(c *Call) { c.Inputs = "live" }))}},
			[]Step{CallDriver{to("a"), Unpublish, "id-a"}}},
		"deleted while a publish is in flight: it is abandoned": {Observed{Attachments: []Attachment{
			called(deleting(begun("a")), Call{Verb: Publish, NodeID: "id-a", InFlight: true})}}, []Step{CancelCall{to("a")}}},
		"S4: deleted, and the publish that was abandoned has not ended": {Observed{Attachments: []Attachment{
			called(deleting(begun("a")), Call{Verb: Publish, NodeID: "id-a", InFlight: true, Cancelled: true})}}, nil},
		"deleted while an unpublish is in flight": {Observed{Attachments: []Attachment{
			called(deleting(begun("a")), Call{Verb: Unpublish, NodeID: "id-a", InFlight: true})}}, nil},
		"deleting without our finalizer": {Observed{Attachments: []Attachment{deleting(fresh("a"))}}, nil},
		"deleting, node id unknown": {Observed{Attachments: []Attachment{with(deleting(attached("a")), func(a *Attachment) { a.UnpublishProblem = "node ID unknown" })}},
			[]Step{RecordError{to("a"), Unpublish, "node ID unknown", false}}},
		"node came back under another id before the attach was recorded": {Observed{Attachments: []Attachment{with(begun("a"), func(a *Attachment) { a.NodeID = "id-new" })}},
			[]Step{CallDriver{to("a"), Unpublish, "id-a"}}},
		"and the old id was unpublished": {Observed{Attachments: []Attachment{called(with(begun("a"), func(a *Attachment) { a.NodeID = "id-new" }), unpublished)}},
			[]Step{WriteFinalizers{to("a"), "id-new", true, false}}},
		// shutting down
		"draining: nothing begins":              {Observed{Draining: true, Attachments: []Attachment{fresh("a"), begun("b"), deleting(attached("c"))}}, nil},
		"draining: results are recorded":        {Observed{Draining: true, Attachments: []Attachment{called(begun("a"), published)}}, []Step{RecordAttached{to("a")}}},
		"draining: detach is brought to an end": {Observed{Draining: true, Attachments: []Attachment{called(deleting(attached("a")), unpublished)}}, []Step{RemoveFinalizer{to("a")}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := Decide(noon, tt.seen, policy)
			if diff := cmp.Diff(tt.want, got.Steps, allSteps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

func with2(c Call, change func(*Call)) Call { change(&c); return c }

// An attachment that is gone does not exist any more: its detach is what the other one waits for, and the message says how to
// stop that.
func TestMessageWhileAGoneAttachmentIsDetached(t *testing.T) {
	gone := func(c Call) Attachment {
		return Attachment{UID: "uid-a", Name: "a", Node: "node-a", Gone: true, Created: noon, Inputs: "x", Call: c}
	}
	failed := Call{Verb: Unpublish, Sent: true, NodeID: "id-a", Failures: 3, Ended: noon, Message: "node is away", Inputs: "x"}
	const before = `volume can be attached to only one node: VolumeAttachment a for node "node-a" was removed before the driver confirmed the detach, which is `
	const advice = `. If that node is known not to write to the volume, restart the attacher to stop waiting`
	for name, tt := range map[string]struct {
		call Call
		want string
	}{
		"failed":    {failed, before + "retried (last error: node is away)" + advice},
		"in flight": {Call{Verb: Unpublish, Sent: true, NodeID: "id-a", InFlight: true}, before + "under way" + advice},
		"long":      {with2(failed, func(c *Call) { c.Message = strings.Repeat("x", 2000) }), before + "retried (last error: " + strings.Repeat("x", 509) + "...)" + advice},
	} {
		t.Run(name, func(t *testing.T) {
			got := Decide(noon, Observed{Exclusive: true, Attachments: []Attachment{gone(tt.call), fresh("b")}}, policy).Steps
			want := RecordError{to("b"), Publish, tt.want, false}
			if len(got) != 1 || got[0] != Step(want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestBackOff(t *testing.T) {
	tests := map[string]struct {
		call      Call
		low, high time.Duration
	}{
		"first failure": {Call{Failures: 1}, 800 * time.Millisecond, time.Second},
		"third failure": {Call{Failures: 3}, 3200 * time.Millisecond, 4 * time.Second},
		"many failures": {Call{Failures: 80}, 4 * time.Minute, 5 * time.Minute},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.call.Verb, tt.call.NodeID, tt.call.Ended, tt.call.Inputs, tt.call.Recorded = Publish, "id-a", noon, "i", true
			got := Decide(noon, Observed{Attachments: []Attachment{called(begun("a"), tt.call)}}, policy).RecheckAt.Sub(noon)
			if got < tt.low || got > tt.high {
				t.Errorf("recheck after %v, want between %v and %v", got, tt.low, tt.high)
			}
		})
	}
}

func TestTruncate(t *testing.T) {
	tests := map[string]struct{ message, want string }{
		"short":                      {"a", "a"},
		"as long as allowed":         {strings.Repeat("x", 1024), strings.Repeat("x", 1024)},
		"too long":                   {strings.Repeat("x", 1025), strings.Repeat("x", 1021) + "..."},
		"cut between two characters": {strings.Repeat("é", 600), strings.Repeat("é", 510) + "..."},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Truncate(tt.message); got != tt.want {
				t.Errorf("Cut() = %d bytes %q..., want %d bytes", len(got), got[max(0, len(got)-8):], len(tt.want))
			}
		})
	}
}

// TestFailedUnpublishOfAnEarlierNodeID (S1, S5): an unpublish of the first node ID has failed, and another node ID was called since. The first
// may still have the volume: it is not remembered as unpublished.
func TestFailedUnpublishOfAnEarlierNodeID(t *testing.T) {
	c := Call{}.Begin(Publish, "id-1", "1", false).Confirm(noon)
	c = c.Begin(Unpublish, "id-1", "1", false).Fail(noon, "refused", false)
	c = c.Begin(Unpublish, "id-2", "1", false).Confirm(noon)
	if c.unpublishedFrom("id-1") || !slices.Contains(c.publishedTo(), "id-1") {
		t.Errorf("id-1 counts as unpublished: %+v", c)
	}
	a := letGo("a")
	a.Finalizer, a.Deleting, a.RecordedNodeID, a.NodeID, a.Call = true, true, "id-1", "id-2", c
	for _, s := range Decide(noon, Observed{Exclusive: true, Attachments: []Attachment{a}}, Policy{}).Steps {
		if _, ok := s.(RemoveFinalizer); ok {
			t.Errorf("S5: the finalizer is removed although the unpublish of id-1 failed: %+v", s)
		}
	}
}
