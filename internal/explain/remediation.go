package explain

import (
	"fmt"

	"belay.dev/belay/internal/fencing"
)

// Reasons of the conditions of a BelayRemediation that are not those of a fence.
const (
	RemediationStopped   = "RemediationInterruptedByNHC" // as fence-agents-remediation calls it (v0.7.0 pkg/utils/conditions.go)
	RemediationNoNode    = "RemediationFinishedNodeNotFound"
	RemediationNodeReady = "NodeReady"
	RemediationKeepsNode = "NodeIsKept"
)

// Messages of these conditions.
const (
	RemediationMoved         = "The machine is proven off, and nothing of its boot is left on the node: its volumes may be used elsewhere"
	RemediationTimedOut      = "NodeHealthCheck continues with another remediator, and nothing was commanded"
	RemediationOver          = "NodeHealthCheck continues with another remediator; the fence that this remediation asked for is over"
	RemediationLapsed        = "The machine was commanded before the timeout, and no other command is sent: the NodeFence continues when the machine is off, or the detector's own replaces it"
	RemediationNodeNotFound  = "There is no Node of this name"
	RemediationReady         = "The node is Ready, and a Ready node is never fenced"
	RemediationAlive         = "The node renews its lease, so that no evidence of its end is possible"
	RemediationListens       = "The detector listens until the node was silent for its whole limit"
	RemediationDeletesNoNode = "belay deletes no Node"
)

// RemediationFenced is the message while the node is being fenced.
func RemediationFenced(p fencing.Phase) string {
	return fmt.Sprintf("The NodeFence of the node is %s", p)
}

// RemediationEnded is the message of a fence that ended without having moved anything.
func RemediationEnded(p fencing.Phase, commanded bool) string {
	return fmt.Sprintf("The NodeFence of the node is %s: nothing was moved", p) + mayBeOff(commanded)
}

// RemediationWithoutEvidence is the message of a fence that waits for a person.
func RemediationWithoutEvidence(missing string) string {
	if missing == "" {
		missing = "no power switch can be asked"
	}
	return "Nothing can prove that the machine is off: " + missing
}

// RemediationEvent is an event about a BelayRemediation, as that of medik8s/common v1.17.0 pkg/events/events.go:13-22.
type RemediationEvent struct{ Type, Reason, Text string }

// The events.
var (
	RemediationStartedEvent  = RemediationEvent{"Normal", "RemediationStarted", "[remediation] Remediation started"}
	RemediationStoppedEvent  = RemediationEvent{"Normal", "RemediationStopped", "[remediation] NHC added the timed-out annotation, remediation will be stopped"}
	RemediationFinishedEvent = RemediationEvent{"Normal", "RemediationFinished", "[remediation] Remediation finished"}
)

// RemediationCannotStart is the event of a remediation with which belay can do nothing.
func RemediationCannotStart(why string) RemediationEvent {
	if why == RemediationNodeNotFound {
		why = "Could not get remediation target Node"
	}
	return RemediationEvent{"Warning", "RemediationCannotStart", "[remediation] " + why}
}
