package publication

import (
	"cmp"
	"slices"
	"time"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/planted"
)

// Drift is how the driver's list of volumes contradicts an attachment.
type Drift string

const (
	// NoDrift is the zero value: the list does not contradict the attachment, or it may be incomplete.
	NoDrift Drift = ""
	// NotPublished: the attachment is recorded as attached, and the driver lists its volume as published to no node or, for a
	// shared volume, not to this node. It is published again.
	NotPublished Drift = "NotPublished"
	// StillPublished: the attachment is being deleted and recorded as detached, the attacher's finalizer is removed, and the driver
	// lists the volume at the node ID that was recorded at attach. It is unpublished again.
	StillPublished Drift = "StillPublished"
	// PublishedElsewhere: the volume is exclusive and recorded as attached, and the driver lists it at another node of the cluster, whether
	// it also does at this one or not. Nothing is done: a publish could make a second writer (S1), and an unpublish take it from one.
	PublishedElsewhere Drift = "PublishedElsewhere"
	// Abandoned: the volume is exclusive and wanted, its publish fails, and the driver lists it at nodes of the cluster that have
	// no attachment, and that are known not to list it in use: another client removed the attachment before the detach. It is
	// unpublished there.
	Abandoned Drift = "Abandoned"
	// HalfPublished: the attachment is wanted, its publish fails, and one before got no answer. Lists had the volume nowhere, and now have
	// it at this node alone: that publish took effect, and the driver refuses another one. It is unpublished, and published again.
	HalfPublished Drift = "HalfPublished"
	// Vanished: the attachment is being deleted, the driver answers NOT_FOUND to its unpublish, and has listed the volume nowhere for
	// vanishedAfter, in lists that show others at nodes of the cluster. The finalizer is removed without the driver's OK.
	Vanished Drift = "Vanished"
)

// followsFailures: the drift is about a call that fails again and again. Each attempt changes the attachment, and nothing at the storage.
func (d Drift) followsFailures() bool { return d == Abandoned || d == HalfPublished || d == Vanished }

const (
	// initialRepairs is how many drifts the first pass repairs. The next listing shows whether the list can be trusted.
	initialRepairs = 10
	// repairsFactor multiplies that after each pass whose repairs show in the list.
	repairsFactor = 4
	// maxRepairs limits it, far above the size of any cluster.
	maxRepairs = 1 << 20
	// nowhereLists is how many lists must have had a volume nowhere before one that has it shows that a publish took effect.
	nowhereLists = 2
	// vanishedAfter is how long lists must have had a volume nowhere: longer than drivers were seen to leave out a volume that exists, and
	// than the longest back-off.
	vanishedAfter = 10 * time.Minute
	// maxRepairDelay is the longest wait before a drift that recurred is repaired again.
	maxRepairDelay = 24 * time.Hour
)

// Entry is what a complete listing has about one volume. The zero value is a volume that the driver does not list.
type Entry struct {
	NodeIDs []string // of all entries with this handle; nil if it is not listed
}

// Listing is a complete list of the driver's volumes.
type Listing struct {
	Began time.Time // before the first page was requested
	// Volumes has an entry for each expected handle.
	Volumes map[string]*Entry
	// Nodes are the known CSI node IDs. An unknown ID may be one of these nodes in another form.
	Nodes map[string]bool

	inUse map[place]decision.Knowledge // by Ask
}

// Ask asks, for each place at which a volume may be Abandoned, whether a Node with that ID lists it in use. Ask it after the listing
// and before each Compare: an entry of the storage that no attachment explains may be of a pod that runs, after a backup of etcd was
// restored for instance (openshift/openshift-docs#29532).
func (l *Listing) Ask(claims []ExpectedAttachment, inUse func(of *ExpectedAttachment, nodeID string) decision.Knowledge) {
	holders := holdersOf(claims)
	l.inUse = map[place]decision.Knowledge{}
	for i := range claims { // they are large
		c := &claims[i]
		for _, id := range c.abandoned(*l, holders) {
			if at := (place{c.Handle, id}); l.inUse[at] == decision.Unknown {
				l.inUse[at] = inUse(c, id)
			}
		}
	}
}

