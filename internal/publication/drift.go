package publication

import (
	"cmp"
	"slices"
	"time"
)

// Drift is what the driver's list of volumes says against an attachment.
type Drift string

const (
	// NoDrift is the zero value: the list says nothing against the attachment,
	// or nothing that can be told apart from a list that is incomplete.
	NoDrift Drift = ""
	// NotPublished: the attachment is recorded as attached, and the driver lists
	// its volume as published to no node, or, for a shared one, not to this node.
	// It is published again.
	NotPublished Drift = "NotPublished"
	// StillPublished: the attachment is being deleted and recorded as detached, our
	// finalizer is off, and the driver lists its volume at the node ID that was
	// recorded at attach. It is unpublished again.
	StillPublished Drift = "StillPublished"
	// PublishedElsewhere: the volume is exclusive and recorded as attached, and the
	// driver lists it at other nodes only. Nothing is done: a publish here could
	// make two writers (S1).
	PublishedElsewhere Drift = "PublishedElsewhere"
	// Abandoned: the volume is exclusive and wanted, its publish fails, and the driver lists
	// it at nodes of the cluster that no attachment is for: somebody removed the attachment
	// before the detach. It is unpublished there.
	Abandoned Drift = "Abandoned"
)

const (
	// initialRepairs is how many drifts one pass mends at first: whether the list can
	// be relied upon shows in the next one.
	initialRepairs = 10
	// repairsFactor multiplies that after each pass in which what was mended shows.
	repairsFactor = 4
	// maxRepairs bounds it: far above what any cluster has.
	maxRepairs = 1 << 20
	// maxRepairDelay is the longest wait before a drift that came back after its mend
	// is mended once more.
	maxRepairDelay = 24 * time.Hour
)

// Entry is what one complete listing says of one volume that was looked for. The
// zero value is a volume that the driver does not list.
type Entry struct {
	NodeIDs []string // of all entries with this handle; nil if it is not listed
}

// Listing is one complete list of the driver's volumes.
type Listing struct {
	Began time.Time // before the first page was asked for
	// Volumes has an entry for each handle that was looked for.
	Volumes map[string]*Entry
	// Nodes are the CSI node IDs that are known. An ID that is not may be a node
	// of ours in another form.
	Nodes map[string]bool
}

// ExpectedAttachment is one attachment, as it is after a listing ended, to be compared with it.
type ExpectedAttachment struct {
	Attachment

	Version   string // resource version of the VolumeAttachment
	Handle    string // the volume's handle as the driver lists it
	Exclusive bool   // the volume may be published to one node only
}

// Result is what came of a comparison.
type Result struct {
	// Confirmed are drifts to act upon, by the attachment's UID.
	Confirmed map[string]Drift
	// AbandonedAt is the node ID of each that is Abandoned.
	AbandonedAt map[string]string
	// Resolved are attachments whose drift is not there any more, and of which
	// nothing was tried for it.
	Resolved []string

	Seen     map[Drift]int // drifts that a listing shows for the first time
	Repaired map[Drift]int // those that a later listing shows no more
	// Repeated are those that came back although the driver had confirmed the mend.
	Repeated map[Drift]int
	// Distrusted names an attachment whose drift came back, if until now all mends
	// had helped.
	Distrusted string
}

// Comparison remembers, from one listing to the next, what did not agree. A drift
// is confirmed when two listings in a row show it, while the attachment did
// not change and no call for it was in flight.
//
// A list may be incomplete, lag behind, or name nodes in another form
// (external-attacher#291, #416). So few drifts are mended until a later listing shows
// that it helped; one that comes back after the driver confirmed the mend is
// mended again after a wait that doubles each time, and as long as that happens, one
// new drift is mended in each pass.
type Comparison struct {
	period  time.Duration
	suspect map[string]*suspect // by UID
	repairs int                 // how many drifts the next pass may mend
}

// suspect is an attachment that a listing did not agree with.
type suspect struct {
	drift   Drift     // of the last listing; NoDrift if that one agreed
	since   time.Time // when the first listing that showed it began
	version string    // the attachment's resource version after that listing

	repair    Drift     // what was confirmed last; NoDrift if it was never
	tries     int       // how often it was
	acted     time.Time // when
	notBefore time.Time // not mended before this, since it came back
}

// NewComparison begins without memory; period is the pause between two listings.
func NewComparison(period time.Duration) *Comparison {
	return &Comparison{period: period, suspect: map[string]*suspect{}, repairs: initialRepairs}
}

