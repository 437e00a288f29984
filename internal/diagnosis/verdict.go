package diagnosis

import (
	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
)

// passing are the reasons of what usually ends by itself within seconds, and counts as blocked only after a while.
var passing = map[decision.Reason]bool{
	attachment.Attaching: true, attachment.Detaching: true, attachment.OtherWriterDetaching: true, attachment.StillInUse: true,
	explain.Scheduling: true, explain.Mounting: true, explain.PodTerminating: true, explain.HeldByTerminatingPod: true,
	explain.ClaimNotBound: true, explain.NotReported: true, explain.NodeOutOfService: true,
}

// verdict grades a wait.
func (x *state) verdict(w wait) Verdict {
	switch {
	case w.reason == attachment.Settled, w.reason == explain.SharedAttachments, w.reason == "":
		return Clear
	case w.reason == explain.Incomplete:
		return Unknown
	case w.reason == explain.PodUnschedulable:
		return NotVolume
	case explain.GuideTo(w.reason).Unsafe:
		return Unsafe
	case passing[w.reason] && !w.failed && (w.since.IsZero() || x.Now.Sub(w.since) < unmountUsual):
		return InProgress
	}
	return Blocked
}
