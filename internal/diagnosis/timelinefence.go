package diagnosis

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// fenceOfMove is a NodeFence, and what it says about the move of a volume.
type fenceOfMove struct {
	*fencingv1.NodeFence

	// proven is since when it may take the volume, zero if it may not yet, and by what proof.
	proven time.Time
	class  fencing.Class
}

// fenced is the NodeFence because of which the volume left its node, or for which it waits; nil without one. left is when the volume left.
func (m *mover) fenced(left *time.Time) *fenceOfMove {
	for _, object := range m.Fences {
		if object.Spec.NodeName != m.from {
			continue
		}
		if f := m.fencedBy(object, left); f != nil {
			return f
		}
	}
	return nil
}

// fencedBy is fenced for one NodeFence of the node: several machines may have had its name.
func (m *mover) fencedBy(object *fencingv1.NodeFence, left *time.Time) *fenceOfMove {
	f := &fenceOfMove{NodeFence: object}
	f.proven, f.class = provenSince(object)
	switch {
	case f.class == fencing.Restarted, !m.sameBoot(object): // takes nothing: the pods continue in the next boot
		return nil
	case f.proven.IsZero() && left == nil && !kube.FenceFinished(object) && m.held(object):
		return f
	case !f.proven.IsZero() && f.took(m.came(), left):
		return f
	}
	return nil
}

// took reports whether the fence was proven and not over when a volume that came to the node at a time left it.
func (f *fenceOfMove) took(came time.Time, left *time.Time) bool {
	if f.proven.Before(came) || left != nil && f.proven.After(left.Add(second)) {
		return false
	}
	back := f.Status.Untainted
	return !kube.FenceFinished(f.NodeFence) || back != nil && left != nil && !back.Time.Before(left.Truncate(second))
}

// provenSince is since when a fence may take volumes. One that may take single volumes, whose driver cuts the machine off, has no condition Proven.
func provenSince(f *fencingv1.NodeFence) (time.Time, fencing.Class) {
	if c := meta.FindStatusCondition(f.Status.Conditions, kube.ConditionProven); c != nil && c.Status == "True" {
		return c.LastTransitionTime.Time, fencing.Class(c.Reason)
	}
	return conditionSince(f, kube.ConditionStorageFenced), fencing.StorageFenced
}

// sameBoot reports whether the volume may have been attached to the boot that a fence is about: belay-controller records the boot.
func (m *mover) sameBoot(f *fencingv1.NodeFence) bool {
	if m.oldVA == nil {
		return true
	}
	other := func(annotation, fenced string) bool {
		recorded := m.oldVA.Annotations[annotation]
		return recorded != "" && fenced != "" && recorded != fenced
	}
	return !other(kube.BootIDAnnotation, f.Spec.BootID) && !other(kube.NodeUIDAnnotation, f.Spec.NodeUID)
}

// came is when the volume came to the node that it left, as far as that is recorded; its node worked then.
func (m *mover) came() (at time.Time) {
	switch {
	case m.oldVA != nil:
		return m.oldVA.CreationTimestamp.Time
	case m.old != nil:
		return m.old.CreationTimestamp.Time
	}
	if e := m.lastEvent(string(m.gone.UID), "SuccessfulAttachVolume"); e != nil && m.gone.UID != "" {
		return eventTime(e)
	}
	return time.Time{}
}

// held reports whether the node still has the volume, and has not been heard since it was suspected: recovery does not prove anything then.
func (m *mover) held(f *fencingv1.NodeFence) bool {
	node, last := m.nodes[m.from], m.node(m.from).LastHeartbeat
	if last != nil && last.After(f.CreationTimestamp.Time) && f.Status.SilentAgain == nil {
		return false
	}
	return m.oldVA != nil || node != nil && kube.InUse(node, kube.UniqueVolumeName(m.key.Driver, m.key.Handle))
}

// fencedDeparture adds the hops of a node that recovery fences: nothing on it says when it fell silent and what it did since, and the fence does. A pod
// may have been deleted before that.
func (m *mover) fencedDeparture(f *fenceOfMove, bound *time.Time) {
	silent, deleted := m.silentSince(f), m.podDeleted(bound)
	before := silent.At != nil && deleted.At != nil && deleted.At.Before(*silent.At)
	if before {
		m.add(deleted)
	}
	m.add(silent)
	m.add(m.provenHop(f))
	if !before {
		m.add(deleted)
	}
	m.add(m.endedByFence(f))
	if f.proven.IsZero() {
		m.add(waiting(HopUnmounted, ""))
		return
	}
	m.add(notNeeded(HopUnmounted, "recovery takes the volume from the boot that NodeFence "+f.Name+" is about, whether it is unmounted there or not"))
}

// silentSince is the last renewal of the node's lease, as the fence has it. It is no later than the silence, and no earlier than the node had the
// volume.
func (m *mover) silentSince(f *fenceOfMove) Hop {
	text, _, _ := strings.Cut(kube.FenceRenewal(f.NodeFence), " ")
	at, err := time.Parse(time.RFC3339Nano, text)
	suspected := f.CreationTimestamp.Time
	if again := f.Status.SilentAgain; again != nil {
		suspected = again.Time.Time
	}
	if err != nil || at.After(suspected.Add(second)) || at.Before(m.came().Truncate(second)) {
		return unknown(HopSilent, "NodeFence "+f.Name+" does not say when the lease of the node was renewed last", &suspected)
	}
	return done(HopSilent, at, "last renewal of the node's lease, by NodeFence "+f.Name)
}

func (m *mover) provenHop(f *fenceOfMove) Hop {
	if !f.proven.IsZero() {
		return done(HopProven, f.proven, fmt.Sprintf("conditions of NodeFence %s (%s)", f.Name, f.class))
	}
	why := fmt.Sprintf("NodeFence %s is %s", f.Name, kube.FenceState(f.NodeFence).Phase)
	if missing := m.read(f.NodeFence).missing; !kube.FenceFinished(f.NodeFence) && missing != "" {
		why += ": " + missing
	}
	return waiting(HopProven, why)
}

// endedByFence is the end of containers on a node that recovery fences: what the kubelet reported before, else the proof that the boot has ended, if
// nothing contradicts it.
func (m *mover) endedByFence(f *fenceOfMove) Hop {
	if m.old != nil {
		if last, field := containersEnd(m.old); field != "" && field != endByDeletion {
			return done(HopEnded, last, field)
		}
	}
	switch {
	case f.proven.IsZero():
		return waiting(HopEnded, "nothing is proven about the machine yet")
	case f.class == fencing.StorageFenced:
		return unknown(HopEnded, "the storage refuses the machine, by NodeFence "+f.Name+", and containers may run there", nil)
	case meta.IsStatusConditionTrue(f.Status.Conditions, kube.ConditionContradicted):
		return unknown(HopEnded, "a sign of life contradicts the proof of NodeFence "+f.Name+": containers may run there", nil)
	}
	return unknown(HopEnded, fmt.Sprintf("no kubelet reports it; the proof of NodeFence %s (%s) is that they had ended by then", f.Name, f.class), &f.proven)
}
