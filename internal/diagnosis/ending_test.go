package diagnosis

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// ends makes the claim one that is being deleted since an hour, with finalizers.
func (s scene) deletesClaim(finalizers ...string) {
	s.Claims[0].DeletionTimestamp, s.Claims[0].Finalizers = &metav1.Time{Time: s.Now.Add(-time.Hour)}, finalizers
	s.Pods = nil
}

// releases makes the volume one whose claim was deleted an hour ago.
func (s scene) releases(policy corev1.PersistentVolumeReclaimPolicy, phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
	s.Pods, s.Attachments, s.Claims, s.a.Status.VolumesInUse, s.a.Status.VolumesAttached = nil, nil, nil, nil, nil
	pv := s.Volumes[0]
	pv.UID, pv.Spec.PersistentVolumeReclaimPolicy = "pv", policy
	pv.Status.Phase, pv.Status.LastPhaseTransitionTime = phase, &metav1.Time{Time: s.Now.Add(-time.Hour)}
	return pv
}

// failsDelete adds the event of a delete that failed.
func (s scene) failsDelete(message string) {
	s.Snapshot.Events = append(s.Snapshot.Events, &corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolume", Name: "pv", UID: "pv"}, Reason: explain.VolumeFailedDelete, Type: corev1.EventTypeWarning,
		Message: message, LastTimestamp: metav1.NewTime(s.Now.Add(-time.Minute)),
	})
}

