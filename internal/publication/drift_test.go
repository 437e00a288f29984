package publication

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"belay.dev/belay/internal/decision"
)

// claimed is a claim of an attachment whose handle is "vol".
func claimed(a Attachment) ExpectedAttachment {
	return ExpectedAttachment{Attachment: a, Version: "1", Handle: "vol", Exclusive: func() bool { return true }}
}

func sharing(c ExpectedAttachment) ExpectedAttachment {
	c.Exclusive = func() bool { return false }
	return c
}

// letGo is a released attachment that other finalizers keep.
func letGo(name string) Attachment {
	return with(deleting(begun(name)), func(a *Attachment) { a.Finalizer, a.OtherFinalizers = false, true })
}

// refusedHere is an attachment whose publish failed.
func refusedHere() Attachment {
	return with(begun("a"), func(a *Attachment) {
		a.Call = Call{Verb: Publish, NodeID: "id-a", Sent: true, Failures: 1, Ended: noon}
	})
}

// listing says that "vol" is published to some nodes.
func listing(began time.Time, ids ...string) Listing {
	return Listing{Began: began, Volumes: map[string]*Entry{"vol": {NodeIDs: ids}},
		Nodes: map[string]bool{"id-a": true, "id-b": true, "id-c": true}}
}

// unused: no Node lists anything in use.
func unused(*ExpectedAttachment, string) decision.Knowledge { return decision.No }

