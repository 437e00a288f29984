package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/drivers"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// Finalizers of claims and volumes, and who removes them: k/k v1.36.3 pkg/volume/util/finalizer.go; external-provisioner v5.3.0
// pkg/controller/clone_controller.go:44 and sig-storage-lib-external-provisioner v11.0.1 controller/controller.go finalizerPV; external-snapshotter v8
// pkg/utils/util.go PVCFinalizer.
const (
	claimProtection    = "kubernetes.io/pvc-protection"
	volumeProtection   = "kubernetes.io/pv-protection"
	inTreeProtection   = "kubernetes.io/pv-controller"
	provisionerHolds   = "external-provisioner.volume.kubernetes.io/finalizer"
	cloneHolds         = "provisioner.storage.kubernetes.io/cloning-protection"
	snapshotHolds      = "snapshot.storage.kubernetes.io/pvc-as-source-protection"
	attacherHoldsStart = "external-attacher/"
)

// claimEnding explains why a claim that is being deleted still exists: who holds each of its finalizers.
func (x *state) claimEnding(claim *corev1.PersistentVolumeClaim) wait {
	w := wait{reason: explain.ClaimTerminating, since: claim.DeletionTimestamp.Time}
	var held []string
	var pods []PodState
	cause := explain.Cause("")
	for _, f := range claim.Finalizers {
		switch f {
		case claimProtection:
			pods = x.keepersOf(claim)
			held = append(held, x.keptBy(claim, pods))
		case snapshotHolds:
			held = append(held, "a VolumeSnapshot is being taken of it ("+f+")")
			cause = explain.HeldBySnapshot
		case cloneHolds:
			held = append(held, "it is being cloned to another claim ("+f+")")
		default:
			held = append(held, "the controller that set the finalizer "+x.foreign(f)+" has not removed it")
		}
	}
	w.detail = strings.Join(held, "; ")
	w.fill = func(s *explain.Situation) {
		s.Claim, s.Cause = claim.Name, cause
		s.Volume = claim.Spec.VolumeName
		if pv := x.volumes[claim.Spec.VolumeName]; pv != nil {
			s.Policy = string(pv.Spec.PersistentVolumeReclaimPolicy)
			if size := pv.Spec.Capacity[corev1.ResourceStorage]; !size.IsZero() {
				s.HasSize = size.String()
			}
		}
		if len(pods) > 0 {
			s.HolderNamespace, s.HolderName, s.HolderOwner, s.HolderEnded = pods[0].Namespace, pods[0].Name, pods[0].Owner, podEnded(pods[0])
		}
	}
	return w
}

func podEnded(p PodState) bool {
	return p.State == string(corev1.PodSucceeded) || p.State == string(corev1.PodFailed)
}