// TestWhatEnds names who holds each finalizer, and why a volume cannot be deleted.
func TestWhatEnds(t *testing.T) {
	claim, volume := Ref{Claims, "ns", "claim"}, Ref{Resource: Volumes, Name: "pv"}
	for name, one := range map[string]struct {
		make    func(scene)
		subject Ref
		want    decision.Reason
		text    string
	}{
		"a pod that runs": {func(s scene) { pods := s.Pods[:1]; s.deletesClaim(claimProtection); s.Snapshot.Pods = pods }, claim, explain.ClaimTerminating, "kubernetes.io/pvc-protection keeps it while pod holder (Running) uses it"},
		"a pod that has ended": {func(s scene) {
			s.deletesClaim(claimProtection)
			s.holder.Status = corev1.PodStatus{Phase: corev1.PodSucceeded}
			s.Snapshot.Pods, s.Volumes[0].Spec.PersistentVolumeReclaimPolicy = []*corev1.Pod{s.holder}, corev1.PersistentVolumeReclaimDelete
		}, claim, explain.ClaimTerminating, "Then delete pod holder, which has ended|Decide whether the data of volume pv (reclaim policy Delete) is needed|kubectl patch pv pv -p '{\"spec\":{\"persistentVolumeReclaimPolicy\":\"Retain\"}}'|kubectl delete pod holder -n ns"},
		"a pod that has ended, and a volume that is kept": {func(s scene) {
			s.deletesClaim(claimProtection)
			s.holder.Status = corev1.PodStatus{Phase: corev1.PodSucceeded}
			s.Snapshot.Pods, s.Volumes[0].Spec.PersistentVolumeReclaimPolicy = []*corev1.Pod{s.holder}, corev1.PersistentVolumeReclaimRetain
		}, claim, explain.ClaimTerminating, "stay when the claim is deleted: its reclaim policy is Retain."},
		"a pod without a node does not keep it": {func(s scene) {
			s.deletesClaim(claimProtection)
			s.waiter.Spec.NodeName = ""
			s.waiter.Status.Phase = corev1.PodFailed
			s.Snapshot.Pods = []*corev1.Pod{s.waiter}
		}, claim, explain.ClaimTerminating, "no pod uses it any more, and kube-controller-manager has not removed"},
		"the pods could not be read": {func(s scene) {
			s.deletesClaim(claimProtection)
			s.Whole = []Resource{Claims, Volumes, Attachments, Nodes, Drivers, CSINodes, Leases}
		}, claim, explain.ClaimTerminating, "pods may use it, which could not be read"},
		"a snapshot":         {func(s scene) { s.deletesClaim(snapshotHolds) }, claim, explain.ClaimTerminating, "kubectl get volumesnapshot -n ns"},
		"a clone":            {func(s scene) { s.deletesClaim(cloneHolds) }, claim, explain.ClaimTerminating, "it is being cloned"},
		"another controller": {func(s scene) { s.deletesClaim("backup.example.com/keep") }, claim, explain.ClaimTerminating, "the controller that set the finalizer backup.example.com/keep"},
		"a delete that fails": {func(s scene) {
			s.releases(corev1.PersistentVolumeReclaimDelete, corev1.VolumeReleased)
			s.failsDelete("rpc error: code = PermissionDenied desc = no")
		}, volume, explain.VolumeDeleteFailed, "PermissionDenied"},
		"a delete that failed": {func(s scene) {
			s.releases(corev1.PersistentVolumeReclaimDelete, corev1.VolumeFailed).Status.Message = "no deletable volume plugin matched"
		}, volume, explain.VolumeDeleteFailed, "no deletable volume plugin matched"},
		"no provisioner deletes it": {func(s scene) { s.releases(corev1.PersistentVolumeReclaimDelete, corev1.VolumeReleased) }, volume, explain.VolumeTerminating, "its provisioner has not deleted it"},
		"a volume that is kept":     {func(s scene) { s.releases(corev1.PersistentVolumeReclaimRetain, corev1.VolumeReleased) }, volume, attachment.Settled, "its claim ns/claim was deleted, and its reclaim policy Retain keeps it"},
		"a kept one, and an event": {func(s scene) {
			s.releases(corev1.PersistentVolumeReclaimRetain, corev1.VolumeReleased)
			s.failsDelete("old")
		}, volume, attachment.Settled, "Retain keeps it"},
		"a volume that is attached": {func(s scene) {
			va := s.va
			s.releases(corev1.PersistentVolumeReclaimDelete, corev1.VolumeReleased)
			s.Snapshot.Attachments = append(s.Snapshot.Attachments, va)
		}, volume, explain.OrphanAttachment, ""},
		"a volume with finalizers": {func(s scene) {
			pv := s.releases(corev1.PersistentVolumeReclaimRetain, corev1.VolumeReleased)
			pv.DeletionTimestamp = &metav1.Time{Time: s.Now.Add(-time.Hour)}
			pv.Finalizers = []string{volumeProtection, "external-attacher/disk-example-com"}
		}, volume, explain.VolumeTerminating, "its attacher keeps it until it is detached everywhere"},
		"a bound one that is deleted": {func(s scene) {
			s.Pods = nil
			s.Attachments, s.a.Status.VolumesInUse, s.a.Status.VolumesAttached = nil, nil, nil
			pv := s.Volumes[0]
			pv.DeletionTimestamp, pv.Finalizers, pv.Status.Phase = &metav1.Time{Time: s.Now.Add(-time.Hour)}, []string{volumeProtection}, corev1.VolumeBound
		}, volume, explain.VolumeTerminating, "a claim is bound to it"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			one.make(s)
			e, err := Explain(s.Snapshot, one.subject)
			if err != nil || e.Reason != one.want || !says(&e, one.text) {
				t.Errorf("%s: %s (%v), want %s and %q", e.Reason, e.Summary, err, one.want, one.text)
			}
			listed := Stuck(s.Snapshot, "", 0)
			has := false
			for _, f := range listed.Items {
				has = has || f.Reason == one.want
			}
			if has != (e.Verdict == Blocked) {
				t.Errorf("stuck: %v, explain: %s", listed.Items, e.Verdict)
			}
		})
	}
}