func TestDriftOfAnAttachment(t *testing.T) {
	tests := map[string]struct {
		claim  ExpectedAttachment
		others []ExpectedAttachment
		list   []string
		want   Drift
	}{
		"attached, listed":                           {claim: claimed(attached("a")), list: []string{"id-a"}},
		"attached, listed nowhere":                   {claim: claimed(attached("a")), want: NotPublished},
		"attached, listed here and at unknown nodes": {claim: claimed(attached("a")), list: []string{"what", "id-a"}},
		"attached, listed under an unknown id: may be this node in another form": {claim: claimed(attached("a")), list: []string{"ID-A"}},
		"S1: exclusive, listed at another node":                                  {claim: claimed(attached("a")), list: []string{"id-b"}, want: PublishedElsewhere},
		"S1: exclusive, listed here and at another node":                         {claim: claimed(attached("a")), list: []string{"id-a", "id-b"}, want: PublishedElsewhere},
		"shared, listed here and at another node":                                {claim: sharing(claimed(attached("a"))), list: []string{"id-a", "id-b"}},
		"exclusive, listed twice here":                                           {claim: claimed(attached("a")), list: []string{"id-a", "id-a"}},
		"the node has another id now, listed at both":                            {claim: claimed(with(attached("a"), func(a *Attachment) { a.NodeID = "id-b" })), list: []string{"id-a", "id-b"}},
		"shared, listed at another node":                                         {claim: sharing(claimed(attached("a"))), list: []string{"id-b"}, want: NotPublished},
		"shared, listed at another node and an unknown one":                      {claim: sharing(claimed(attached("a"))), list: []string{"id-b", "x"}},
		"the node has another id now":                                            {claim: claimed(with(attached("a"), func(a *Attachment) { a.NodeID = "id-new" }))},
		"the node is not there":                                                  {claim: claimed(with(attached("a"), func(a *Attachment) { a.NodeID = "" }))},
		"the node has another id now, listed at the recorded one":                {claim: claimed(with(attached("a"), func(a *Attachment) { a.NodeID = "id-new" })), list: []string{"id-a"}},
		"not attached, listed":                                                   {claim: claimed(begun("a")), list: []string{"id-a"}},
		"not attached, not listed":                                               {claim: claimed(begun("a"))},
		"made after the list was begun":                                          {claim: func() ExpectedAttachment { c := claimed(attached("a")); c.Handle = "new"; return c }()},
		"deleting, listed":                                                       {claim: claimed(deleting(attached("a"))), list: []string{"id-a"}},
		"deleting, not listed":                                                   {claim: claimed(deleting(attached("a")))},
		"released, listed":                                                       {claim: claimed(letGo("a")), list: []string{"id-a"}, want: StillPublished},
		"released, listed among others":                                          {claim: claimed(letGo("a")), list: []string{"x", "id-a"}, want: StillPublished},
		"released, not listed":                                                   {claim: claimed(letGo("a")), list: []string{"id-b"}},
		"released, node id never recorded":                                       {claim: claimed(with(letGo("a"), func(a *Attachment) { a.RecordedNodeID = "" })), list: []string{"id-a"}},
		"finalizer taken off by force while recorded as attached":                {claim: claimed(with(letGo("a"), func(a *Attachment) { a.Attached = true })), list: []string{"id-a"}},
		"S5: released, the node has another id now: the recorded one is looked for": {
			claim: claimed(with(letGo("a"), func(a *Attachment) { a.NodeID = "id-new" })), list: []string{"id-new"}},
		"released, another attachment may need it there": {claim: claimed(letGo("a")), list: []string{"id-a"},
			others: []ExpectedAttachment{claimed(with(attached("b"), func(b *Attachment) { b.NodeID, b.RecordedNodeID = "id-a", "id-a" }))}},
		"released, another attachment, not begun, will need it there": {claim: claimed(letGo("a")), list: []string{"id-a"},
			others: []ExpectedAttachment{claimed(with(fresh("b"), func(b *Attachment) { b.NodeID = "id-a" }))}},
		"refused, listed at another node": {claim: claimed(refusedHere()), list: []string{"id-b"}, want: Abandoned},
		"refused, listed at a node that an attachment is for": {claim: claimed(refusedHere()), list: []string{"id-b"},
			others: []ExpectedAttachment{claimed(fresh("b"))}},
		"refused, listed at a node whose attachment was released": {claim: claimed(refusedHere()), list: []string{"id-b"},
			others: []ExpectedAttachment{claimed(with(letGo("b"), func(b *Attachment) { b.Attached = true }))}, want: Abandoned},
		"refused, listed at a node and at one that is not known": {claim: claimed(refusedHere()), list: []string{"id-b", "x"}},
		"refused, listed here":         {claim: claimed(refusedHere()), list: []string{"id-a"}},
		"refused, shared":              {claim: sharing(claimed(refusedHere())), list: []string{"id-b"}},
		"refused, not wanted any more": {claim: claimed(deleting(refusedHere())), list: []string{"id-b"}},
		"released, others need it elsewhere": {claim: claimed(letGo("a")), list: []string{"id-a", "id-b"},
			others: []ExpectedAttachment{claimed(attached("b"))}, want: StillPublished},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := NewComparison(time.Minute)
			seen := map[Drift]int{}
			for i := range 2 {
				at, claims := noon.Add(time.Duration(i)*time.Minute), append([]ExpectedAttachment{tt.claim}, tt.others...)
				list := listing(at, tt.list...)
				list.Ask(claims, unused)
				result := c.Compare(at.Add(time.Second), list, claims)
				maps.Copy(seen, result.Seen)
				if confirmed := result.Confirmed["uid-a"] != NoDrift; confirmed != (i == 1 && tt.want != NoDrift) {
					t.Errorf("listing %d: confirmed %v", i+1, result.Confirmed)
				}
			}
			if tt.want == NoDrift && len(seen) > 0 || tt.want != NoDrift && seen[tt.want] == 0 {
				t.Errorf("drifts %v, want %q", seen, tt.want)
			}
		})
	}
}

