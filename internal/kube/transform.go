package kube

import (
	"cmp"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// CacheOptions keeps in the watch caches only what the attach/detach controller reads: in large clusters pods and nodes take most
// of its memory.
func CacheOptions() cache.Options {
	byObject := map[client.Object]cache.ByObject{
		// A pod that is not scheduled needs no volume.
		&corev1.Pod{}:                   {Transform: transform(StripPod), Field: fields.OneTermNotEqualSelector("spec.nodeName", "")},
		&corev1.Node{}:                  {Transform: transform(StripNode)},
		&corev1.PersistentVolumeClaim{}: {Transform: transform(stripClaim)},
		&corev1.PersistentVolume{}:      {Transform: transform(StripVolume)},
		&storagev1.VolumeAttachment{}:   {Transform: transform(StripAttachment)},
		&storagev1.CSIDriver{}:          {Transform: transform(stripDriver)},
		&storagev1.CSINode{}:            {Transform: transform(StripCSINode)},
		// Of the leases only those of nodes, for recovery.
		&coordinationv1.Lease{}: {Transform: transform(stripLease), Namespaces: map[string]cache.Config{corev1.NamespaceNodeLease: {}}},
	}
	return cache.Options{ByObject: byObject, NewInformer: newInformer}
}

// transform applies strip to objects of its type and passes on the rest, such as the tombstones of a missed deletion.
func transform[T client.Object](strip func(T) T) func(any) (any, error) {
	return func(obj any) (any, error) {
		if t, ok := obj.(T); ok {
			return strip(t), nil
		}
		return obj, nil
	}
}

// interned holds what objects of the caches have in common. A client with few rights cannot fill it: of pods and claims it has only the namespaces, which must
// exist.
var interned Interner

func meta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: m.Name, Namespace: interned.Word(m.Namespace), UID: m.UID, ResourceVersion: m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
}

var ofMirrorPod = map[string]string{corev1.MirrorPodAnnotationKey: ""}

// StripPod keeps where the pod runs, whether it still does, its volumes that may be attached, and whether they are mounted.
func StripPod(pod *corev1.Pod) *corev1.Pod {
	kept := &corev1.Pod{ObjectMeta: meta(pod.ObjectMeta)}
	kept.Spec.NodeName = Name(pod.Spec.NodeName)
	if MirrorPod(pod) {
		kept.Annotations = ofMirrorPod
	}
	switch phase := pod.Status.Phase; {
	case phase == corev1.PodFailed, phase == corev1.PodSucceeded:
		kept.Status.Phase = phase
	case VolumesMounted(pod):
		kept.Status.Phase = corev1.PodRunning
	}
	kept.Spec.Volumes = StripVolumes(pod)
	// The state of containers matters only once the pod is being deleted (PodEnded), and then only whether any of them runs: one
	// status stands for all.
	if len(kept.Spec.Volumes) > 0 && pod.DeletionTimestamp != nil && ContainersRun(pod) {
		kept.Status.ContainerStatuses = make([]corev1.ContainerStatus, 1)
	}
	return kept
}

// StripVolumes returns the volumes of a pod that may be attached, unless there are too many.
func StripVolumes(pod *corev1.Pod) []corev1.Volume {
	n, inline := attachable(pod)
	if n == 0 || tooMany(n, inline) && !VolumesMounted(pod) {
		return nil
	}
	kept := make([]corev1.Volume, 0, n) // most of a pod is its volumes, and an API object of a volume is large
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		short := corev1.Volume{Name: v.Name}
		switch {
		case v.PersistentVolumeClaim != nil:
			short.PersistentVolumeClaim = stripClaimOf(v)
		case v.Ephemeral != nil:
			short.Ephemeral = &corev1.EphemeralVolumeSource{}
		case v.FC != nil:
			short.FC = stripFC(v.FC)
		case v.ISCSI != nil:
			short.ISCSI = &corev1.ISCSIVolumeSource{TargetPortal: v.ISCSI.TargetPortal, IQN: v.ISCSI.IQN, Lun: v.ISCSI.Lun}
		case hasInlineVolume(v): // its translation, which the VolumeAttachment gets, has all of it
			short = *v
		default:
			continue
		}
		kept = append(kept, short)
	}
	return kept
}

// stripClaimOf keeps which claim a volume of a pod is.
func stripClaimOf(volume *corev1.Volume) *corev1.PersistentVolumeClaimVolumeSource {
	source := volume.PersistentVolumeClaim
	if name := Name(source.ClaimName); name != source.ClaimName {
		return &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name, ReadOnly: source.ReadOnly}
	}
	return source
}

// stripFC keeps which Fibre Channel volume this is.
func stripFC(source *corev1.FCVolumeSource) *corev1.FCVolumeSource {
	return &corev1.FCVolumeSource{TargetWWNs: source.TargetWWNs, Lun: source.Lun, WWIDs: source.WWIDs}
}