// ExpectedAttachment is an attachment, as of the end of a listing, to compare with it.
type ExpectedAttachment struct {
	Attachment

	Version string // changes with the VolumeAttachment, but not with what belay annotates
	Handle  string // the volume's handle as the driver lists it
	// Exclusive: the volume may be published to one node only. It is asked for the few attachments that the list does not confirm.
	Exclusive func() bool
	// Unanswered: a publish got no answer since the driver confirmed an unpublish. That may also be one of an earlier process.
	Unanswered bool
}

// Result is the result of a comparison.
type Result struct {
	// Confirmed are the drifts to repair, by the attachment's UID, and those that are PublishedElsewhere.
	Confirmed map[string]Drift
	// At is the node ID of each of them that is Abandoned, HalfPublished or PublishedElsewhere.
	At map[string]string
	// Held has, by UID, a node ID at which a volume would be Abandoned, if it were known that no Node lists it in use there.
	Held map[string]string
	// Resolved are attachments whose drift no longer exists, and for which no repair failed.
	Resolved []string

	Seen     map[Drift]int // drifts that a listing shows for the first time
	Repaired map[Drift]int // drifts that a later listing no longer shows
	// Repeated are drifts that recurred although the driver had confirmed the repair.
	Repeated map[Drift]int
	// Distrusted names an attachment whose drift recurred, if all repairs had helped until then.
	Distrusted string
}

// Comparison tracks contradictions from one listing to the next. A drift is confirmed when two listings in a row show it, while the
// attachment did not change and no call for it was in flight.
//
// A list may be incomplete, lag behind, or name nodes in another form (external-attacher#291, #416). So few drifts are repaired
// until a later listing shows that it helped. A drift that recurs after the driver confirmed the repair is repaired again after a
// delay that doubles each time; while that happens, each pass repairs one new drift.
type Comparison struct {
	period  time.Duration
	suspect map[string]*suspect // by UID
	repairs int                 // how many drifts the next pass may repair
}

// suspect is an attachment that a listing contradicted.
type suspect struct {
	drift   Drift     // of the last listing; NoDrift if that one agreed
	since   time.Time // when the first listing that showed it began
	version string    // the attachment's Version after that listing

	nowhere   int       // lists that had the volume nowhere while it was wanted and not attached
	repair    Drift     // the last drift that was confirmed; NoDrift for none
	tries     int       // number of repairs
	acted     time.Time // time of the last repair
	notBefore time.Time // no repair before this time, since the drift recurred
}

// NewComparison returns an empty comparison; period is the pause between two listings.
func NewComparison(period time.Duration) *Comparison {
	return &Comparison{period: period, suspect: map[string]*suspect{}, repairs: initialRepairs}
}

// Confirms reports whether Compare finds nothing in the attachment: the listing has its volume at its node alone, and no earlier one contradicted it.
// Of a, UID, Attached, Deleting, Drift and the node IDs are read.
func (c *Comparison) Confirms(list Listing, handle string, a Attachment) bool {
	entry := list.Volumes[handle]
	return entry != nil && a.Attached && !a.Deleting && entry.hasOnly(a.boundNodeID()) &&
		a.Drift == NoDrift && c.suspect[a.UID] == nil
}

// Compare compares a complete listing with all attachments as of its end. Those that it Confirms may be left out, except those of a volume in
// HoldersNeeded.
func (c *Comparison) Compare(now time.Time, list Listing, claims []ExpectedAttachment) Result {
	result := Result{Confirmed: map[string]Drift{}, At: map[string]string{}, Held: map[string]string{},
		Seen: map[Drift]int{}, Repaired: map[Drift]int{}, Repeated: map[Drift]int{}}
	holders := holdersOf(claims)
	kept := make(map[string]*suspect, len(c.suspect))
	var confirmed []*ExpectedAttachment
	unproven := 0
	for i := range claims { // they are large
		claim := &claims[i]
		s := c.of(claim)
		drift, known := claim.compare(list, holders, s.nowhere)
		s.countNowhere(list, claim)
		if ids := claim.abandoned(list, holders); drift != Abandoned && len(ids) > 0 {
			result.Held[claim.UID] = ids[0]
		}
		c.judge(&result, now, list, claim, s, drift, known)
		if known && s.unproven(claim) {
			unproven++
		}
		if claim.isResolved(list, drift, known) {
			result.Resolved = append(result.Resolved, claim.UID)
			continue
		}
		switch {
		case !s.confirm(&result, list, claim, drift, c.period):
		case drift == PublishedElsewhere:
			result.Confirmed[claim.UID], result.At[claim.UID] = drift, claim.elsewhere(list)
		case drift == Vanished && c.distrusts():
		case !now.Before(s.notBefore):
			confirmed = append(confirmed, claim)
		}
		if s.remembered() {
			kept[claim.UID] = s
		}
	}
	c.suspect = kept
	c.trust(result)
	c.act(&result, now, confirmed, max(0, c.repairs-unproven))
	result.locate(list, confirmed, holders)
	return result
}