// S2: what the driver lists at a node without an attachment is Abandoned only if two listings in a row, and a look at the Nodes after
// each, say that it is not used there.
func TestAbandonedOnlyWhereNoNodeListsIt(t *testing.T) {
	type looks [2]map[string]decision.Knowledge // by node ID, after each listing
	no, yes := decision.No, decision.Yes
	for name, tt := range map[string]struct {
		list  []string
		looks looks
		soon  bool   // the second list is out of turn
		want  string // node ID
		held  string
	}{
		"in use nowhere":              {[]string{"id-b"}, looks{{"id-b": no}, {"id-b": no}}, false, "id-b", ""},
		"in use":                      {[]string{"id-b"}, looks{{"id-b": yes}, {"id-b": yes}}, false, "", "id-b"},
		"not known":                   {[]string{"id-b"}, looks{}, false, "", "id-b"},
		"in use by the second look":   {[]string{"id-b"}, looks{{"id-b": no}, {"id-b": yes}}, false, "", "id-b"},
		"not known by the first":      {[]string{"id-b"}, looks{{}, {"id-b": no}}, false, "", ""},
		"another place is not in use": {[]string{"id-b", "id-c"}, looks{{"id-b": yes, "id-c": no}, {"id-b": yes, "id-c": no}}, false, "id-c", ""},
		// A kubelet lists what it wants to mount. Where the storage does not have it, that holds nothing back.
		"in use where it is not listed": {[]string{"id-b"}, looks{{"id-b": no, "id-c": yes}, {"id-b": no, "id-c": yes}}, false, "id-b", ""},
		"asked twice in a moment":       {[]string{"id-b"}, looks{{"id-b": no}, {"id-b": no}}, true, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, claims := NewComparison(time.Minute), []ExpectedAttachment{claimed(refusedHere())}
			var result Result
			for i, look := range tt.looks {
				at := noon.Add(time.Duration(i) * time.Minute)
				if tt.soon {
					at = noon.Add(time.Duration(i) * time.Second)
				}
				list := listing(at, tt.list...)
				list.Ask(claims, func(_ *ExpectedAttachment, nodeID string) decision.Knowledge { return look[nodeID] })
				result = c.Compare(at.Add(time.Second), list, claims)
			}
			if got := result.At["uid-a"]; got != tt.want || (result.Confirmed["uid-a"] == Abandoned) != (tt.want != "") {
				t.Errorf("unpublished at %q (%v), want %q", got, result.Confirmed, tt.want)
			}
			if got := result.Held["uid-a"]; got != tt.held {
				t.Errorf("held back at %q, want %q", got, tt.held)
			}
		})
	}
}

// A list that shows the volume at this node alone, after lists that had it nowhere and a publish without an answer, shows that the publish
// took effect (kubernetes/cloud-provider-openstack#3124, harvester/harvester#10889).
func TestPublishThatTookEffectIsFoundInTheList(t *testing.T) {
	nowhere, here := []string{}, []string{"id-a"}
	unanswered := func(c *ExpectedAttachment) { c.Unanswered = true }
	after := [][]string{nowhere, nowhere, here, here}
	for name, tt := range map[string]struct {
		lists  [][]string
		change func(*ExpectedAttachment)
		quiet  bool // the publish is not tried again
		want   bool
	}{
		"nowhere, then here":                   {lists: after, change: unanswered, want: true},
		"shared, the same":                     {lists: after, change: func(c *ExpectedAttachment) { *c = sharing(*c); c.Unanswered = true }, want: true},
		"once nowhere":                         {lists: [][]string{nowhere, here, here, here}, change: unanswered},
		"here from the start: a pod may run":   {lists: [][]string{here, here, here, here}, change: unanswered},
		"here in one list":                     {lists: after[:3], change: unanswered},
		"here, and elsewhere":                  {lists: [][]string{nowhere, nowhere, {"id-a", "id-b"}, {"id-a", "id-b"}}, change: unanswered},
		"elsewhere in between":                 {lists: [][]string{nowhere, nowhere, {"id-b"}, here, here}, change: unanswered},
		"every publish was answered":           {lists: after, change: func(*ExpectedAttachment) {}},
		"the publish is not tried again":       {lists: after, change: unanswered, quiet: true},
		"the node has another ID":              {lists: after, change: func(c *ExpectedAttachment) { c.Unanswered, c.NodeID = true, "id-new" }},
		"attached":                             {lists: after, change: func(c *ExpectedAttachment) { c.Unanswered, c.Attached = true, true }},
		"not wanted any more":                  {lists: after, change: func(c *ExpectedAttachment) { *c = claimed(deleting(c.Attachment)); c.Unanswered = true }},
		"listed under an ID that is not known": {lists: [][]string{nowhere, nowhere, {"what"}, {"what"}}, change: unanswered},
	} {
		t.Run(name, func(t *testing.T) {
			c, claim := NewComparison(time.Minute), claimed(refusedHere())
			tt.change(&claim)
			var result Result
			for i, ids := range tt.lists {
				at := noon.Add(time.Duration(i) * time.Minute)
				if !tt.quiet {
					claim.Call.Ended, claim.Version = at.Add(-10*time.Second), fmt.Sprint(i)
				}
				result = c.Compare(at.Add(time.Second), listing(at, ids...), []ExpectedAttachment{claim})
			}
			if got := result.Confirmed["uid-a"] == HalfPublished; got != tt.want || got && result.At["uid-a"] != "id-a" {
				t.Errorf("confirmed %v at %q, want %v", result.Confirmed, result.At["uid-a"], tt.want)
			}
		})
	}
}