// VolumesMounted reports whether the kubelet has mounted the pod's volumes: it makes the sandbox after that (k/k v1.36.3
// pkg/kubelet/kubelet.go SyncPod: WaitForAttachAndMount before containerRuntime.SyncPod). A phase alone may be that of an earlier boot.
// Of a pod that StripPod returned, the phase says it.
func VolumesMounted(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReadyToStartContainers {
			return c.Status == corev1.ConditionTrue
		}
	}
	return pod.Status.Phase == corev1.PodRunning
}

// PodEnded reports whether the pod no longer needs its volumes: it has ended, or it is being deleted and none of its containers
// runs. No status counts as not running (k/k pkg/volume/util.IsPodTerminated).
func PodEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded ||
		pod.DeletionTimestamp != nil && !ContainersRun(pod)
}

// ContainersRun reports whether a container of the pod runs, or may: a status without a state does not say that it does not.
func ContainersRun(pod *corev1.Pod) bool {
	runs := func(s corev1.ContainerStatus) bool { return s.State.Terminated == nil && s.State.Waiting == nil }
	return slices.ContainsFunc(pod.Status.InitContainerStatuses, runs) ||
		slices.ContainsFunc(pod.Status.ContainerStatuses, runs) ||
		slices.ContainsFunc(pod.Status.EphemeralContainerStatuses, runs)
}

// StripNode keeps the identity of the machine, whether it is ready, isolated or out of service, volumesAttached and volumesInUse, belay's
// annotations, the writer of the report if that is another client, and what recovery must know before it fences the node.
func StripNode(node *corev1.Node) *corev1.Node {
	kept := &corev1.Node{ObjectMeta: meta(node.ObjectMeta)}
	for name, value := range node.Annotations {
		if name == ManagedAttachAnnotation || name == FenceOptOutAnnotation || strings.HasPrefix(name, ownPrefix) {
			if kept.Annotations == nil {
				kept.Annotations = map[string]string{}
			}
			kept.Annotations[name] = value
		}
	}
	for _, name := range append([]string{corev1.LabelTopologyZone, ExcludeLabel}, controlPlaneLabels...) {
		if value, ok := node.Labels[name]; ok {
			if kept.Labels == nil {
				kept.Labels = map[string]string{}
			}
			kept.Labels[name] = value
		}
	}
	for _, taint := range node.Spec.Taints {
		if taint.Key == OutOfServiceTaint || taint.Key == IsolationTaint {
			kept.Spec.Taints = append(kept.Spec.Taints, corev1.Taint{Key: taint.Key, Value: taint.Value, Effect: taint.Effect})
		}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady || condition.Type == MaintenanceInProgress {
			kept.Status.Conditions = append(kept.Status.Conditions, corev1.NodeCondition{Type: condition.Type, Status: condition.Status})
		}
	}
	kept.Status.VolumesAttached = node.Status.VolumesAttached
	kept.Status.VolumesInUse = sameStrings(node.Status.VolumesInUse, node.Status.VolumesAttached)
	kept.Status.NodeInfo.BootID = node.Status.NodeInfo.BootID
	kept.Status.NodeInfo.SystemUUID = node.Status.NodeInfo.SystemUUID
	kept.Spec.ProviderID = node.Spec.ProviderID
	kept.ManagedFields = keepReportWriter(node)
	return kept
}

// sameStrings returns the list of volumes in use, whose names are mostly those of attached ones, with the strings of these.
func sameStrings(inUse []corev1.UniqueVolumeName, attached []corev1.AttachedVolume) []corev1.UniqueVolumeName {
	if len(inUse) == 0 {
		return nil
	}
	names := make(map[corev1.UniqueVolumeName]corev1.UniqueVolumeName, len(attached))
	for i := range attached {
		names[attached[i].Name] = attached[i].Name
	}
	kept := make([]corev1.UniqueVolumeName, len(inUse))
	for i, name := range inUse {
		kept[i] = cmp.Or(names[name], name)
	}
	return kept
}

// stripLease keeps who renewed the lease, and when.
func stripLease(lease *coordinationv1.Lease) *coordinationv1.Lease {
	spec := &lease.Spec
	kept := &coordinationv1.Lease{ObjectMeta: meta(lease.ObjectMeta), Spec: coordinationv1.LeaseSpec{
		LeaseDurationSeconds: spec.LeaseDurationSeconds, AcquireTime: spec.AcquireTime, RenewTime: spec.RenewTime,
	}}
	if spec.HolderIdentity != nil {
		kept.Spec.HolderIdentity = new(Name(*spec.HolderIdentity))
	}
	return kept
}