// keepersOf are the pods for which the protection controller keeps a claim: those that have a node, also if they have ended; of a generic ephemeral
// volume, only its own pod while it runs (k/k v1.36.3 pkg/controller/volume/pvcprotection/pvc_protection_controller.go podUsesPVCForDeletion).
func (x *state) keepersOf(claim *corev1.PersistentVolumeClaim) (pods []PodState) {
	for _, pod := range x.byClaim[join(claim.Namespace, claim.Name)] {
		ephemeral := !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name
		})
		if pod.Spec.NodeName == "" || ephemeral && (kube.PodEnded(pod) || !kube.OwnsClaim(pod, claim)) {
			continue
		}
		pods = append(pods, podState(pod))
	}
	slices.SortFunc(pods, func(a, b PodState) int { // those that run decide
		if ended := podEnded(a); ended != podEnded(b) {
			return map[bool]int{true: 1, false: -1}[ended]
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return pods
}

// keptBy says which pods keep a claim.
func (x *state) keptBy(claim *corev1.PersistentVolumeClaim, pods []PodState) string {
	var names []string
	for _, p := range pods {
		names = append(names, fmt.Sprintf("%s (%s)", p.Name, p.State))
	}
	switch {
	case len(names) == 1:
		return claimProtection + " keeps it while pod " + names[0] + " uses it"
	case len(names) > 0:
		return claimProtection + " keeps it while pods use it: " + few(names)
	case !slices.Contains(x.Whole, Pods) && !slices.Contains(x.Absent, PodsIn(claim.Namespace)):
		return "pods may use it, which could not be read (" + claimProtection + ")"
	}
	return "no pod uses it any more, and kube-controller-manager has not removed " + claimProtection
}

// claimFinding makes a finding about a claim itself.
func (x *state) claimFinding(claim *corev1.PersistentVolumeClaim, w wait) Finding {
	more := w.fill
	w.fill = func(s *explain.Situation) {
		s.Namespace = claim.Namespace
		if more != nil {
			more(s)
		}
	}
	f := x.finding(nil, w, &Volume{Namespace: claim.Namespace, Claim: claim.Name, PersistentVolume: claim.Spec.VolumeName}, nil)
	f.Subject = Ref{Resource: Claims, Namespace: claim.Namespace, Name: claim.Name}
	return f
}

// endingOrGrowing returns what a claim waits for that is being deleted, or that is to grow.
func (x *state) endingOrGrowing(claim *corev1.PersistentVolumeClaim) (found []Finding) {
	if claim.DeletionTimestamp != nil {
		w := x.claimEnding(claim)
		found = append(found, x.claimFinding(claim, w))
	}
	if w := x.resizing(claim); w.reason != "" {
		found = append(found, x.claimFinding(claim, w))
	}
	return found
}

// growing returns what the claims of a pod wait for that are to grow: the pod runs, and may have to be started again.
func (x *state) growing(pod *corev1.Pod) (found []Finding) {
	for i := range pod.Spec.Volumes {
		claim := x.claims[join(pod.Namespace, kube.ClaimName(pod, &pod.Spec.Volumes[i]))]
		if claim == nil {
			continue
		}
		if w := x.resizing(claim); w.reason != "" {
			found = append(found, x.claimFinding(claim, w))
		}
	}
	return found
}

// DeleteMayFail reports whether a volume is to be deleted at its storage, so that an event may say why it is not.
func DeleteMayFail(pv *corev1.PersistentVolume) bool {
	return pv.Status.Phase == corev1.VolumeFailed || pv.Status.Phase == corev1.VolumeReleased && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
}

// volumeEnding explains why a volume that no claim uses any more still exists; without a finding, clear says what there is to say.
func (x *state) volumeEnding(pv *corev1.PersistentVolume) (found []Finding, clear string) {
	ref := pv.Spec.ClaimRef
	of := ""
	if ref != nil && x.mayName(ref.Namespace) {
		of = ref.Namespace + "/" + ref.Name
	}
	w := wait{fill: func(s *explain.Situation) { s.Volume = pv.Name }}
	failure := x.lastEvent(string(pv.UID), explain.VolumeFailedDelete)
	switch {
	case pv.Status.Phase == corev1.VolumeFailed, failure != nil && DeleteMayFail(pv):
		w.reason, w.detail = explain.VolumeDeleteFailed, pv.Status.Message
		if failure != nil {
			w.detail = failure.Message
		}
		driver := ""
		if pv.Spec.CSI != nil {
			driver = pv.Spec.CSI.Driver
		}
		cause, detail := provisioningCause(driver, w.detail)
		w.answer.Right = rightTo(driver, drivers.Delete)
		w.detail = w.says(x.foreign(detail))
		w.fill = func(s *explain.Situation) { s.Volume, s.Cause = pv.Name, cause }
	case pv.DeletionTimestamp != nil:
		w.reason, w.detail = explain.VolumeTerminating, x.foreign(x.volumeHeld(pv))
	case DeleteMayFail(pv):
		w.reason = explain.VolumeTerminating
		w.detail = "its claim was deleted, and its provisioner has not deleted it at the storage"
	case pv.Status.Phase == corev1.VolumeReleased:
		return nil, fmt.Sprintf("volume %s is Released: its claim %s was deleted, and its reclaim policy %s keeps it; no claim gets it until its claimRef is removed",
			pv.Name, cmp.Or(of, "of another namespace"), pv.Spec.PersistentVolumeReclaimPolicy)
	default:
		return nil, ""
	}
	w.since = x.endSince(pv)
	f := x.finding(nil, w, &Volume{PersistentVolume: pv.Name}, nil)
	key, _ := kube.KeyOfVolume(pv) // of a volume without one, its claim says in which namespace it is listed
	f.Volume = x.describe(key, pv)
	f.Subject = Ref{Resource: Volumes, Name: pv.Name}
	return []Finding{f}, ""
}

// endSince is when the end of a volume began, zero if that is unknown.
func (x *state) endSince(pv *corev1.PersistentVolume) time.Time {
	switch {
	case pv.DeletionTimestamp != nil:
		return pv.DeletionTimestamp.Time
	case pv.Status.LastPhaseTransitionTime != nil:
		return pv.Status.LastPhaseTransitionTime.Time
	}
	return time.Time{}
}

// volumeHeld says who holds each finalizer of a volume that is being deleted.
func (x *state) volumeHeld(pv *corev1.PersistentVolume) string {
	var held []string
	for _, f := range pv.Finalizers {
		switch {
		case f == volumeProtection && pv.Status.Phase == corev1.VolumeBound:
			held = append(held, "a claim is bound to it")
		case f == volumeProtection:
			held = append(held, "kube-controller-manager has not removed "+f)
		case f == provisionerHolds, f == inTreeProtection:
			held = append(held, "its provisioner has not deleted it at the storage ("+f+")")
		case strings.HasPrefix(f, attacherHoldsStart):
			held = append(held, "its attacher keeps it until it is detached everywhere ("+f+")")
		default:
			held = append(held, "the controller that set the finalizer "+f+" has not removed it")
		}
	}
	return strings.Join(held, "; ")
}

// Growing reports whether a bound claim asks for more than it has.
func Growing(claim *corev1.PersistentVolumeClaim) bool {
	size, has := wanted(claim), claim.Status.Capacity[corev1.ResourceStorage]
	return claim.Spec.VolumeName != "" && !has.IsZero() && size.Cmp(has) > 0
}

// resizeEvents are the warnings of who resizes: external-resizer (external-resizer v2.3.0 pkg/util/events.go:22) and kubelet (k/k v1.36.3
// pkg/kubelet/events/event.go:65,67).
var resizeEvents = []string{explain.VolumeResizeFailed, explain.FileSystemResizeFailed}

// resizing returns what the growth of a claim waits for; without a reason for nothing. The conditions and the status of the resource are those of
// k8s.io/api v0.36.3 core/v1/types.go, set by external-resizer v2.3.0 pkg/controller/resize_status.go and k/k v1.36.3 pkg/volume/util/resize_util.go.
func (x *state) resizing(claim *corev1.PersistentVolumeClaim) wait {
	conditions := map[corev1.PersistentVolumeClaimConditionType]corev1.PersistentVolumeClaimCondition{}
	for _, c := range claim.Status.Conditions {
		if c.Status == corev1.ConditionTrue {
			conditions[c.Type] = c
		}
	}
	step := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	_, waiting := conditions[corev1.PersistentVolumeClaimFileSystemResizePending]
	if !Growing(claim) && step == "" && !waiting {
		return wait{}
	}
	w := wait{reason: explain.ResizePending, since: x.resizeSince(claim, conditions)}
	for _, t := range []corev1.PersistentVolumeClaimConditionType{corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError} {
		if c, has := conditions[t]; has {
			w.reason, w.detail = explain.ResizeFailed, w.says(x.foreign(c.Message))
		}
	}
	byNode := nodeGrows(step, waiting)
	if failed := x.resizeError(claim, byNode); failed != nil && w.detail == "" {
		w.reason, w.detail = explain.ResizeFailed, w.says(x.foreign(strings.TrimPrefix(failed.Message, combined)))
	}
	cause := explain.ControllerResizes
	switch {
	case step == corev1.PersistentVolumeClaimControllerResizeInfeasible, step == corev1.PersistentVolumeClaimNodeResizeInfeasible:
		w.reason, cause = explain.ResizeFailed, explain.SizeRefused
	case byNode:
		cause = explain.NodeResizes
	}
	size, has := wanted(claim), claim.Status.Capacity[corev1.ResourceStorage]
	users := x.runningOn(claim)
	w.fill = func(s *explain.Situation) {
		s.Cause, s.Size, s.HasSize = cause, size.String(), sizeText(has)
		if len(users) > 0 {
			s.HolderNamespace, s.HolderName, s.HolderOwner = users[0].Namespace, users[0].Name, users[0].Owner
			if cause == explain.NodeResizes {
				x.mayNotReturn(s, claim, users[0])
			}
		}
	}
	return w
}

// mayNotReturn adds why the user of a claim could not have its volume again if it were ended: no attacher runs, or the driver is not on its node.
func (x *state) mayNotReturn(s *explain.Situation, claim *corev1.PersistentVolumeClaim, user PodState) {
	pod := x.pods[join(user.Namespace, user.Name)]
	key, pv, ok := x.volumeOfClaim(claim.Namespace, claim.Name)
	if !ok || pod == nil || kube.NoAttacher(key.Driver) {
		return
	}
	of := x.situation(x.describe(key, pv), nil)
	s.Driver, s.LeaseNamespace, s.AttacherPod = of.Driver, of.LeaseNamespace, of.AttacherPod
	if runs, _ := x.attacherState(key.Driver); x.attachRequired(key.Driver) && runs == decision.No {
		s.NotAgain = "no attacher of CSI driver " + key.Driver + " runs"
	} else if x.onNode(key.Driver, pod.Spec.NodeName) == decision.No {
		s.NotAgain, s.OffNode = "CSI driver "+key.Driver+" has not registered on node "+pod.Spec.NodeName, pod.Spec.NodeName
	}
}

// nodeGrows reports whether the volume is larger at the storage, so that the rest is kubelet's.
func nodeGrows(step corev1.ClaimResourceStatus, waiting bool) bool {
	return waiting || step == corev1.PersistentVolumeClaimNodeResizePending || step == corev1.PersistentVolumeClaimNodeResizeInProgress
}

// resizeError is the last error of a resize, nil if a resize has succeeded since, or if it is the controller's and the rest is the node's.
func (x *state) resizeError(claim *corev1.PersistentVolumeClaim, byNode bool) *corev1.Event {
	failed := x.lastEvent(string(claim.UID), resizeEvents...)
	done := x.lastEvent(string(claim.UID), "VolumeResizeSuccessful", explain.FileSystemResizeSuccessful)
	if failed != nil && byNode && !from(failed, nodeAgents) {
		return nil
	}
	if failed != nil && done != nil && eventTime(done).After(eventTime(failed)) {
		return nil
	}
	return failed
}

func sizeText(q resource.Quantity) string {
	if q.IsZero() {
		return ""
	}
	return q.String()
}

// resizeSince is when the last step of a resize began.
func (x *state) resizeSince(claim *corev1.PersistentVolumeClaim, conditions map[corev1.PersistentVolumeClaimConditionType]corev1.PersistentVolumeClaimCondition) (since time.Time) {
	for _, c := range conditions {
		if c.LastTransitionTime.After(since) {
			since = c.LastTransitionTime.Time
		}
	}
	if since.IsZero() {
		if events := x.events[string(claim.UID)]; len(events) > 0 {
			since = eventTime(events[len(events)-1])
		}
	}
	return since
}

// runningOn are the pods that use a claim and have a node.
func (x *state) runningOn(claim *corev1.PersistentVolumeClaim) (pods []PodState) {
	for _, pod := range x.byClaim[join(claim.Namespace, claim.Name)] {
		if pod.Spec.NodeName != "" && !kube.PodEnded(pod) {
			pods = append(pods, podState(pod))
		}
	}
	slices.SortFunc(pods, func(a, b PodState) int { return cmp.Compare(a.Name, b.Name) })
	return pods
}
