package inspect

import (
	"slices"
	"unique"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
)

// The objects of a large cluster have to fit into the memory of a laptop, beside the page that is being read. Each is copied, because
// one object that is kept keeps its whole page.

// one returns the text, once in memory for all objects that have it.
func one(text string) string { return unique.Make(text).Value() }

func keepMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	m.ManagedFields, m.Labels, m.Annotations, m.GenerateName = nil, nil, nil, ""
	m.Namespace = one(m.Namespace)
	for i := range m.Finalizers {
		m.Finalizers[i] = one(m.Finalizers[i])
	}
	return m
}

// keepPod drops what a diagnosis does not need, which is most of a pod. The volumes are those of kube.StripVolumes. With history it keeps all
// conditions and containers.
func keepPod(pod *corev1.Pod, volumes []corev1.Volume, history bool) *corev1.Pod {
	kept := &corev1.Pod{ObjectMeta: keepMeta(pod.ObjectMeta)}
	if hash, ok := pod.Labels["pod-template-hash"]; ok {
		kept.Labels = map[string]string{"pod-template-hash": hash}
	}
	kept.Spec.NodeName = one(pod.Spec.NodeName)
	kept.Spec.Tolerations = keepTolerations(pod.Spec.Tolerations)
	kept.Spec.Volumes = volumes
	if len(volumes) == 0 && kube.TooManyVolumes(pod) {
		kept.Annotations = map[string]string{diagnosis.TooManyVolumes: "true"}
	}
	kept.Status.Phase, kept.Status.Reason = corev1.PodPhase(one(string(pod.Status.Phase))), pod.Status.Reason
	if pod.Status.Phase == corev1.PodFailed {
		kept.Status.Message = pod.Status.Message
	}
	if pod.Spec.NodeName == "" {
		kept.Spec.SchedulingGates = first(pod.Spec.SchedulingGates)
	}
	if !history && pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.ContainerStatuses, runs) {
		kept.Status.ContainerStatuses = running // as most are: what else it was and is does not matter
		return kept
	}
	if !slices.ContainsFunc(pod.Status.ContainerStatuses, runs) { // what a container cannot get may be a folder of a volume
		kept.Spec.InitContainers, kept.Spec.Containers = withFolders(pod.Spec.InitContainers), withFolders(pod.Spec.Containers)
	}
	if history {
		kept.Spec.ReadinessGates = first(pod.Spec.ReadinessGates)
	}
	kept.Status.Conditions = keepConditions(pod.Status.Conditions, history)
	kept.Status.InitContainerStatuses, kept.Status.ContainerStatuses = keepStatuses(pod.Status.InitContainerStatuses), keepStatuses(pod.Status.ContainerStatuses)
	kept.Status.EphemeralContainerStatuses = keepStatuses(pod.Status.EphemeralContainerStatuses)
	return kept
}

// keepConditions keeps how far the pod has come, and with history all conditions.
func keepConditions(conditions []corev1.PodCondition, history bool) (kept []corev1.PodCondition) {
	for _, c := range conditions {
		if c.Type == corev1.PodScheduled || c.Type == corev1.PodReadyToStartContainers || history {
			kept = append(kept, c)
		}
	}
	return kept
}

// withFolders keeps which folders of volumes containers mount.
func withFolders(containers []corev1.Container) (kept []corev1.Container) {
	for i := range containers {
		var mounts []corev1.VolumeMount
		for _, m := range containers[i].VolumeMounts {
			if m.SubPath != "" || m.SubPathExpr != "" {
				mounts = append(mounts, corev1.VolumeMount{Name: m.Name, SubPath: m.SubPath, SubPathExpr: m.SubPathExpr})
			}
		}
		if mounts != nil {
			kept = append(kept, corev1.Container{Name: containers[i].Name, VolumeMounts: mounts})
		}
	}
	return kept
}

// running stands for the containers of a pod that runs: kubelet starts one only after it has mounted the volumes.
var running = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}

func runs(s corev1.ContainerStatus) bool { return s.State.Running != nil }

// keepTolerations keeps those that decide how long a pod stays on a node that is not Ready. Those that the API server adds to every pod
// are in memory once.
func keepTolerations(tolerations []corev1.Toleration) []corev1.Toleration {
	var kept []corev1.Toleration
	for _, t := range tolerations {
		if t.Key == "" || t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable {
			kept = append(kept, t)
		}
	}
	kept = first(kept)
	if slices.EqualFunc(kept, usualTolerations, sameToleration) {
		return usualTolerations
	}
	return kept
}

func sameToleration(a, b corev1.Toleration) bool {
	return a.MatchToleration(&b) && ptr.Equal(a.TolerationSeconds, b.TolerationSeconds)
}

// usualTolerations are those of the admission plugin DefaultTolerationSeconds with its defaults.
var usualTolerations = []corev1.Toleration{
	{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))},
	{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))},
}

func keepStatuses(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	kept := make([]corev1.ContainerStatus, 0, len(statuses))
	for i := range statuses {
		s := &statuses[i]
		kept = append(kept, corev1.ContainerStatus{Name: s.Name, State: s.State, LastTerminationState: s.LastTerminationState, RestartCount: s.RestartCount})
	}
	return kept
}

