package nodeagent

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/nodevolume"
)

// growth is what is known of a volume's size on this node. All fields are under Agent.mu.
type growth struct {
	// size is what the file system here reaches up to: what the claim said when the
	// volume came, and since then what the driver confirmed here. Zero: not known.
	size resource.Quantity
	// capacity is the PersistentVolume's, as last read.
	capacity resource.Quantity
	// due: the driver shall be asked to expand it.
	due     bool
	failure nodevolume.Failure
	// told is the last event that was sent about a failure.
	told string
	// inUse: the driver does not expand it while it is used. It is asked again when
	// the volume is mounted for another pod.
	inUse bool
	// refused: the driver answered with a final error once. If the claim asks for
	// another size by then, the next one hands the matter back to the controller (KEP-1790).
	refused bool
}

// claimSize is what a claim says about its size.
type claimSize struct {
	// given is status.capacity; known says whether it is there.
	given resource.Quantity
	known bool
	// requested is what the user asks for, allocated what the controller works on.
	requested, allocated resource.Quantity
	status               corev1.ClaimResourceStatus
	// tracked: the claim says how far its expansion has come (KEP-1790). Resizers of
	// old do not write that.
	tracked bool
	// everywhere: each node that has the volume expands it for itself.
	everywhere bool
}

// nodeExpansionNotRequired is what a resizer writes on claims whose driver does all by the controller's call.
const nodeExpansionNotRequired = "volume.kubernetes.io/node-expansion-not-required"

func sizeOf(claim *corev1.PersistentVolumeClaim) claimSize {
	s := claimSize{
		requested: claim.Spec.Resources.Requests[corev1.ResourceStorage],
		allocated: claim.Status.AllocatedResources[corev1.ResourceStorage],
		status:    claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage],
	}
	s.given, s.known = claim.Status.Capacity[corev1.ResourceStorage]
	s.tracked = s.status != "" || claim.Status.AllocatedResources != nil
	for _, mode := range claim.Spec.AccessModes {
		s.everywhere = s.everywhere || mode == corev1.ReadWriteMany && !metav1.HasAnnotation(claim.ObjectMeta, nodeExpansionNotRequired)
	}
	return s
}

// behind: the claim has not been told of the volume's size yet.
func (s claimSize) behind(capacity resource.Quantity) bool {
	return s.known && s.given.Cmp(capacity) < 0
}

// beyond: the claim names a size that this node has not seen.
func (s claimSize) beyond(size resource.Quantity) bool {
	return s.requested.Cmp(size) > 0 || s.allocated.Cmp(size) > 0 || s.given.Cmp(size) > 0
}

// plan is what a node has to do for a volume of which a claim's size speaks.
type plan struct {
	// call: the driver shall be asked for size.
	call bool
	size resource.Quantity
	// done: nothing is left to do here.
	done bool
	// written: the claim has the new size already; nothing is written to its capacity.
	written bool
}

// planFor follows kubelet's rules: which size, and whether it is this node's turn.
func planFor(s claimSize, capacity, here resource.Quantity) plan {
	grown := capacity.Cmp(here) > 0
	switch {
	case !s.known || !grown && !s.behind(capacity):
		return plan{}
	case !s.tracked:
		return plan{call: true, size: capacity, written: !s.behind(capacity)}
	}
	p := plan{size: s.allocated, written: s.status == "" && s.given.Cmp(s.allocated) >= 0}
	switch {
	case p.written && s.everywhere && grown:
		p.call = true
	case p.written:
		p.done = true // by the controller, or it was never this node's
	case s.status == corev1.PersistentVolumeClaimNodeResizePending, s.status == corev1.PersistentVolumeClaimNodeResizeInProgress:
		p.call = true
	default: // the controller is at work, or it was found infeasible
	}
	return p
}

