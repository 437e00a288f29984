package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"belay.dev/belay/internal/decision"
)

// Verdict is what a reason means for the reader, where it is not that something is blocked.
type Verdict string

// The verdicts, least severe first.
const (
	// Clear: nothing waits.
	Clear Verdict = "Clear"
	// NotForVolume: a pod waits, and for no volume.
	NotForVolume Verdict = "NotVolume"
	// InProgress: something waits that usually ends by itself within seconds. If it does not, it is blocked.
	InProgress Verdict = "InProgress"
	// Unknown: too little could be read to tell.
	Unknown Verdict = "Unknown"
	// Blocked: something waits, and does not end by itself soon, or not at all.
	Blocked Verdict = "Blocked"
	// Unsafe: it is blocked, and ending the wait now may corrupt data: another machine may still write.
	Unsafe Verdict = "Unsafe"
)

// Severity orders the verdicts.
func (v Verdict) Severity() int {
	switch v {
	case Clear:
		return 0
	case NotForVolume:
		return 1
	case InProgress:
		return 2
	case Unknown:
		return 3
	case Blocked:
		return 4
	case Unsafe:
		return 5
	}
	return 3
}

// Page is a page of docs/runbooks, without its extension. It has a section for each of its reasons.
type Page string

// The pages. Pages has their order.
const (
	pageNodeLost     Page = "node-lost"
	pagePowerSwitch  Page = "power-switch"
	pageRecovery     Page = "recovery"
	pageNotFenced    Page = "not-fenced"
	pageControlPlane Page = "control-plane"
	pageDriver       Page = "driver"
	pageAttach       Page = "attach"
	pageDetach       Page = "detach"
	pageMount        Page = "mount"
	pageLeftovers    Page = "leftovers"
	pageClaims       Page = "claims"
	pageScheduling   Page = "scheduling"
	pageAttacher     Page = "attacher"
	pageNodeAgent    Page = "node-agent"
)

// Pages returns the pages, the most urgent first.
func Pages() []Page {
	return []Page{
		pageNodeLost, pagePowerSwitch, pageRecovery, pageNotFenced, pageControlPlane, pageDriver, pageAttach, pageDetach, pageMount, pageLeftovers,
		pageClaims, pageScheduling, pageAttacher, pageNodeAgent,
	}
}

// Path is where the page is in the repository.
func (p Page) Path() string { return "docs/runbooks/" + string(p) + ".md" }

// Why a reason has no event of its own.
const (
	onlyAsked     = "no program looks for it: kubectl belay finds it in the objects when it is asked"
	ends          = "it ends by itself within seconds; a wait that lasts has another reason"
	nothing       = "nothing waits"
	inMultiAttach = "the event FailedAttachVolume of the pods that wait has it as what the other node waits for"
	inPhase       = "a fence has an event for each phase; the NodeFence has what it waits for"
	onSource      = "the condition FenceReady of the FenceSource has it"
	onObject      = "belay-attacher emits no events: attachError or detachError of the VolumeAttachment has it"
	inLog         = "belay-attacher emits no events: its metrics and its log have it"
)

// guides is the table of reasons: all that belay reports about one is found from its row. The files of this package add theirs.
var guides = map[decision.Reason]Guide{}

// Guides returns the reasons that have a guide, in alphabetical order.
func Guides() []decision.Reason { return slices.Sorted(maps.Keys(guides)) }

// GuideTo returns the guide to a reason. A reason without one gets a guide that repeats its name.
func GuideTo(r decision.Reason) Guide {
	g, ok := guides[r]
	if !ok {
		g.Title = string(r)
	}
	if g.Summary == nil {
		g.Summary = func(s Situation) string { return fmt.Sprintf("%s waits: %s", subject(s), r) }
	}
	return g
}

// Runbook is the path of the section about a reason in the repository; empty for a reason without a guide.
func Runbook(r decision.Reason) string {
	g, ok := guides[r]
	if !ok {
		return ""
	}
	return g.Page.Path() + "#" + Anchor(r)
}

// RunbookCommand prints that section.
func RunbookCommand(r decision.Reason) string { return "kubectl belay runbook " + string(r) }

// Anchor is the fragment of the section about a reason.
func Anchor(r decision.Reason) string { return strings.ToLower(string(r)) }