// S5: NOT_FOUND to an unpublish is no OK. Together with lists that show others, and have had the volume nowhere for vanishedAfter, it is.
func TestNotFoundAndListedNowhere(t *testing.T) {
	minutes := int(vanishedAfter / time.Minute)
	for name, tt := range map[string]struct {
		lists  int // one a minute, after the first
		change func(*ExpectedAttachment)
		ids    func(minute int) []string
		others []string // where the list has another volume
		once   bool     // the unpublish is not tried again
		want   bool
	}{
		"for long enough":              {lists: minutes, others: []string{"id-b"}, want: true},
		"not yet":                      {lists: minutes - 1, others: []string{"id-b"}},
		"the list shows no others":     {lists: 3 * minutes},
		"the list shows unknown nodes": {lists: 3 * minutes, others: []string{"what"}},
		"listed in between": {lists: minutes, others: []string{"id-b"}, ids: func(minute int) []string {
			return map[int][]string{3: {"id-a"}}[minute]
		}},
		"listed at an unknown node in between": {lists: minutes, others: []string{"id-b"}, ids: func(minute int) []string {
			return map[int][]string{3: {"what"}}[minute]
		}},
		"another answer":  {lists: 3 * minutes, others: []string{"id-b"}, change: func(c *ExpectedAttachment) { c.Call.NotFound = false }},
		"wanted":          {lists: 3 * minutes, others: []string{"id-b"}, change: func(c *ExpectedAttachment) { c.Deleting = false }},
		"released before": {lists: 3 * minutes, others: []string{"id-b"}, change: func(c *ExpectedAttachment) { c.Finalizer = false }},
		"asked once":      {lists: 3 * minutes, others: []string{"id-b"}, once: true},
	} {
		t.Run(name, func(t *testing.T) {
			c, claim := NewComparison(time.Minute), claimed(deleting(attached("a")))
			claim.Call = Call{Verb: Unpublish, NodeID: "id-a", Sent: true, Failures: 1, NotFound: true, Ended: noon.Add(-time.Hour)}
			if tt.change != nil {
				tt.change(&claim)
			}
			confirmed := -1
			for i := range tt.lists + 1 {
				at := noon.Add(time.Duration(i) * time.Minute)
				if claim.Version = fmt.Sprint(i); !tt.once {
					claim.Call.Ended = at.Add(-10 * time.Second)
				}
				list := listing(at)
				if tt.ids != nil {
					list = listing(at, tt.ids(i)...)
				}
				list.Volumes["other"] = &Entry{NodeIDs: tt.others}
				if c.Compare(at.Add(time.Second), list, []ExpectedAttachment{claim}).Confirmed["uid-a"] == Vanished && confirmed < 0 {
					confirmed = i
				}
			}
			if got := confirmed >= 0; got != tt.want || got && confirmed != minutes {
				t.Errorf("confirmed in minute %d, want %v", confirmed, tt.want)
			}
		})
	}
}

// While a list contradicts what the driver has confirmed, it shows nothing of a volume that it leaves out.
func TestNotFoundAndAListThatIsDistrusted(t *testing.T) {
	c, claim, other := NewComparison(time.Minute), claimed(deleting(attached("a"))), claimed(attached("b"))
	other.Handle = "other"
	claim.Call = Call{Verb: Unpublish, NodeID: "id-a", Sent: true, Failures: 1, NotFound: true}
	for i := range 40 {
		at := noon.Add(time.Duration(i) * time.Minute)
		claim.Call.Ended = at.Add(-10 * time.Second)
		list := listing(at)
		list.Volumes["other"], list.Volumes["third"] = &Entry{}, &Entry{NodeIDs: []string{"id-c"}}
		result := c.Compare(at.Add(time.Second), list, []ExpectedAttachment{claim, other})
		if result.Confirmed["uid-a"] != NoDrift {
			t.Fatalf("minute %d: %v", i, result.Confirmed)
		}
		if result.Confirmed["uid-b"] == NotPublished {
			other.Call = Call{Verb: Publish, NodeID: "id-b", Sent: true, Confirmed: true, Recorded: true, Ended: at.Add(10 * time.Second)}
		}
	}
}

