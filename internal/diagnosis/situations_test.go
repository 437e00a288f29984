package diagnosis

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/drivers"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

const oneDriver = "disk.example.com"

// scene is one volume that a pod on node a has, and for which a pod on node b waits.
type scene struct {
	*Snapshot
	holder, waiter *corev1.Pod
	va             *storagev1.VolumeAttachment
	a              *corev1.Node
}

func newScene() scene {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	at := func(ago time.Duration) metav1.Time { return metav1.NewTime(now.Add(-ago)) }
	unique := corev1.UniqueVolumeName(kube.UniqueVolumeName(oneDriver, "h"))
	node := func(name string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: at(time.Hour), Annotations: map[string]string{kube.ManagedAttachAnnotation: "true"}},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: at(time.Hour)}},
			},
		}
	}
	pod := func(name, node string, running bool) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: at(10 * time.Minute)},
			Spec: corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"},
			}}}},
			Status: corev1.PodStatus{Phase: corev1.PodPending},
		}
		if running {
			p.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
		}
		return p
	}
	s := scene{holder: pod("holder", "a", true), waiter: pod("waiter", "b", false), a: node("a")}
	s.a.Status.VolumesInUse, s.a.Status.VolumesAttached = []corev1.UniqueVolumeName{unique}, []corev1.AttachedVolume{{Name: unique}}
	s.va = &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: kube.AttachmentName("h", oneDriver, "a"), CreationTimestamp: at(10 * time.Minute)},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: oneDriver, NodeName: "a", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv")}},
		Status:     storagev1.VolumeAttachmentStatus{Attached: true},
	}
	s.Snapshot = &Snapshot{
		Now: now, AllNamespaces: true, Whole: []Resource{Pods, Claims, Volumes, Attachments, Nodes, Drivers, CSINodes, Leases},
		Pods: []*corev1.Pod{s.holder, s.waiter}, Nodes: []*corev1.Node{s.a, node("b")}, Attachments: []*storagev1.VolumeAttachment{s.va},
		Claims: []*corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}}},
		Volumes: []*corev1.PersistentVolume{{
			ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec: corev1.PersistentVolumeSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "claim"},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: oneDriver, VolumeHandle: "h"}},
			},
		}},
	}
	return s
}

// replicated makes both pods those of a Deployment, of the templates with these hashes.
func (s scene) replicated(holder, waiter string) {
	for pod, hash := range map[*corev1.Pod]string{s.holder: holder, s.waiter: waiter} {
		pod.Labels = map[string]string{templateHash: hash}
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-" + hash, Controller: new(true)}}
	}
}

// bothFailed gives each pod a VolumeAttachment that is not attached, as upstream's controller does after a failed attach.
func (s scene) bothFailed() {
	second := s.va.DeepCopy()
	second.Name, second.Spec.NodeName, second.CreationTimestamp = kube.AttachmentName("h", oneDriver, "b"), "b", metav1.NewTime(s.Now.Add(-time.Minute))
	s.va.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "rpc error: code = DeadlineExceeded desc = context deadline exceeded"}}
	second.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "rpc error: code = FailedPrecondition desc = attached to node a"}}
	s.Attachments = append(s.Attachments, second)
	s.holder.Status = s.waiter.Status
}

// full makes the scheduler find no free slot for the waiter, with these limits of the nodes.
func (s scene) full(limits map[string]int32) {
	s.waiter.Spec.NodeName = ""
	s.waiter.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes are available: 2 node(s) exceed max volume count."}}
	for node, limit := range limits {
		s.CSINodes = append(s.CSINodes, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: oneDriver, Allocatable: &storagev1.VolumeNodeResources{Count: &limit}},
		}}})
	}
}

// torn has an event say that the volume was detached under the holder, whose container started a minute after the attach.
func (s scene) torn() {
	s.holder.Status.ContainerStatuses[0].State.Running.StartedAt = metav1.NewTime(s.Now.Add(-9 * time.Minute))
	s.Events = []*corev1.Event{{InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "holder", UID: "holder"}, Reason: explain.VolumeDetachedInUse}}
}