// grows makes the claim of the holder ask for more than it has.
func (s scene) grows(conditions ...corev1.PersistentVolumeClaimCondition) *corev1.PersistentVolumeClaim {
	claim := s.Claims[0]
	claim.UID, claim.Status.Phase = "claim", corev1.ClaimBound
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("20Gi")}
	claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")}
	for i := range conditions {
		conditions[i].Status, conditions[i].LastTransitionTime = corev1.ConditionTrue, metav1.NewTime(s.Now.Add(-time.Hour))
	}
	claim.Status.Conditions = conditions
	s.Pods = s.Pods[:1]
	return claim
}

// step sets what is done now to make the volume larger.
func step(claim *corev1.PersistentVolumeClaim, status corev1.ClaimResourceStatus) {
	claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: status}
}

// TestWhatGrows says who has to do the next step of a resize.
func TestWhatGrows(t *testing.T) {
	pending := corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Message: "Waiting for user to (re-)start a pod to finish file system resize of volume on node."}
	for name, one := range map[string]struct {
		make func(scene)
		want decision.Reason
		text string
	}{
		"the file system, and a pod runs":         {func(s scene) { step(s.grows(pending), corev1.PersistentVolumeClaimNodeResizePending) }, explain.ResizePending, "kubectl delete pod holder -n ns"},
		"the file system, by the condition alone": {func(s scene) { s.grows(pending) }, explain.ResizePending, "asks for 20Gi and has 10Gi"},
		"the file system, and the attacher does not run": {func(s scene) {
			step(s.grows(pending), corev1.PersistentVolumeClaimNodeResizePending)
			s.Drivers = append(s.Drivers, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: oneDriver}})
			s.Leases = append(s.Leases, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: "csi", Name: kube.SanitizeDriverName(kube.AttacherLease + oneDriver)},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("csi-0"), RenewTime: &metav1.MicroTime{Time: s.Now.Add(-time.Hour)}},
			})
		}, explain.ResizePending, "but no attacher of CSI driver disk.example.com runs|Leave the pod running, and start the driver's attacher first.|kubectl get pods -o wide -n csi"},
		"the file system, and the driver has left the node": {func(s scene) {
			step(s.grows(pending), corev1.PersistentVolumeClaimNodeResizePending)
			s.CSINodes = append(s.CSINodes, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
		}, explain.ResizePending, "has not registered on node a|Leave the pod running until the driver has registered on node a"},
		"the file system, and no pod runs": {func(s scene) {
			step(s.grows(pending), corev1.PersistentVolumeClaimNodeResizePending)
			s.Pods, s.Attachments, s.a.Status.VolumesInUse, s.a.Status.VolumesAttached = nil, nil, nil, nil
		}, explain.ResizePending, "no pod uses it"},
		"no resizer": {func(s scene) {
			s.grows()
			s.ofClaim("volume_expand", "Normal", "ExternalExpanding", "waiting for an external controller to expand this PVC", 10*time.Minute)
		}, explain.ResizePending, "no component has made the volume larger"},
		"the controller refuses the size": {func(s scene) {
			step(s.grows(corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimControllerResizeError, Message: "failed to expand pvc with rpc error: code = OutOfRange desc = 16Ti at most"}), corev1.PersistentVolumeClaimControllerResizeInfeasible)
		}, explain.ResizeFailed, "The request may be lowered"},
		"the node refuses the size": {func(s scene) {
			step(s.grows(corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimNodeResizeError, Message: "failed to expand pvc with rpc error: code = InvalidArgument desc = no"}), corev1.PersistentVolumeClaimNodeResizeInfeasible)
		}, explain.ResizeFailed, "The request may be lowered"},
		"the controller fails": {func(s scene) {
			step(s.grows(corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimResizing}), corev1.PersistentVolumeClaimControllerResizeInProgress)
			s.ofClaim("external-resizer disk.example.com", "Warning", "VolumeResizeFailed", `resize volume "pv" by resizer "disk.example.com" failed: rpc error: code = Internal desc = in optimizing state`, time.Minute)
		}, explain.ResizeFailed, "in optimizing state"},
		"the node fails": {func(s scene) {
			step(s.grows(pending), corev1.PersistentVolumeClaimNodeResizeInProgress)
			s.ofClaim("kubelet", "Warning", "FileSystemResizeFailed", "NodeExpandVolume.NodeExpandVolume failed: resize2fs", time.Minute)
		}, explain.ResizeFailed, "kubectl delete pod holder -n ns"},
		"it failed, and then succeeded": {func(s scene) {
			claim := s.grows()
			claim.Status.Capacity = claim.Spec.Resources.Requests
			s.ofClaim("external-resizer disk.example.com", "Warning", "VolumeResizeFailed", "failed", time.Minute)
		}, attachment.Settled, ""},
		"a claim that has more than it asks for": {func(s scene) {
			claim := s.grows()
			claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("30Gi")}
		}, attachment.Settled, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			one.make(s)
			subjects := []Ref{{Claims, "ns", "claim"}}
			if len(s.Pods) > 0 {
				subjects = append(subjects, Ref{Pods, "ns", "holder"})
			}
			for _, subject := range subjects {
				e, err := Explain(s.Snapshot, subject)
				if err != nil || e.Reason != one.want || !says(&e, one.text) {
					t.Errorf("%s: %s: %s (%v), want %s and %q", subject, e.Reason, e.Summary, err, one.want, one.text)
				}
			}
		})
	}
}