// stripClaim keeps what the claim is bound to and the pod that owns it.
func stripClaim(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	kept := &corev1.PersistentVolumeClaim{ObjectMeta: meta(claim.ObjectMeta)}
	if owner := metav1.GetControllerOfNoCopy(claim); owner != nil {
		kept.OwnerReferences = []metav1.OwnerReference{{UID: Name(owner.UID), Controller: owner.Controller}}
	}
	kept.Spec.VolumeName = Name(claim.Spec.VolumeName)
	kept.Status.Phase = claim.Status.Phase
	return kept
}

// StripVolume keeps which volume this is, translated to CSI for migrated plugins, its access modes, and its claim. A translation
// needs the labels, annotations and affinity of the object, which are then dropped.
func StripVolume(volume *corev1.PersistentVolume) *corev1.PersistentVolume {
	kept := &corev1.PersistentVolume{ObjectMeta: meta(volume.ObjectMeta)}
	if translator.IsPVMigratable(volume) {
		if translated, err := translatePV(volume); err == nil {
			volume = translated // the access modes may differ too
			kept.Annotations = migrated
		}
	} else if Migrated(volume) {
		kept.Annotations = migrated // a cache may strip an object twice
	}
	kept.Spec.AccessModes = SameModes(volume.Spec.AccessModes)
	if ref := volume.Spec.ClaimRef; ref != nil {
		kept.Spec.ClaimRef = &corev1.ObjectReference{Namespace: interned.Word(Name(ref.Namespace)), Name: Name(ref.Name), UID: Name(ref.UID)}
	}
	switch source := volume.Spec.PersistentVolumeSource; {
	case source.CSI != nil:
		kept.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: interned.Word(source.CSI.Driver), VolumeHandle: source.CSI.VolumeHandle}
	case source.FC != nil:
		kept.Spec.FC = stripFC(source.FC)
	case source.ISCSI != nil:
		kept.Spec.ISCSI = &corev1.ISCSIPersistentVolumeSource{
			TargetPortal: source.ISCSI.TargetPortal, IQN: source.ISCSI.IQN, Lun: source.ISCSI.Lun,
		}
	}
	return kept
}

// onlyModes are the lists that nearly all volumes have. They are shared, because objects of a cache are not changed.
var onlyModes = map[corev1.PersistentVolumeAccessMode][]corev1.PersistentVolumeAccessMode{
	corev1.ReadWriteOnce: {corev1.ReadWriteOnce}, corev1.ReadWriteOncePod: {corev1.ReadWriteOncePod},
	corev1.ReadWriteMany: {corev1.ReadWriteMany}, corev1.ReadOnlyMany: {corev1.ReadOnlyMany},
}

// SameModes returns the shared list of those modes, if there is one.
func SameModes(modes []corev1.PersistentVolumeAccessMode) []corev1.PersistentVolumeAccessMode {
	if len(modes) == 1 {
		if only, ok := onlyModes[modes[0]]; ok {
			return only
		}
	}
	return modes
}

var filesystem, block = corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock

// SameVolumeMode returns the shared value of that mode, if there is one. It must not be changed.
func SameVolumeMode(mode *corev1.PersistentVolumeMode) *corev1.PersistentVolumeMode {
	switch {
	case mode == nil:
	case *mode == filesystem:
		return &filesystem
	case *mode == block:
		return &block
	}
	return mode
}

// migratedMark is an annotation that the cache sets on a translated volume; no such object is ever written.
const migratedMark = ownPrefix + "migrated"

// migrated is shared by all such volumes, because objects of a cache are not changed.
var migrated = map[string]string{migratedMark: "true"}

// Migrated reports whether a volume from the cache has an in-tree plugin that is migrated to CSI.
func Migrated(volume *corev1.PersistentVolume) bool { return volume.Annotations[migratedMark] != "" }

// StripAttachment drops the managed fields, the driver's metadata, and all of an inline source except which volume it is and its
// access modes.
func StripAttachment(attachment *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	kept := &storagev1.VolumeAttachment{ObjectMeta: meta(attachment.ObjectMeta), Spec: attachment.Spec}
	kept.Spec.Attacher, kept.Spec.NodeName = interned.Word(kept.Spec.Attacher), interned.Word(kept.Spec.NodeName)
	switch {
	case UnpublishPrecedesRemoval(attachment):
		kept.Finalizers = attachersFinalizer
	case len(attachment.Finalizers) > 0:
		kept.Finalizers = anyFinalizer
	}
	if inline := attachment.Spec.Source.InlineVolumeSpec; inline != nil {
		short := &corev1.PersistentVolumeSpec{AccessModes: inline.AccessModes}
		if inline.CSI != nil {
			short.CSI = &corev1.CSIPersistentVolumeSource{Driver: inline.CSI.Driver, VolumeHandle: inline.CSI.VolumeHandle}
		}
		kept.Spec.Source.InlineVolumeSpec = short
	}
	kept.Annotations = stripAnnotations(attachment)
	if _, ok := attachment.Annotations[PublishedHandleAnnotation]; ok {
		kept.GenerateName = calledByBelay
	}
	kept.Status.Attached = attachment.Status.Attached
	kept.Status.AttachError = attachment.Status.AttachError
	kept.Status.DetachError = attachment.Status.DetachError
	return kept
}