// Compare takes one complete listing, and all attachments as they are after it.
func (c *Comparison) Compare(now time.Time, list Listing, claims []ExpectedAttachment) Result {
	result := Result{Confirmed: map[string]Drift{}, AbandonedAt: map[string]string{}, Seen: map[Drift]int{}, Repaired: map[Drift]int{}, Repeated: map[Drift]int{}}
	holders := holdersOf(claims)
	kept := make(map[string]*suspect, len(c.suspect))
	var confirmed []*ExpectedAttachment
	unproven := 0
	for i := range claims { // they are large
		claim := &claims[i]
		drift, known := claim.compare(list, holders)
		s := c.suspect[claim.UID]
		if s == nil {
			if drift == NoDrift && claim.Drift == NoDrift {
				continue
			}
			s = &suspect{}
		}
		c.judge(&result, now, list, claim, s, drift, known)
		if known && s.unproven(claim) {
			unproven++
		}
		if claim.isResolved(drift, known) {
			result.Resolved = append(result.Resolved, claim.UID)
			continue
		}
		if s.confirm(&result, list, claim, drift) && !now.Before(s.notBefore) {
			confirmed = append(confirmed, claim)
		}
		if s.drift != NoDrift || s.repair != NoDrift {
			kept[claim.UID] = s
		}
	}
	c.suspect = kept
	c.trust(result)
	c.act(&result, now, confirmed, max(0, c.repairs-unproven))
	for _, claim := range confirmed {
		if result.Confirmed[claim.UID] == Abandoned {
			result.AbandonedAt[claim.UID] = claim.abandonedAt(list, holders)
		}
	}
	return result
}

// judge looks whether an earlier mend that the driver confirmed shows in a listing
// that began after it.
func (c *Comparison) judge(result *Result, now time.Time, list Listing, claim *ExpectedAttachment, s *suspect, drift Drift, known bool) {
	if s.repair == NoDrift || !known || !claim.Call.Confirmed || claim.Call.InFlight ||
		!claim.Call.Ended.After(s.acted) || !claim.Call.Ended.Before(list.Began) {
		return
	}
	switch {
	case drift == NoDrift:
		result.Repaired[s.repair]++
		*s = suspect{}
	case drift == s.repair && !s.notBefore.After(s.acted):
		result.Repeated[drift]++
		wait := c.period
		for i := 0; i < s.tries && wait < maxRepairDelay; i++ {
			wait *= 2
		}
		s.notBefore = now.Add(min(wait, maxRepairDelay))
		if c.repairs > 1 && result.Distrusted == "" {
			result.Distrusted = claim.Name
		}
	}
}

// confirm tells whether a drift that a listing shows is confirmed and not being
// mended already.
func (s *suspect) confirm(result *Result, list Listing, claim *ExpectedAttachment, drift Drift) bool {
	busy := claim.Call.InFlight || !claim.Call.Ended.Before(list.Began)
	if drift == Abandoned {
		// Each publish that fails ends later and changes the attachment, and has no effect on
		// the other node.
		busy, s.version, s.since = claim.Call.InFlight, claim.Version, claim.Call.Ended.Add(1)
	}
	if drift == NoDrift || busy {
		s.drift = NoDrift
		return false
	}
	if s.drift != drift || s.version != claim.Version || !claim.Call.Ended.Before(s.since) {
		if s.drift != drift {
			result.Seen[drift]++
		}
		s.drift, s.since, s.version = drift, list.Began, claim.Version
		return false
	}
	return claim.Drift != drift && drift != PublishedElsewhere
}

// trust lets more be mended in one pass if it helped, and little if it did not.
func (c *Comparison) trust(result Result) {
	switch {
	case len(result.Repeated) > 0:
		c.repairs = 1
	case len(result.Repaired) > 0:
		c.repairs = min(c.repairs*repairsFactor, maxRepairs)
	}
}

// unproven: a mend is in flight, or the driver has confirmed it and no listing began since.
func (s *suspect) unproven(claim *ExpectedAttachment) bool {
	return s.repair != NoDrift && (claim.Call.InFlight || claim.Call.Confirmed && claim.Call.Ended.After(s.acted) && !s.notBefore.After(s.acted))
}

