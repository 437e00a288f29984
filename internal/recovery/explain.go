package recovery

import (
	"fmt"
	"time"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
)

func explainHold(r decision.Reason) string { return explain.NotFenced(r) }

func explainSuspected(silent time.Duration) string {
	return fmt.Sprintf("The node has not renewed its lease for %v: belay is looking for proof that its machine is off", silent.Round(100*time.Millisecond))
}
