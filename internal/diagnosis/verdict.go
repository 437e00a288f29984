package diagnosis

import "belay.dev/belay/internal/explain"

// verdict grades a wait: what usually ends by itself counts as blocked if it has failed, or after a while.
func (x *state) verdict(w wait) Verdict {
	if w.reason == "" {
		return Clear
	}
	switch v := explain.GuideTo(w.reason).Verdict; {
	case v == "", v == InProgress && (w.failed || !w.since.IsZero() && x.Now.Sub(w.since) >= unmountUsual):
		return Blocked
	default:
		return v
	}
}