// locate finds the node IDs at which confirmed drifts are repaired by an unpublish.
func (r Result) locate(list Listing, confirmed []*ExpectedAttachment, holders map[place]int) {
	for _, claim := range confirmed {
		if drift := r.Confirmed[claim.UID]; drift == Abandoned {
			r.At[claim.UID] = claim.abandonedAt(list, holders)
		} else if drift == HalfPublished {
			r.At[claim.UID] = claim.boundNodeID()
		}
	}
}

// of returns what is remembered of an attachment.
func (c *Comparison) of(claim *ExpectedAttachment) *suspect {
	if s := c.suspect[claim.UID]; s != nil {
		return s
	}
	return &suspect{}
}

// remembered: there is something to remember.
func (s *suspect) remembered() bool {
	return s.drift != NoDrift || s.repair != NoDrift || s.nowhere > 0
}

// judge checks whether an earlier repair that the driver confirmed shows in a listing that began after it.
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

// confirm reports whether a drift is confirmed and is not being repaired already.
func (s *suspect) confirm(result *Result, list Listing, claim *ExpectedAttachment, drift Drift, period time.Duration) bool {
	busy := claim.Call.InFlight || !claim.Call.Ended.Before(list.Began)
	changed := s.version != claim.Version || !claim.Call.Ended.Before(s.since)
	if drift.followsFailures() {
		busy, changed = claim.Call.InFlight, false
	}
	if drift == NoDrift || busy {
		s.drift = NoDrift
		return false
	}
	if s.drift != drift || changed {
		if s.drift != drift {
			result.Seen[drift]++
		}
		s.drift, s.since, s.version = drift, list.Began, claim.Version
		return false
	}
	return claim.Drift != drift && s.lasted(list, claim, period)
}

// lasted reports whether the call has failed again since the first list that showed the drift, and for as long as it takes.
func (s *suspect) lasted(list Listing, claim *ExpectedAttachment, period time.Duration) bool {
	switch again := claim.Call.at(claim.boundNodeID()).Ended.After(s.since); s.drift {
	case Abandoned: // a list may come out of turn, before a kubelet has written its status
		return !list.Began.Before(s.since.Add(period))
	case HalfPublished:
		return again
	case Vanished:
		return again && !list.Began.Before(s.since.Add(vanishedAfter))
	default:
		return true
	}
}

// countNowhere counts the lists that had the volume of a wanted attachment nowhere. Elsewhere is not nowhere.
func (s *suspect) countNowhere(list Listing, claim *ExpectedAttachment) {
	switch entry := list.Volumes[claim.Handle]; {
	case claim.Deleting || claim.Attached:
		s.nowhere = 0
	case entry == nil: // unknown
	case len(entry.NodeIDs) == 0:
		s.nowhere++
	case !entry.hasOnly(claim.boundNodeID()):
		s.nowhere = 0
	}
}

// distrusts: a list contradicted what the driver had confirmed, and none agreed since.
func (c *Comparison) distrusts() bool {
	for _, s := range c.suspect {
		if !s.notBefore.IsZero() {
			return true
		}
	}
	return false
}

// trust allows more repairs in one pass if they helped, and one if they did not.
func (c *Comparison) trust(result Result) {
	switch {
	case len(result.Repeated) > 0:
		c.repairs = 1
	case len(result.Repaired) > 0:
		c.repairs = min(c.repairs*repairsFactor, maxRepairs)
	}
}

// unproven: a repair is in flight, or the driver has confirmed it and no listing began since.
func (s *suspect) unproven(claim *ExpectedAttachment) bool {
	return s.repair != NoDrift && (claim.Call.InFlight || claim.Call.Confirmed && claim.Call.Ended.After(s.acted) && !s.notBefore.After(s.acted))
}