// TestSituations holds what the lab showed to be answered wrongly, and the neighbors of these situations.
func TestSituations(t *testing.T) {
	waiter, holder := Ref{Pods, "ns", "waiter"}, Ref{Pods, "ns", "holder"}
	for name, one := range map[string]struct {
		make    func(scene)
		subject Ref
		want    decision.Reason
	}{
		"the holder runs":                         {func(scene) {}, waiter, explain.HeldByRunningPod},
		"two replicas of one template":            {func(s scene) { s.replicated("1", "1") }, waiter, explain.HeldByRunningPod},
		"an update of a Deployment":               {func(s scene) { s.replicated("1", "2") }, waiter, explain.RollingUpdateDeadlock},
		"an attach elsewhere without an answer":   {func(s scene) { s.va.Status.Attached = false; s.holder.Status = s.waiter.Status }, waiter, attachment.OtherWriterAttached},
		"mounted, and all is well":                {func(scene) {}, holder, attachment.Settled},
		"mounted, and the node is silent":         {func(s scene) { s.a.Status.Conditions[0].Status = corev1.ConditionUnknown }, holder, explain.NodeNotReady},
		"mounted, and the Node is gone":           {func(s scene) { s.Nodes = s.Nodes[1:] }, holder, attachment.NodeGone},
		"mounted, and not attached":               {func(s scene) { s.va.Status.Attached = false }, holder, explain.UsedWithoutAttachment},
		"mounted, and without a VolumeAttachment": {func(s scene) { s.Attachments = nil }, holder, explain.UsedWithoutAttachment},
		"mounted, and attached again":             {func(s scene) { s.torn(); s.va.CreationTimestamp = metav1.NewTime(s.Now.Add(-time.Minute)) }, holder, explain.UsedWithoutAttachment},
		"mounted, and an event says detached":     {func(s scene) { s.torn() }, holder, attachment.Settled},
		"mounted, and the event is all of it":     {func(s scene) { s.torn(); s.Attachments, s.a.Status.VolumesInUse = nil, nil }, holder, explain.UsedWithoutAttachment},
		"mounted, and since when is not known":    {func(s scene) { s.torn(); s.holder.Status.ContainerStatuses[0].RestartCount = 2 }, holder, attachment.Settled},
		"the waiter names a volume of another namespace": {func(s scene) {
			s.Volumes[0].Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"5006"}, Lun: new(int32(1))}}
			s.Volumes[0].Spec.ClaimRef.Namespace = "other"
			s.waiter.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{FC: s.Volumes[0].Spec.FC}
		}, waiter, explain.VolumeOfAnotherNamespace},
		"mounted, and the VolumeAttachments are unread": {func(s scene) { s.Attachments, s.Whole = nil, nil }, holder, attachment.Settled},
		"beside the VolumeAttachment of another client": {func(s scene) {
			own := s.va.DeepCopy()
			own.Name, own.Spec.NodeName = kube.AttachmentName("h", oneDriver, "b"), "b"
			own.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "rpc error: code = FailedPrecondition desc = attached elsewhere"}}
			s.va.Name = "by-hand"
			s.Pods, s.a.Status = s.Pods[1:], corev1.NodeStatus{Conditions: s.a.Status.Conditions}
			s.Attachments = append(s.Attachments, own)
		}, waiter, attachment.ForeignAttachment},
		"two that failed, of the pod that came first":  {func(s scene) { s.bothFailed() }, holder, explain.DriverUnavailable},
		"two that failed, of the pod that came second": {func(s scene) { s.bothFailed() }, waiter, attachment.OtherWriterAttached},
		"ended, and still there": {func(s scene) {
			s.holder.Status.Phase, s.holder.DeletionTimestamp, s.holder.DeletionGracePeriodSeconds = corev1.PodSucceeded, &metav1.Time{Time: s.Now.Add(-time.Hour)}, new(int64(30))
		}, holder, explain.UnmountFailing},
		"ended, and a finalizer keeps it": {func(s scene) {
			s.holder.Status.Phase, s.holder.DeletionTimestamp, s.holder.DeletionGracePeriodSeconds = corev1.PodSucceeded, &metav1.Time{Time: s.Now.Add(-time.Hour)}, new(int64(30))
			s.holder.Finalizers = []string{"example.com/keep"}
		}, holder, explain.PodTerminating},
		"every slot has a pod":           {func(s scene) { s.full(map[string]int32{"a": 1}) }, waiter, explain.AttachLimitReached},
		"an orphan on a node with slots": {func(s scene) { s.full(map[string]int32{"a": 9}); s.Pods = s.Pods[1:] }, waiter, explain.AttachLimitReached},
		"an orphan on a full node":       {func(s scene) { s.full(map[string]int32{"a": 1}); s.Pods = s.Pods[1:] }, waiter, explain.OrphansFillNode},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			// The functions change the fields of one Snapshot.
			one.make(s)
			e, err := Explain(s.Snapshot, one.subject)
			if err != nil {
				t.Fatal(err)
			}
			if e.Reason != one.want {
				t.Errorf("%s (%s), want %s", e.Reason, e.Summary, one.want)
			}
		})
	}
}

// TestMessagesOfAttachers reads what csi-attacher and belay-attacher have written in the lab.
func TestMessagesOfAttachers(t *testing.T) {
	for message, want := range map[string]decision.Reason{
		`CSI driver "disk.example.com" did not answer ControllerUnpublishVolume for node "a" within 15s (DeadlineExceeded); next attempt at 12:00`:                                                        explain.DriverUnavailable,
		`rpc error: code = DeadlineExceeded desc = context deadline exceeded`:                                                                                                                             explain.DriverUnavailable,
		`rpc error: code = Internal desc = a snapshot of the disk is being taken`:                                                                                                                         attachment.DetachFailed,
		`volume can be attached to only one node: VolumeAttachment x for node "a" was removed before the driver confirmed the detach, which is retried (last error: rpc error: code = Internal desc = x)`: explain.BackendDisagrees,
		`CSINode a does not contain driver disk.example.com`:                                                                                                                                              explain.DriverNotOnNode,
	} {
		if got, _ := reasonOf(hearError(&storagev1.VolumeError{Message: message}), oneDriver, drivers.Unpublish); got != want {
			t.Errorf("%s: %s, want %s", message, got, want)
		}
	}
}