// learnSize takes in what was read of a claim and its volume. The caller holds mu.
func (a *Agent) learnSize(v *volume, s claimSize, capacity resource.Quantity) {
	g := &v.growth
	if g.size.IsZero() {
		g.size = s.given
	}
	g.capacity = capacity
	p := planFor(s, capacity, g.size)
	if p.done {
		g.size = capacity
	}
	due := p.call && !g.inUse
	if due && !g.due {
		g.failure = nodevolume.Failure{}
		a.log.Info("Volume has grown", "volume", v.name, "size", g.size.String(), "capacity", capacity.String())
	}
	g.due = due
	if !due {
		a.letThrough(v)
	}
}

// letThrough lets pods start that waited for the expansion. The caller holds mu.
func (a *Agent) letThrough(v *volume) {
	for _, p := range v.pods {
		if !p.growsFirst {
			continue
		}
		p.growsFirst, p.problem, p.step = false, nil, ""
		if owner := a.pods[types.UID(p.Key.PodUID)]; owner != nil {
			owner.notify()
		}
	}
}

// wantSize takes in the size of a volume that a pod has come to want. If it has grown
// and the claim does not know yet, the pod waits: its containers may have been made for the new size. The caller holds mu.
func (a *Agent) wantSize(v *volume, w *want) {
	if w.claim.name == "" {
		return
	}
	if w.readOnly {
		if w.size.behind(w.capacity) {
			text := fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q requested read-only file system", w.specName)
			a.tellGrowth(v.publication(w.key()), corev1.EventTypeWarning, "FileSystemResizeFailed", text)
		}
		return
	}
	v.growth.inUse = false
	v.publication(w.key()).growsFirst = w.size.behind(w.capacity)
	a.learnSize(v, w.size, w.capacity)
}

// grows says whether a pod's volume is one that may grow and be expanded here.
// A driver that cannot do it on the node leaves nothing to look for. The caller holds mu.
func (a *Agent) grows(w *want) bool {
	if w.claim.name == "" || w.readOnly {
		return false
	}
	_, has := a.plugins.registered(w.driver)
	return has == nil || has.Expand
}

// tellGrowth sends an event about an expansion to the pod and to its claim.
func (a *Agent) tellGrowth(p *publication, kind, reason, text string) {
	a.events.Event(p.podOf(), kind, reason, text)
	a.events.Event(p.claimOf(), kind, reason, text)
}

// claimRef is the claim through which a pod wants a volume.
type claimRef struct {
	name string
	uid  types.UID
}

// expansionText is kubelet's sentence about an expansion that failed: while the
// pod is mounted, or while it runs.
func expansionText(p *publication, err error) (reason, text string) {
	spec := p.Key.SpecName
	switch {
	case !p.growsFirst:
		return "VolumeResizeFailed", fmt.Sprintf("NodeExpandVolume.NodeExpandVolume failed for volume %q : %v", spec, err)
	case p.want.block:
		return "FailedMapVolume", fmt.Sprintf("MapVolume.MarkVolumeAsMounted failed while expanding volume for volume %q : %v", spec, err)
	default:
		return "FailedMount", fmt.Sprintf("MountVolume.Setup failed while expanding volume for volume %q : %v", spec, err)
	}
}

// mergeConditions puts the condition of a failed expansion among those of a claim, or, with
// none given, takes out all that speak of an expansion.
func mergeConditions(status *corev1.PersistentVolumeClaimStatus, failure *corev1.PersistentVolumeClaimCondition) {
	var kept []corev1.PersistentVolumeClaimCondition
	for _, c := range status.Conditions {
		switch c.Type {
		case corev1.PersistentVolumeClaimNodeResizeError:
			if failure != nil && c.Status == failure.Status {
				failure.LastTransitionTime = c.LastTransitionTime
			}
		case corev1.PersistentVolumeClaimFileSystemResizePending, corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimControllerResizeError:
			if failure != nil {
				kept = append(kept, c)
			}
		default:
			kept = append(kept, c)
		}
	}
	if failure != nil {
		kept = append(kept, *failure)
	}
	status.Conditions = kept
}

// syncPause is after how long the claims of a pod are read again: the period, stretched
// by up to a half so that the pods of a node do not all ask at once.
func syncPause(period time.Duration, jitter float64) time.Duration {
	return period + time.Duration(jitter*float64(period)/2)
}