// act selects the repairs of this pass, those with the fewest tries first.
func (c *Comparison) act(result *Result, now time.Time, confirmed []*ExpectedAttachment, most int) {
	slices.SortStableFunc(confirmed, func(a, b *ExpectedAttachment) int {
		return cmp.Or(cmp.Compare(c.suspect[a.UID].tries, c.suspect[b.UID].tries), cmp.Compare(a.Name, b.Name))
	})
	for _, claim := range confirmed[:min(len(confirmed), most)] {
		s := c.suspect[claim.UID]
		s.repair, s.acted, s.nowhere = s.drift, now, 0
		s.tries++
		result.Confirmed[claim.UID] = s.drift
	}
}

// isResolved: the drift no longer exists and no repair failed. After a failure the repair continues, because the driver's OK is
// needed to clear the stored error. The error of an Abandoned volume is that of the publish. PublishedElsewhere has no repair: the list decides alone.
func (c *ExpectedAttachment) isResolved(list Listing, drift Drift, known bool) bool {
	switch {
	case c.Drift == PublishedElsewhere:
		return c.nowhereElse(list)
	case c.Drift == NoDrift || c.Call.InFlight:
		return false
	case c.Drift.followsFailures():
		return drift != c.Drift
	default:
		return known && drift != c.Drift && !c.Call.failed() && c.AttachError == "" && c.DetachError == ""
	}
}

// place is a volume at a node.
type place struct{ handle, nodeID string }

// HoldersNeeded returns the handles of the volumes of which all attachments must be known: one was released, or another node blocks it.
func HoldersNeeded(claims []ExpectedAttachment) map[string]bool {
	needed := map[string]bool{}
	for i := range claims { // they are large
		if c := &claims[i]; c.Deleting && !c.Finalizer || c.publishFails() {
			needed[c.Handle] = true
		}
	}
	return needed
}

// holdersOf counts the attachments that may need a volume at a node; two attachments may name the same place.
func holdersOf(claims []ExpectedAttachment) map[place]int {
	holders, needed := map[place]int{}, HoldersNeeded(claims)
	for i := range claims {
		c := &claims[i]
		if !needed[c.Handle] || c.Deleting && !c.Finalizer {
			continue
		}
		holders[place{c.Handle, c.boundNodeID()}]++
		if c.NodeID != c.boundNodeID() {
			holders[place{c.Handle, c.NodeID}]++
		}
	}
	return holders
}

// compare returns how a listing contradicts an attachment. If known is false, it allows no conclusion.
func (c *ExpectedAttachment) compare(list Listing, holders map[place]int, nowhere int) (drift Drift, known bool) {
	entry := list.Volumes[c.Handle]
	if entry == nil {
		return NoDrift, false // created since
	}
	here := slices.Contains(entry.NodeIDs, c.boundNodeID())
	if drift = c.compareFailing(list, holders, nowhere); drift != NoDrift {
		return drift, true
	}
	switch unchanged := c.nodeUnchanged(); {
	case c.Deleting:
		return c.compareReleased(here, holders)
	case !c.Attached:
		return NoDrift, false // in progress
	case here && (!unchanged || c.elsewhere(list) == ""):
		return NoDrift, true
	case !unchanged || !here && slices.ContainsFunc(entry.NodeIDs, func(id string) bool { return !list.Nodes[id] }):
		return NoDrift, false
	case c.elsewhere(list) != "":
		return PublishedElsewhere, true
	}
	return NotPublished, true
}

// compareFailing is compare for what followsFailures; nowhere is how many lists had the volume nowhere before.
func (c *ExpectedAttachment) compareFailing(list Listing, holders map[place]int, nowhere int) Drift {
	entry, bound := list.Volumes[c.Handle], c.boundNodeID()
	switch {
	case c.Deleting && c.Finalizer && c.Call.unknownAt(bound) && len(entry.NodeIDs) == 0 && list.showsNodes():
		return Vanished
	case c.abandonedAt(list, holders) != "":
		return Abandoned
	case nowhere >= nowhereLists && entry.hasOnly(bound) && c.Unanswered && c.notPublished() && c.nodeUnchanged():
		return HalfPublished
	}
	return NoDrift
}