// round is one listing of a life: its result, in words.
type round struct {
	listed bool // at id-a
	change func(*ExpectedAttachment)
	want   string
}

func words(r Result) string {
	switch {
	case len(r.Resolved) > 0:
		return "called off"
	case len(r.Repeated) > 0:
		return fmt.Sprint("repeated, distrusted ", r.Distrusted)
	case len(r.Repaired) > 0:
		return "mended"
	case len(r.Confirmed) > 0:
		return "confirmed"
	case len(r.Seen) > 0:
		return "seen"
	}
	return ""
}

// One attachment through several listings, a minute apart, each of which takes ten
// seconds.
func TestDriftIsConfirmedByTwoListings(t *testing.T) {
	at := func(minutes, seconds int) time.Time {
		return noon.Add(time.Duration(60*minutes+seconds) * time.Second)
	}
	confirmedAt := func(when time.Time) func(*ExpectedAttachment) {
		return func(c *ExpectedAttachment) {
			c.Drift, c.Call = NoDrift, Call{Verb: Publish, NodeID: "id-a", Sent: true, Confirmed: true, Recorded: true, Ended: when}
		}
	}
	marked := func(c *ExpectedAttachment) { c.Drift = NotPublished }
	tests := map[string][]round{
		"once is not enough": {{want: "seen"}, {listed: true}, {want: "seen"}, {want: "confirmed"}},
		"the attachment changed in between": {{want: "seen"}, {change: func(c *ExpectedAttachment) { c.Version = "2" }},
			{want: "confirmed"}},
		"a call ended while the list was read": {{change: confirmedAt(at(0, 5))}, {want: "seen"}, {want: "confirmed"}},
		"a call ended between the lists":       {{want: "seen"}, {change: confirmedAt(at(0, 30))}, {want: "confirmed"}},
		"a call is in flight":                  {{change: func(c *ExpectedAttachment) { c.Call.InFlight = true }}, {change: func(c *ExpectedAttachment) { c.Call.InFlight = false }, want: "seen"}, {want: "confirmed"}},
		"repaired, and drifted again later": {{want: "seen"}, {want: "confirmed"}, {listed: true, change: confirmedAt(at(1, 20)), want: "mended"},
			{want: "seen"}, {want: "confirmed"}},
		"not confirmed twice while it is tried": {{want: "seen"}, {want: "confirmed"}, {change: marked}, {}, {}},
		"called off before anything was tried":  {{want: "seen"}, {want: "confirmed"}, {listed: true, change: marked, want: "called off"}},
		"not called off after a failure": {{want: "seen"}, {want: "confirmed"},
			{listed: true, change: func(c *ExpectedAttachment) { c.Drift, c.AttachError = NotPublished, "no" }}, {listed: true}},
		// external-attacher#291, #416: one call at minute 1, the next ones two, four and
		// eight minutes after it showed that they did not help.
		"the list never shows it": {{want: "seen"}, {want: "confirmed"},
			{change: confirmedAt(at(1, 20)), want: "repeated, distrusted va"}, {}, {want: "confirmed"},
			{change: confirmedAt(at(4, 20)), want: "repeated, distrusted "}, {}, {}, {}, {want: "confirmed"},
			{change: confirmedAt(at(9, 20)), want: "repeated, distrusted "}, {}, {}, {}, {}, {}, {}, {}, {want: "confirmed"}},
		"the list lagged behind": {{want: "seen"}, {want: "confirmed"}, {change: confirmedAt(at(1, 20)), want: "repeated, distrusted va"}, {listed: true, want: "mended"}},
	}
	for name, rounds := range tests {
		t.Run(name, func(t *testing.T) {
			c := NewComparison(time.Minute)
			claim := claimed(attached("a"))
			claim.Name = "va"
			for i, r := range rounds {
				if r.change != nil {
					r.change(&claim)
				}
				list := listing(at(i, 0))
				if r.listed {
					list = listing(at(i, 0), "id-a")
				}
				if got := words(c.Compare(at(i, 10), list, []ExpectedAttachment{claim})); got != r.want {
					t.Fatalf("listing %d: %q, want %q", i, got, r.want)
				}
			}
		})
	}
}