// TestNamedVolumes: a claim that names a PersistentVolume and is not bound to it.
func TestNamedVolumes(t *testing.T) {
	for name, one := range map[string]struct {
		make func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume)
		want decision.Reason
		text string
	}{
		"another class": {func(c *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) { pv.Spec.StorageClassName = "slow" }, explain.VolumeMismatch, `kubectl patch pv pv -p '{"spec":{"storageClassName":"fast"}}'`},
		"too small": {func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			pv.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("1Gi")
		}, explain.VolumeMismatch, "it has 1Gi, and the claim asks for 10Gi"},
		"other access modes": {func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}, explain.VolumeMismatch, "its access modes are [ReadWriteOnce], and the claim asks for [ReadWriteMany]"},
		"another volume mode": {func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
		}, explain.VolumeMismatch, "its volumeMode is Filesystem, and that of the claim Block"},
		"bound to another": {func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "other", UID: "other"}
		}, explain.VolumeMismatch, "it is bound to another claim, ns/other, which was deleted"},
		"bound to an earlier": {func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "claim", UID: "old"}
		}, explain.VolumeMismatch, `kubectl patch pv pv -p '{"spec":{"claimRef":null}}'`},
		"deleted": {func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			pv.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		}, explain.VolumeMismatch, "it is being deleted"},
		"other attributes": {func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.Spec.VolumeAttributesClassName = new("gold")
		}, explain.VolumeMismatch, `its volumeAttributesClassName is "", and that of the claim "gold"`},
		"it is about to be": {func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {}, explain.ClaimNotBound, ""},
		"it is bound": {func(c *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			c.Status.Phase = corev1.ClaimBound
			pv.Spec.StorageClassName = "slow"
		}, attachment.Settled, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			claim, pv := s.unbound(), newScene().Volumes[0]
			claim.Spec.VolumeName, claim.Spec.AccessModes = "pv", []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
			claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")}
			pv.Spec.ClaimRef, pv.Spec.StorageClassName, pv.Spec.Capacity = nil, "fast", corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")}
			s.Volumes, s.Pods, s.a.Status.VolumesInUse, s.a.Status.VolumesAttached = append(s.Volumes, pv), nil, nil, nil
			one.make(claim, pv)
			e, err := Explain(s.Snapshot, Ref{Claims, "ns", "claim"})
			if err != nil || e.Reason != one.want || !says(&e, one.text) {
				t.Errorf("%s: %s (%v), want %s and %q", e.Reason, e.Summary, err, one.want, one.text)
			}
		})
	}
}