// elsewhere returns another node of the cluster at which the driver lists the exclusive volume; empty if there is none.
func (c *ExpectedAttachment) elsewhere(list Listing) (nodeID string) {
	for _, id := range list.Volumes[c.Handle].NodeIDs {
		if c.isOther(id) && list.Nodes[id] && c.Exclusive() {
			return id
		}
	}
	return ""
}

// isOther: the node ID is not one of the attachment's node.
func (c *ExpectedAttachment) isOther(nodeID string) bool {
	return nodeID != c.boundNodeID() && nodeID != c.NodeID
}

// Elsewhere returns another node at which a list has the exclusive volume: the one that an earlier list had it at, if this one still has. It is empty
// if the list shows none.
func (c *ExpectedAttachment) Elsewhere(list Listing, earlier string) (nodeID string) {
	switch entry := list.Volumes[c.Handle]; {
	case entry == nil:
		return "" // created since
	case c.isOther(earlier) && slices.Contains(entry.NodeIDs, earlier) && c.Exclusive():
		return earlier
	}
	return c.elsewhere(list)
}

// nowhereElse: a list has the exclusive volume at no other node. An unknown ID may be one, unless the list has the volume at its own node too.
func (c *ExpectedAttachment) nowhereElse(list Listing) bool {
	entry := list.Volumes[c.Handle]
	if entry == nil || c.elsewhere(list) != "" {
		return false
	}
	unknown := func(id string) bool { return !list.Nodes[id] }
	return slices.Contains(entry.NodeIDs, c.boundNodeID()) || !slices.ContainsFunc(entry.NodeIDs, unknown)
}

// compareReleased is compare for an attachment that is being deleted; here: the volume is listed at its node.
func (c *ExpectedAttachment) compareReleased(here bool, holders map[place]int) (drift Drift, known bool) {
	switch {
	case c.Finalizer || c.Attached || c.RecordedNodeID == "":
		// Without a recorded node ID nothing was published for it: the entry belongs to another client.
		return NoDrift, false
	case here && holders[place{c.Handle, c.RecordedNodeID}] == 0:
		return StillPublished, true
	}
	return NoDrift, !here
}

// notPublished: the volume is wanted, and the last publish failed.
func (c *ExpectedAttachment) notPublished() bool {
	return !c.Deleting && !c.Attached && c.Call.Verb == Publish && c.Call.failed()
}

// publishFails: the same for an exclusive volume.
func (c *ExpectedAttachment) publishFails() bool { return c.notPublished() && c.Exclusive() }

// hasOnly: the volume is listed at that node and at no other.
func (e *Entry) hasOnly(nodeID string) bool { return len(e.NodeIDs) == 1 && e.NodeIDs[0] == nodeID }

// showsNodes: the list has volumes at nodes of the cluster, so one that it has nowhere is not left out with all others.
func (l Listing) showsNodes() bool {
	for _, entry := range l.Volumes {
		if slices.ContainsFunc(entry.NodeIDs, func(id string) bool { return l.Nodes[id] }) {
			return true
		}
	}
	return false
}

// abandoned returns the nodes at which the driver lists a volume that cannot be published, although it has no attachment there; none if
// an ID is unknown: it may be a node of another cluster.
func (c *ExpectedAttachment) abandoned(list Listing, holders map[place]int) (nodeIDs []string) {
	entry := list.Volumes[c.Handle]
	if entry == nil || !c.publishFails() || slices.ContainsFunc(entry.NodeIDs, func(id string) bool { return !list.Nodes[id] }) {
		return nil
	}
	held := func(id string) bool { return holders[place{c.Handle, id}] > 0 }
	return slices.DeleteFunc(slices.Sorted(slices.Values(entry.NodeIDs)), held)
}

// abandonedAt returns the first of these nodes that is known not to use the volume; empty if there is none.
func (c *ExpectedAttachment) abandonedAt(list Listing, holders map[place]int) (nodeID string) {
	for _, id := range c.abandoned(list, holders) {
		if list.inUse[place{c.Handle, id}] == decision.No || planted.Abandoned {
			return id
		}
	}
	return ""
}

// nodeUnchanged: the node still has the ID that was recorded at attach. Otherwise it is another machine, or the driver names its
// nodes in another way: an unpublish of the old ID could hit a volume in use, and a publish could make a second writer.
func (a Attachment) nodeUnchanged() bool {
	return a.NodeID != "" && (a.RecordedNodeID == "" || a.RecordedNodeID == a.NodeID)
}