// A list that cannot be trusted does not cause many calls; with one that can, many attachments are repaired soon.
func TestFewRepairsUntilOneHelped(t *testing.T) {
	const all = 1000
	tests := map[string]struct {
		helps bool
		want  []int // repaired in each pass
	}{
		"the list shows what was repaired": {true, []int{0, 10, 40, 160, 640, 150, 0}},
		"the list never shows it":          {false, []int{0, 10, 1, 1, 1, 1, 1, 1}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := NewComparison(time.Minute)
			claims := make([]ExpectedAttachment, all)
			published := map[string]bool{}
			for i := range claims {
				claims[i] = claimed(attached("a"))
				claims[i].UID, claims[i].Name, claims[i].Handle = fmt.Sprint("uid-", i), fmt.Sprint("va-", i), fmt.Sprint("vol-", i)
			}
			var got []int
			for pass := range tt.want {
				began := noon.Add(time.Duration(pass) * time.Minute)
				list := listing(began)
				for _, claim := range claims {
					list.Volumes[claim.Handle] = &Entry{}
					if published[claim.UID] {
						list.Volumes[claim.Handle] = &Entry{NodeIDs: []string{"id-a"}}
					}
				}
				result := c.Compare(began.Add(time.Second), list, claims)
				got = append(got, len(result.Confirmed))
				for i := range claims {
					if result.Confirmed[claims[i].UID] == NoDrift {
						continue
					}
					claims[i].Call = Call{Verb: Publish, NodeID: "id-a", Sent: true, Confirmed: true, Recorded: true, Ended: began.Add(10 * time.Second)}
					published[claims[i].UID] = tt.helps
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("repaired in each pass (-want +got):\n%s", diff)
			}
		})
	}
}

// What was remembered of attachments that are gone is forgotten.
func TestComparisonForgets(t *testing.T) {
	c := NewComparison(time.Minute)
	c.Compare(noon.Add(time.Second), listing(noon), []ExpectedAttachment{claimed(attached("a"))})
	c.Compare(noon.Add(time.Minute), listing(noon.Add(time.Minute)), nil)
	if len(c.suspect) != 0 {
		t.Errorf("%d remembered", len(c.suspect))
	}
}

