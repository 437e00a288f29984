package attacher

import (
	"time"

	"belay.dev/belay/internal/decision"
	known "belay.dev/belay/internal/drivers"
)

// lateByDefault is how long a publish that was abandoned may take effect, if a driver is known to confirm an unpublish before and its end is
// not: as long as GCE PD's driver waits for an operation of its cloud (WaitForOpBackoff, 100 times 3 s; v1.28.1,
// pkg/gce-cloud-provider/compute/gce-compute.go).
const lateByDefault = 5 * time.Minute

// earlyOKFor is Config.EarlyOKFor of a driver. An unknown one counts as one that keeps the order, as docs/drivers.md demands.
func earlyOKFor(driver string) time.Duration {
	facts, ok := known.Of(driver)
	if !ok || facts.OKTooEarly() != decision.Yes {
		return 0
	}
	if ends, ok := facts.EndsAfter(); ok {
		return ends
	}
	return lateByDefault
}