// act picks what is mended now, so many at most: first what was tried least.
func (c *Comparison) act(result *Result, now time.Time, confirmed []*ExpectedAttachment, most int) {
	slices.SortStableFunc(confirmed, func(a, b *ExpectedAttachment) int {
		return cmp.Or(cmp.Compare(c.suspect[a.UID].tries, c.suspect[b.UID].tries), cmp.Compare(a.Name, b.Name))
	})
	for _, claim := range confirmed[:min(len(confirmed), most)] {
		s := c.suspect[claim.UID]
		s.repair, s.acted = s.drift, now
		s.tries++
		result.Confirmed[claim.UID] = s.drift
	}
}

// isResolved: what was found is not so any more and nothing failed on the way to
// mend it. After a failure the mend goes on: the driver's OK is needed to clear the
// error that is stored. That of a volume that was abandoned is the publish's.
func (c *ExpectedAttachment) isResolved(drift Drift, known bool) bool {
	switch {
	case c.Drift == NoDrift || c.Call.InFlight:
		return false
	case c.Drift == Abandoned:
		return drift != Abandoned
	default:
		return known && drift == NoDrift && !c.Call.failed() && c.AttachError == "" && c.DetachError == ""
	}
}

// place is a volume at a node.
type place struct{ handle, nodeID string }

// holdersOf counts who may be in need of a volume at a node: two attachments may
// name one place. It is only asked about those of which we have let go, and about nodes
// that keep a volume from another one.
func holdersOf(claims []ExpectedAttachment) map[place]int {
	holders := map[place]int{}
	if !slices.ContainsFunc(claims, func(c ExpectedAttachment) bool { return c.Deleting && !c.Finalizer || c.publishFails() }) {
		return holders
	}
	for i := range claims {
		c := &claims[i]
		if c.Deleting && !c.Finalizer {
			continue
		}
		holders[place{c.Handle, c.boundNodeID()}]++
		if c.NodeID != c.boundNodeID() {
			holders[place{c.Handle, c.NodeID}]++
		}
	}
	return holders
}

// compare tells what a listing says against an attachment. If known is false it says
// nothing that could be relied upon.
func (c *ExpectedAttachment) compare(list Listing, holders map[place]int) (drift Drift, known bool) {
	entry := list.Volumes[c.Handle]
	if entry == nil {
		return NoDrift, false // made since
	}
	here := slices.Contains(entry.NodeIDs, c.boundNodeID())
	switch {
	case c.Deleting:
		return c.compareReleased(here, holders)
	case c.publishFails() && c.abandonedAt(list, holders) != "":
		return Abandoned, true
	case !c.Attached:
		return NoDrift, false // on its way
	case here:
		return NoDrift, true
	case !c.nodeUnchanged():
		return NoDrift, false
	}
	if slices.ContainsFunc(entry.NodeIDs, func(id string) bool { return !list.Nodes[id] }) {
		return NoDrift, false
	}
	if c.Exclusive && len(entry.NodeIDs) > 0 {
		return PublishedElsewhere, true
	}
	return NotPublished, true
}

// compareReleased is compare for an attachment that is being deleted; here tells whether the
// volume is listed at its node.
func (c *ExpectedAttachment) compareReleased(here bool, holders map[place]int) (drift Drift, known bool) {
	switch {
	case c.Finalizer || c.Attached || c.RecordedNodeID == "":
		// Without a recorded node ID nothing was ever published for it: what is
		// published there is somebody else's.
		return NoDrift, false
	case here && holders[place{c.Handle, c.RecordedNodeID}] == 0:
		return StillPublished, true
	}
	return NoDrift, !here
}

// publishFails: the volume is exclusive and wanted, and the last publish failed.
func (c *ExpectedAttachment) publishFails() bool {
	return c.Exclusive && !c.Deleting && !c.Attached && c.Call.Verb == Publish && c.Call.failed()
}

// abandonedAt is a node at which the driver lists the volume although no attachment is for
// it; empty if there is none, or if an ID is not known: it may be a node of another cluster.
func (c *ExpectedAttachment) abandonedAt(list Listing, holders map[place]int) (nodeID string) {
	for _, id := range slices.Sorted(slices.Values(list.Volumes[c.Handle].NodeIDs)) {
		switch {
		case !list.Nodes[id]:
			return ""
		case nodeID == "" && holders[place{c.Handle, id}] == 0:
			nodeID = id
		}
	}
	return nodeID
}

// nodeUnchanged: the node is there under the ID that was recorded at attach. If it
// is not, it is another machine by now, or the driver names its nodes in another way;
// an unpublish of the old ID may then hit a volume in use, and a publish may make
// two writers.
func (a Attachment) nodeUnchanged() bool {
	return a.NodeID != "" && (a.RecordedNodeID == "" || a.RecordedNodeID == a.NodeID)
}
