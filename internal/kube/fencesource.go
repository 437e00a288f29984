package kube

import (
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// Reasons of the condition FenceReady for which a power switch is not asked.
const (
	// SourceShared: another FenceSource has the same switch, or hardware with the same system UUID.
	SourceShared = "SharedSwitch"
	// SourceLocked: every level refused the login too often.
	SourceLocked = "TooManyFailures"
)

// ConditionSwitchOffHeld is the condition of a FenceSource while the fencer does not send the command that is stored.
const ConditionSwitchOffHeld = "SwitchOffHeld"

// BoundSource returns what a FenceSource says about a node's switch; nil is none.
func BoundSource(s *fencingv1.FenceSource) fencing.Source {
	if s == nil {
		return fencing.Source{}
	}
	source := fencing.Source{Name: s.Name, Levels: len(s.Spec.Levels), Held: apimeta.IsStatusConditionTrue(s.Status.Conditions, ConditionSwitchOffHeld)}
	if c := apimeta.FindStatusCondition(s.Status.Conditions, ConditionFenceReady); c != nil {
		source.Shared, source.Locked = c.Reason == SourceShared, c.Reason == SourceLocked
	}
	if b := s.Status.Bound; b != nil && b.Generation == s.Generation {
		source.SaidOn = fencing.Boot{Node: s.Name, NodeUID: b.NodeUID, ID: b.BootID, Machine: b.MachineID}
		source.Machine = b.HardwareID
	}
	return source
}

// FenceActive reports whether a fence that is not over takes one of the places of the brake for those in flight (fencing.Fence.Active). source is the FenceSource
// of its node, nil without one, and now is on the clock of the API server.
func FenceActive(f *fencingv1.NodeFence, source *fencingv1.FenceSource, now time.Time, window time.Duration) bool {
	return !FenceFinished(f) && FenceState(f).Active(now, BoundSource(source), firstCommand(f, source), window)
}

// firstCommand is when the first command of a fence was sent, as the fencer recorded it, or else stored; zero if none was.
func firstCommand(f *fencingv1.NodeFence, source *fencingv1.FenceSource) (first time.Time) {
	if len(f.Status.Intents) > 0 {
		first = f.Status.Intents[0].NotAfter.Add(-fencing.IntentFor)
	}
	if source == nil || source.Status.Command == nil || source.Status.Command.Fence != string(f.UID) {
		return first
	}
	if sent := source.Status.Command.Time.Time; first.IsZero() || sent.Before(first) { // the intents are the latest few
		return sent
	}
	return first
}