// What Decide makes of a drift.
func TestDecideOnDrift(t *testing.T) {
	lost := func(a Attachment) Attachment { a.Drift = NotPublished; return a }
	still := func(a Attachment) Attachment { a.Drift = StillPublished; return a }
	recorded := Call{Verb: Publish, Sent: true, NodeID: "id-a", Confirmed: true, Recorded: true}
	failed := Call{Verb: Publish, Sent: true, NodeID: "id-a", Failures: 1, Ended: noon, Message: "no", Inputs: "i", Republish: true}
	tests := map[string]struct {
		seen []Attachment
		want []Step
	}{
		"not published: publish again":                        {[]Attachment{lost(attached("a"))}, []Step{CallDriver{to("a"), Publish, "id-a"}}},
		"not published, published by this process: the same":  {[]Attachment{called(lost(attached("a")), recorded)}, []Step{CallDriver{to("a"), Publish, "id-a"}}},
		"published again: record":                             {[]Attachment{called(lost(attached("a")), with2(recorded, func(c *Call) { c.Recorded = false }))}, []Step{RecordAttached{to("a")}}},
		"failed: the error is recorded":                       {[]Attachment{called(lost(attached("a")), failed)}, []Step{RecordError{to("a"), Publish, "no", true}}},
		"failed, recorded: waits":                             {[]Attachment{called(lost(attached("a")), with2(failed, func(c *Call) { c.Recorded = true }))}, nil},
		"failed, back-off over: it is tried again":            {[]Attachment{called(lost(attached("a")), with2(failed, func(c *Call) { c.Ended = noon.Add(-time.Second) }))}, []Step{CallDriver{to("a"), Publish, "id-a"}}},
		"S10: not published, without our finalizer":           {[]Attachment{lost(with(attached("a"), func(a *Attachment) { a.Finalizer = false }))}, []Step{WriteFinalizers{to("a"), "id-a", true, false}}},
		"not published, being deleted: only detached":         {[]Attachment{lost(deleting(attached("a")))}, []Step{CallDriver{to("a"), Unpublish, "id-a"}}},
		"S1: not published, another one may be published":     {[]Attachment{lost(attached("a")), deleting(attached("b"))}, []Step{CallDriver{to("b"), Unpublish, "id-b"}}},
		"S4: not published, a call for another one in flight": {[]Attachment{lost(attached("a")), called(deleting(attached("b")), Call{Verb: Unpublish, NodeID: "id-b", InFlight: true})}, nil},
		"S5: not published, the node has another id: no call": {[]Attachment{lost(with(attached("a"), func(a *Attachment) { a.NodeID = "id-new" }))}, nil},
		"not published, and the next one waits":               {[]Attachment{lost(attached("a")), with(fresh("b"), func(b *Attachment) { b.AttachError = stillExists })}, []Step{CallDriver{to("a"), Publish, "id-a"}}},
		"still published: unpublish the recorded id":          {[]Attachment{still(with(letGo("a"), func(a *Attachment) { a.NodeID = "id-new" }))}, []Step{CallDriver{to("a"), Unpublish, "id-a"}}},
		"still published, another one may need it there":      {[]Attachment{still(letGo("a")), with(attached("b"), func(b *Attachment) { b.RecordedNodeID, b.NodeID = "id-a", "id-a" })}, nil},
		"S4: still published, a call for another one":         {[]Attachment{still(letGo("a")), called(attached("b"), Call{Verb: Publish, NodeID: "id-b", InFlight: true})}, nil},
		"half published: unpublish first": {[]Attachment{with(called(begun("a"), with2(failed, func(c *Call) { c.Republish = false })),
			func(a *Attachment) { a.Drift, a.DriftNodeID = HalfPublished, "id-a" })}, []Step{CallDriver{to("a"), Unpublish, "id-a"}}},
		"half published, that unpublish failed": {[]Attachment{with(called(begun("a"), with2(failed, func(c *Call) { c.Verb, c.Recorded = Unpublish, true })),
			func(a *Attachment) { a.Drift, a.DriftNodeID = HalfPublished, "id-a" })}, nil},
		"half published, unpublished: publish": {[]Attachment{called(with(begun("a"), func(a *Attachment) { a.AttachError = "no" }), Call{Verb: Unpublish, NodeID: "id-a", Sent: true, Confirmed: true})},
			[]Step{CallDriver{to("a"), Publish, "id-a"}}},
		"vanished: released": {[]Attachment{with(called(with(deleting(attached("a")), func(a *Attachment) { a.Attached = false }), Call{Verb: Unpublish, NodeID: "id-a", Sent: true, Failures: 1, Ended: noon}),
			func(a *Attachment) { a.Drift = Vanished })}, []Step{RemoveFinalizer{to("a")}}},
		"S4: vanished, a call in flight": {[]Attachment{with(called(deleting(attached("a")), Call{Verb: Unpublish, NodeID: "id-a", Sent: true, InFlight: true}),
			func(a *Attachment) { a.Drift = Vanished })}, nil},
		"unpublished again": {[]Attachment{called(letGo("a"), Call{Verb: Unpublish, NodeID: "id-a", Confirmed: true})}, nil},
		"unpublished again after a failure: the error goes":    {[]Attachment{called(with(letGo("a"), func(a *Attachment) { a.DetachError = "no" }), Call{Verb: Unpublish, NodeID: "id-a", Confirmed: true})}, []Step{RecordDetached{to("a")}}},
		"unpublished again, failed":                            {[]Attachment{called(still(letGo("a")), Call{Verb: Unpublish, NodeID: "id-a", Failures: 1, Ended: noon, Message: "no", Inputs: "i"})}, []Step{RecordError{to("a"), Unpublish, "no", true}}},
		"gone by force after a failed second publish: it runs": {[]Attachment{{UID: "uid-a", Name: "a", Gone: true, Call: failed}}, nil},
		"gone by force after a failed second publish, wanted elsewhere": {[]Attachment{{UID: "uid-a", Name: "a", Node: "node-a", Gone: true, Call: failed},
			with(fresh("b"), func(b *Attachment) { b.AttachError = stillExists })}, []Step{CallDriver{to("a"), Unpublish, "id-a"}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := Decide(noon, Observed{Exclusive: true, Attachments: tt.seen}, policy)
			if diff := cmp.Diff(tt.want, got.Steps, cmpopts.EquateEmpty(), allSteps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

// A comparison finds the same without the attachments that it Confirms, over many listings in which drifts come, are repaired, and come again.
func TestConfirmedAttachmentsMayBeLeftOut(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BELAY_SEED"); text != "" {
		if _, err := fmt.Sscan(text, &seed); err != nil {
			t.Fatalf("BELAY_SEED: %v", err)
		}
	}
	t.Logf("BELAY_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	drifts, left := map[Drift]int{}, 0
	for range 400 {
		claims := randomClaims(random)
		all, few := NewComparison(time.Minute), NewComparison(time.Minute)
		for n := range 12 {
			now := noon.Add(time.Duration(n) * time.Minute)
			list := Listing{Began: now, Volumes: map[string]*Entry{}, Nodes: map[string]bool{"id-a": true, "id-b": true, "id-c": true}}
			for _, handle := range []string{"v", "w", "x"} {
				list.Volumes[handle] = &Entry{NodeIDs: randomIDs(random)}
			}
			some := unconfirmed(few, list, claims)
			left += len(claims) - len(some)
			list.Ask(some, func(*ExpectedAttachment, string) decision.Knowledge { return decision.Knowledge(random.IntN(3)) })
			want, got := all.Compare(now, list, claims), few.Compare(now, list, some)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("listing %d (-all +few):\n%s", n, diff)
			}
			if diff := cmp.Diff(all, few, cmp.AllowUnexported(Comparison{}, suspect{})); diff != "" {
				t.Fatalf("kept after listing %d (-all +few):\n%s", n, diff)
			}
			carryOut(random, now, got, claims)
			for _, drift := range got.Confirmed {
				drifts[drift]++
			}
		}
	}
	t.Logf("%d left out, confirmed %v", left, drifts)
	if left == 0 || drifts[NotPublished] == 0 || drifts[StillPublished] == 0 || drifts[Abandoned] == 0 {
		t.Error("nothing was left out, or a drift did not occur")
	}
}

// unconfirmed are the attachments that have to be compared, as the attacher chooses them.
func unconfirmed(c *Comparison, list Listing, claims []ExpectedAttachment) []ExpectedAttachment {
	without := func(needed map[string]bool) []ExpectedAttachment {
		return slices.DeleteFunc(slices.Clone(claims), func(e ExpectedAttachment) bool {
			return !needed[e.Handle] && c.Confirms(list, e.Handle, e.Attachment)
		})
	}
	return without(HoldersNeeded(without(nil)))
}

func randomIDs(random *rand.Rand) (ids []string) {
	for _, id := range []string{"id-a", "id-b", "id-c", "id-other"} {
		if random.IntN(5) < 2 && (id != "id-other" || random.IntN(4) == 0) {
			ids = append(ids, id)
		}
	}
	return ids
}

func randomClaims(random *rand.Rand) (claims []ExpectedAttachment) {
	for _, handle := range []string{"v", "w", "x"} {
		exclusive := random.IntN(2) == 0
		for _, node := range []string{"a", "b", "c"} {
			var a Attachment
			switch random.IntN(6) {
			case 0:
				a = letGo(node)
			case 1:
				a = begun(node)
				a.Call = Call{Verb: Publish, NodeID: "id-" + node, Sent: true, Failures: 1, Ended: noon}
			case 2:
				continue
			default:
				a = attached(node)
			}
			a.UID, a.Name = handle+node, handle+node
			e := claimed(a)
			e.Handle, e.Exclusive = handle, func() bool { return exclusive }
			claims = append(claims, e)
		}
	}
	return claims
}

// carryOut does what the attacher does with a result, or fails to.
func carryOut(random *rand.Rand, now time.Time, result Result, claims []ExpectedAttachment) {
	for i := range claims {
		c := &claims[i]
		if drift, ok := result.Confirmed[c.UID]; ok {
			c.Drift = drift
		}
		if slices.Contains(result.Resolved, c.UID) {
			c.Drift = NoDrift
		}
		if c.Drift != NoDrift { // the stored error of an earlier repair keeps it
			c.AttachError = []string{"", "said no"}[random.IntN(2)]
		}
		if c.Drift != NoDrift && random.IntN(2) == 0 {
			c.Call = Call{Verb: c.Call.Verb, NodeID: c.Call.NodeID, Sent: true, Confirmed: true, Ended: now.Add(time.Second)}
			if random.IntN(2) == 0 {
				c.Drift = NoDrift // the call was recorded
			}
		}
	}
}