// stripAnnotations keeps what the controller reads. Attachments that say only of what node they are share one map: a map of its own would take a
// third of what is kept of an attachment.
func stripAnnotations(attachment *storagev1.VolumeAttachment) map[string]string {
	kept, ofNode := map[string]string{}, true
	for _, name := range attachmentAnnotations {
		if name == PendingCallAnnotation && attachment.Status.Attached && attachment.DeletionTimestamp == nil {
			continue // over, and never removed
		}
		value, ok := attachment.Annotations[name]
		if !ok || name == TraceparentAnnotation && len(value) != TraceparentLength {
			continue
		}
		if slices.Contains(nodeAnnotations, name) {
			value = interned.Word(value)
		} else {
			ofNode = false
		}
		kept[name] = value
	}
	if ofNode {
		return interned.Map(kept)
	}
	return kept
}

// anyFinalizer is what the cache keeps of an attachment's finalizers, and attachersFinalizer if its attacher's is one of them. Without any,
// no attacher has begun to attach.
var anyFinalizer, attachersFinalizer = []string{"belay.dev/some"}, []string{"belay.dev/attachers"}

// UnpublishPrecedesRemoval reports whether the attachment has the finalizer of its driver's attacher, which removes it after the driver
// confirmed the unpublish (S5). Without it a delete removes the object at once.
func UnpublishPrecedesRemoval(attachment *storagev1.VolumeAttachment) bool {
	return slices.ContainsFunc(attachment.Finalizers, func(f string) bool {
		return f == attachersFinalizer[0] || f == AttacherFinalizer(attachment.Spec.Attacher)
	})
}

// calledByBelay is what the cache stores, in an unused field, on an attachment for which belay-attacher calls the driver. As an
// annotation it would be a change that the controller processes, for each attach. No such object is ever written.
const calledByBelay = "belay-attacher"

// CalledByBelay reports whether belay-attacher calls the driver for an attachment from the cache.
func CalledByBelay(attachment *storagev1.VolumeAttachment) bool {
	return attachment.GenerateName == calledByBelay
}

// attachmentAnnotations are those that the controller reads.
var attachmentAnnotations = []string{
	DetachRequestedAnnotation, VolumeHandleAnnotation, NodeUIDAnnotation, BootIDAnnotation, SystemUUIDAnnotation,
	ProviderIDAnnotation, UnfencedBootAnnotation, TraceparentAnnotation, NodeIDAnnotation, SameMachineAnnotation,
	PendingCallAnnotation, PublishedElsewhereAnnotation,
}

// nodeAnnotations are those of them whose values all attachments of a node mostly have in common.
var nodeAnnotations = []string{
	NodeUIDAnnotation, BootIDAnnotation, SystemUUIDAnnotation, ProviderIDAnnotation, NodeIDAnnotation, SameMachineAnnotation,
}

// SameAnnotations compares what the cache keeps of two versions of an attachment, except the CSI node ID, which its attacher records with the
// finalizer, and what it says about a call: the controller has nothing to do with most of them.
func SameAnnotations(a, b *storagev1.VolumeAttachment) bool {
	return !slices.ContainsFunc(attachmentAnnotations, func(name string) bool {
		was, had := a.Annotations[name]
		is, has := b.Annotations[name]
		return name != NodeIDAnnotation && name != PendingCallAnnotation && (had != has || was != is)
	})
}

// StripCSINode keeps the names of the drivers and their IDs of the node.
func StripCSINode(node *storagev1.CSINode) *storagev1.CSINode {
	kept := &storagev1.CSINode{ObjectMeta: meta(node.ObjectMeta)}
	for i := range node.Spec.Drivers {
		d := &node.Spec.Drivers[i]
		kept.Spec.Drivers = append(kept.Spec.Drivers, storagev1.CSINodeDriver{Name: d.Name, NodeID: d.NodeID})
	}
	return kept
}

func stripDriver(driver *storagev1.CSIDriver) *storagev1.CSIDriver {
	kept := &storagev1.CSIDriver{ObjectMeta: meta(driver.ObjectMeta)}
	kept.Spec.AttachRequired = driver.Spec.AttachRequired
	if value, ok := driver.Annotations[CutsAtUnpublishAnnotation]; ok {
		kept.Annotations = map[string]string{CutsAtUnpublishAnnotation: value}
	}
	return kept
}
