package diagnosis

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// fenced is the NodeFence of the node that the volume left, if the volume left the boot that it is about, or waits for it: it was not released
// before.
func (m *mover) fenced(bound *time.Time) *fencingv1.NodeFence {
	f := m.fences[m.from]
	if f == nil {
		return nil
	}
	left := m.Now
	if bound != nil {
		left = *bound
	}
	proven, back := conditionSince(f, kube.ConditionProven), f.Status.Untainted
	switch {
	case f.CreationTimestamp.After(left.Add(second)), proven.After(left.Add(second)): // it began after the volume had left
		return nil
	case proven.IsZero() && (bound != nil || kube.FenceFinished(f)): // nothing was taken from the node because of it
		return nil
	case back != nil && back.Time.Before(left.Truncate(second)), back == nil && kube.FenceFinished(f):
		return nil
	}
	return f
}

// fenceHops are those of a node that fell silent: nothing on it says when the pod ended, and the fence does.
func (m *mover) fenceHops(f *fencingv1.NodeFence) {
	m.add(silentSince(f))
	if at := conditionSince(f, kube.ConditionProven); !at.IsZero() {
		m.add(done(HopProven, at, "condition Proven ("+provenClass(f)+") of NodeFence "+f.Name))
		return
	}
	why := fmt.Sprintf("NodeFence %s is %s", f.Name, kube.FenceState(f).Phase)
	if open := m.fenceOf(m.from); open != nil && open.missing != "" {
		why += ": " + open.missing
	}
	m.add(waiting(HopProven, why))
}

// silentSince is the last renewal of the node's lease before it was suspected.
func silentSince(f *fencingv1.NodeFence) Hop {
	text, _, _ := strings.Cut(kube.FenceRenewal(f), " ")
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.After(f.CreationTimestamp.Add(second)) {
		return unknown(HopSilent, "NodeFence "+f.Name+" does not say when the lease of the node was renewed last", &f.CreationTimestamp.Time)
	}
	return done(HopSilent, at, "last renewal of the node's lease, by NodeFence "+f.Name)
}

// provenClass is what the fence has proven about the boot.
func provenClass(f *fencingv1.NodeFence) string {
	if c := meta.FindStatusCondition(f.Status.Conditions, kube.ConditionProven); c != nil {
		return c.Reason
	}
	return ""
}

// endedByFence is the end of containers that no kubelet reports: a boot that has ended runs none.
func endedByFence(f *fencingv1.NodeFence) Hop {
	at, class := conditionSince(f, kube.ConditionProven), provenClass(f)
	switch {
	case at.IsZero():
		return waiting(HopEnded, "nothing is proven about the machine yet")
	case !slices.Contains([]string{string(fencing.PoweredOff), string(fencing.Restarted), string(fencing.Stated)}, class):
		return unknown(HopEnded, "NodeFence "+f.Name+" proves "+class+": the storage refuses the machine, and containers may run there", nil)
	}
	return unknown(HopEnded, "no kubelet reports it; the proof of NodeFence "+f.Name+" ("+class+") is that they had ended by then", &at)
}

// notUnmounted is why a fenced node does not unmount.
func notUnmounted(f *fencingv1.NodeFence) Hop {
	if conditionSince(f, kube.ConditionProven).IsZero() {
		return waiting(HopUnmounted, "")
	}
	return notNeeded(HopUnmounted, "recovery took the volume from the boot that NodeFence "+f.Name+" is about: nothing unmounts it there before that")
}