// keepNode drops the images, which are most of a Node, and what else a diagnosis does not need.
func keepNode(node *corev1.Node) *corev1.Node {
	kept := &corev1.Node{ObjectMeta: node.ObjectMeta}
	kept.ManagedFields = nil
	kept.Spec.Taints, kept.Spec.Unschedulable, kept.Spec.ProviderID = node.Spec.Taints, node.Spec.Unschedulable, node.Spec.ProviderID
	kept.Status.Conditions, kept.Status.NodeInfo = node.Status.Conditions, node.Status.NodeInfo
	kept.Status.VolumesAttached, kept.Status.VolumesInUse = node.Status.VolumesAttached, node.Status.VolumesInUse
	return kept
}

// keepVolume drops the parameters of the driver. An in-tree volume keeps them: its translation to CSI needs them.
func keepVolume(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	if pv.Spec.CSI == nil {
		kept := *pv
		kept.ManagedFields = nil
		return &kept
	}
	kept := &corev1.PersistentVolume{ObjectMeta: keepMeta(pv.ObjectMeta), Status: pv.Status}
	source := *pv.Spec.CSI
	source.VolumeAttributes, source.Driver = nil, one(source.Driver)
	kept.Spec.CSI, kept.Spec.AccessModes, kept.Spec.StorageClassName = &source, keepModes(pv.Spec.AccessModes), one(pv.Spec.StorageClassName)
	kept.Spec.NodeAffinity, kept.Labels = pv.Spec.NodeAffinity, only(pv.Labels, kube.ZoneLabels...)
	if pv.Status.Phase != corev1.VolumeBound { // what a claim is compared with
		kept.Spec.Capacity, kept.Spec.VolumeMode, kept.Spec.VolumeAttributesClassName = pv.Spec.Capacity, pv.Spec.VolumeMode, pv.Spec.VolumeAttributesClassName
	}
	kept.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimPolicy(one(string(pv.Spec.PersistentVolumeReclaimPolicy)))
	if ref := pv.Spec.ClaimRef; ref != nil {
		kept.Spec.ClaimRef = &corev1.ObjectReference{Namespace: one(ref.Namespace), Name: ref.Name, UID: ref.UID}
	}
	return kept
}

func keepModes(modes []corev1.PersistentVolumeAccessMode) []corev1.PersistentVolumeAccessMode {
	for i := range modes {
		modes[i] = corev1.PersistentVolumeAccessMode(one(string(modes[i])))
	}
	return modes
}

// ofClaim are the annotations of a claim that say who provisions it, for which node and of which class.
var ofClaim = []string{diagnosis.ProvisionerAnnotation, kube.SelectedNodeAnnotation, corev1.BetaStorageClassAnnotation}

// keepClaim keeps what the claim is bound to. What it asks for counts only until it is bound, and while it grows.
func keepClaim(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	kept := &corev1.PersistentVolumeClaim{ObjectMeta: keepMeta(claim.ObjectMeta)}
	if claim.Spec.VolumeName == "" || claim.Status.Phase != corev1.ClaimBound {
		kept.Annotations = only(claim.Annotations, ofClaim...)
		kept.Spec.VolumeMode, kept.Spec.VolumeAttributesClassName = claim.Spec.VolumeMode, claim.Spec.VolumeAttributesClassName
		kept.Spec.Resources.Requests, kept.Spec.DataSource, kept.Spec.DataSourceRef = claim.Spec.Resources.Requests, claim.Spec.DataSource, claim.Spec.DataSourceRef
	}
	if len(claim.Status.Conditions) > 0 || len(claim.Status.AllocatedResourceStatuses) > 0 || diagnosis.Growing(claim) {
		kept.Spec.Resources.Requests, kept.Status.Capacity = claim.Spec.Resources.Requests, claim.Status.Capacity
		kept.Status.Conditions, kept.Status.AllocatedResourceStatuses = first(claim.Status.Conditions), claim.Status.AllocatedResourceStatuses
	}
	kept.Spec.VolumeName, kept.Spec.StorageClassName, kept.Spec.AccessModes = claim.Spec.VolumeName, claim.Spec.StorageClassName, keepModes(claim.Spec.AccessModes)
	kept.Status.Phase = corev1.PersistentVolumeClaimPhase(one(string(claim.Status.Phase)))
	return kept
}

// keepAttachment drops the driver's metadata.
func keepAttachment(va *storagev1.VolumeAttachment, history bool) *storagev1.VolumeAttachment {
	kept := &storagev1.VolumeAttachment{ObjectMeta: keepMeta(va.ObjectMeta), Spec: va.Spec}
	if history { // which manager wrote what, and when
		kept.ManagedFields = va.ManagedFields
	}
	kept.Annotations = va.Annotations
	kept.Spec.Attacher, kept.Spec.NodeName = one(va.Spec.Attacher), one(va.Spec.NodeName)
	kept.Status.Attached, kept.Status.AttachError, kept.Status.DetachError = va.Status.Attached, va.Status.AttachError, va.Status.DetachError
	return kept
}
