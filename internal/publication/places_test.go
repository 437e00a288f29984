package publication

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// at is an attachment of a Node for which the given CSI node ID is registered and recorded.
func at(a Attachment, id string) Attachment {
	a.NodeID = id
	if a.RecordedNodeID != "" {
		a.RecordedNodeID = id
	}
	return a
}

// Two Nodes have one CSI node ID (harvester/harvester#6981, hetznercloud/csi-driver#685), so an unpublish for one of them takes a shared volume from
// under the pods of the other. The last attachment of a place unpublishes.
func TestPlaceOfTwoNodes(t *testing.T) {
	older := func(a Attachment) Attachment { a.Created = noon.Add(-time.Hour); return a }
	ends := deleting(older(at(attached("a"), "id")))
	inDoubt := func(until time.Time) Attachment {
		return called(ends, Call{}.Begin(Publish, "id", "i", true).Fail(noon.Add(-time.Minute), "no answer", true).DoubtUntil(until, false))
	}
	record := RecordDetached{to("a")}
	released, unpublished := RemoveFinalizer{to("a")}, CallDriver{to("a"), Unpublish, "id"}
	for name, tt := range map[string]struct {
		ends, other Attachment
		want        []Step
		waits       Reason
	}{
		"the other one is attached":                         {ends, at(attached("b"), "id"), []Step{released}, ""},
		"the other one is decided on with another key":      {ends, with(at(attached("b"), "id"), func(b *Attachment) { b.Beside = true }), []Step{released}, ""},
		"the other one may be published":                    {ends, called(at(begun("b"), "id"), Call{Verb: Publish, NodeID: "id", Sent: true, InFlight: true}), []Step{released}, CallInFlight},
		"the other one has not begun":                       {ends, at(fresh("b"), "id"), []Step{unpublished, WriteFinalizers{to("b"), "id", true, true}}, ""},
		"nothing was published for the other one":           {ends, with(untouched(at(begun("b"), "id")), func(b *Attachment) { b.PublishProblem, b.AttachError = "no", "no" }), []Step{unpublished}, RequestImpossible},
		"and it is not known what is stored for it":         {ends, with(untouched(at(begun("b"), "id")), func(b *Attachment) { b.UnconfirmedWrite = true }), []Step{Reread{to("b")}}, OtherWriterAttached},
		"the other one ends too: each unpublishes":          {ends, deleting(at(attached("b"), "id")), []Step{unpublished}, ""},
		"the other one ends by a person's word":             {ends, with(deleting(at(attached("b"), "id")), func(b *Attachment) { b.DeclaredGone = "id" }), []Step{unpublished, RemoveFinalizer{to("b")}}, ""},
		"the other one may be another cluster's":            {ends, with(at(attached("b"), "id"), func(b *Attachment) { b.Restored, b.AttachError = "restored", "restored" }), []Step{unpublished}, RestoredAttachment},
		"the other one has lost its finalizer":              {ends, with(at(attached("b"), "id"), func(b *Attachment) { b.Finalizer = false }), []Step{WriteFinalizers{to("b"), "id", true, false}}, OtherWriterAttached},
		"the driver has a new ID for the other one's node":  {ends, with(at(attached("b"), "old"), func(b *Attachment) { b.NodeID = "id" }), nil, OtherWriterAttached},
		"that is known to be of the same machine":           {ends, with(at(attached("b"), "old"), func(b *Attachment) { b.NodeID, b.SameMachine = "id", "id" }), nil, OtherWriterAttached},
		"and the Node is the same":                          {ends, with(at(attached("b"), "old"), func(b *Attachment) { b.Node, b.NodeID, b.SameMachine = "node-a", "id", "id" }), []Step{released}, ""},
		"a publish may take effect":                         {inDoubt(noon.Add(time.Minute)), at(attached("b"), "id"), nil, PublishInDoubt},
		"a publish can no longer take effect":               {inDoubt(noon.Add(-time.Second)), at(attached("b"), "id"), []Step{released}, ""},
		"the other one is elsewhere":                        {ends, attached("b"), []Step{unpublished}, ""},
		"another finalizer keeps the object":                {with(ends, func(a *Attachment) { a.OtherFinalizers = true }), at(attached("b"), "id"), []Step{record}, ""},
		"an object is gone without a detach":                {Attachment{UID: "uid-a", Name: "a", Gone: true, Call: Call{Verb: Publish, NodeID: "id", Sent: true, Confirmed: true}}, at(attached("b"), "id"), []Step{Forget{to("a")}}, ""},
		"the list still shows what was released":            {with(ends, func(a *Attachment) { a.Finalizer, a.Attached, a.Drift = false, false, StillPublished }), at(attached("b"), "id"), nil, ""},
		"an ID that changed before the attach was recorded": {with(at(begun("a"), "id"), func(a *Attachment) { a.NodeID = "new" }), at(attached("b"), "id"), []Step{WriteFinalizers{to("a"), "new", true, false}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := Decide(noon, Observed{Attachments: []Attachment{tt.ends, tt.other}}, policy)
			if diff := cmp.Diff(tt.want, got.Steps, allSteps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if tt.waits != "" && (len(got.Waits) == 0 || got.Waits[0].Reason != tt.waits) {
				t.Errorf("waits %+v, want for %s", got.Waits, tt.waits)
			}
		})
	}
}

// Two machines, each published to by an ID of its own, get one and the same new ID: a driver's upgrade that names all nodes alike. What ends first waits, for
// the driver may know its machine by that ID now, and S5: it does not rest on the other one, which will never be unpublished from the first one's ID.
func TestNewIDOfTwoMachines(t *testing.T) {
	now := func(name string) Attachment {
		return with(attached(name), func(a *Attachment) { a.NodeID, a.SameMachine = "one", "one" })
	}
	if d := Decide(noon, Observed{Attachments: []Attachment{deleting(now("a")), now("b")}}, policy); len(d.Steps) > 0 || len(d.Waits) == 0 || d.Waits[0].Attachment != "a" {
		t.Errorf("beside the other one: %v, waits %+v, want a to wait", d.Steps, d.Waits)
	}
	if d := Decide(noon, Observed{Attachments: []Attachment{deleting(now("a"))}}, policy); len(d.Steps) != 1 || d.Steps[0] != (CallDriver{target{"uid-a"}, Unpublish, "id-a"}) {
		t.Errorf("alone: %v, want the volume unpublished from the recorded ID", d.Steps)
	}
}

// What is gone was published to the ID that its Node had then. A driver's upgrade gives the machine an ID of another form, and nothing is left that says
// that both are of one machine: no unpublish is sent while an attachment of that Node has the volume there (S2). It is when that one ends.
func TestGoneAtAnEarlierIDOfTheNode(t *testing.T) {
	gone := Attachment{UID: "uid-a", Name: "a", Node: "node-b", Gone: true,
		Call: Call{}.Begin(Unpublish, "id-a", "i", true).Fail(noon.Add(-time.Hour), "not found", false)}
	unpublished := CallDriver{to("a"), Unpublish, "id-a"}
	recorded := Call{Verb: Publish, NodeID: "id-b", Sent: true, Confirmed: true}
	for name, tt := range map[string]struct {
		other Attachment
		want  []Step
		waits bool
	}{
		"attached":                {attached("b"), nil, true},
		"published, not recorded": {called(begun("b"), recorded), []Step{RecordAttached{to("b")}}, true},
		"of another Node":         {with(attached("b"), func(b *Attachment) { b.Node = "node-c" }), []Step{unpublished}, false},
		"ends":                    {deleting(attached("b")), []Step{unpublished}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got := Decide(noon, Observed{Attachments: []Attachment{gone, tt.other}}, policy)
			if diff := cmp.Diff(tt.want, got.Steps, allSteps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if waits := len(got.Waits) == 1 && got.Waits[0] == (Wait{Attachment: "a", Reason: OtherWriterAttached}); waits != tt.waits {
				t.Errorf("waits %+v", got.Waits)
			}
		})
	}
}

// An attacher that starts takes over a detach, and the driver does not know the recorded node ID any more. The object goes while the one before may still
// remove its finalizer, which it does after the driver's OK alone (S5). Liveness: it is forgotten, so that it blocks no other attachment. It is not
// while the driver may have the volume there, or if this process has published it, or the finalizer goes later.
func TestReleasedByAnEarlierProcess(t *testing.T) {
	unknown := func(c Call) Call { c.NotFound = true; return c }
	taken := unknown(Call{}.Begin(Unpublish, "id-a", "i", true).Fail(noon.Add(-time.Hour), "not found", false))
	own := unknown(Call{}.Begin(Publish, "id-a", "i", false).Confirm(noon).Begin(Unpublish, "id-a", "i", true).Fail(noon.Add(-time.Hour), "not found", false))
	known := taken
	known.NotFound = false
	unpublished := []Step{CallDriver{to("a"), Unpublish, "id-a"}}
	for name, tt := range map[string]struct {
		call     Call
		released bool
		want     []Step
	}{
		"taken over":                  {taken, true, []Step{Forget{to("a")}}},
		"another client's write":      {taken, false, unpublished},
		"the driver may have it":      {known, true, unpublished},
		"a call in flight":            {Call{}.Begin(Unpublish, "id-a", "i", true), true, nil},
		"published by this process":   {own, true, unpublished},
		"a place that was published":  {unknown(own.Begin(Unpublish, "id-c", "i", true).Fail(noon.Add(-time.Hour), "not found", false)), true, []Step{CallDriver{to("a"), Unpublish, "id-c"}}},
		"a publish that may be late":  {taken.DoubtUntil(noon.Add(time.Hour), false), true, unpublished},
		"its unpublish was confirmed": {Call{}.Begin(Unpublish, "id-a", "i", true).Confirm(noon), true, []Step{Forget{to("a")}}},
	} {
		t.Run(name, func(t *testing.T) {
			gone := Attachment{UID: "uid-a", Name: "a", Node: "node-b", Gone: true, Released: tt.released, Call: tt.call}
			got := Decide(noon, Observed{Exclusive: true, Attachments: []Attachment{gone, fresh("b")}}, policy)
			mine := slices.DeleteFunc(got.Steps, func(s Step) bool { return s.Target() != "uid-a" })
			if diff := cmp.Diff(tt.want, mine, allSteps, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

// The controller has recorded the node's new ID on both attachments, and the watch of CSINodes is behind: for the one whose recorded ID the node seems to have
// still, that looks outdated. It counts, so that the volume stays at the machine (S2). It is no reason to believe that the other one unpublishes there (S5).
func TestWatchOfNodesIsBehind(t *testing.T) {
	at := func(name, recorded string) Attachment {
		return with(attached(name), func(a *Attachment) {
			a.Node, a.RecordedNodeID, a.NodeID, a.SameMachine = "node", recorded, "id-2", "id-3"
		})
	}
	got := Decide(noon, Observed{Attachments: []Attachment{deleting(at("a", "id-1")), at("b", "id-2")}}, policy)
	if len(got.Steps) > 0 || len(got.Waits) != 1 || got.Waits[0].Reason != OtherWriterAttached {
		t.Errorf("steps %v, waits %+v", got.Steps, got.Waits)
	}
	got = Decide(noon, Observed{Attachments: []Attachment{deleting(at("a", "id-1")), deleting(at("b", "id-2"))}}, policy)
	if diff := cmp.Diff([]Step{CallDriver{to("a"), Unpublish, "id-1"}}, got.Steps, allSteps); diff != "" {
		t.Errorf("both end (-want +got):\n%s", diff)
	}
}
