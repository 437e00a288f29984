package attacher

import (
	"cmp"
	"encoding/json"
	"errors"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	csitrans "k8s.io/csi-translation-lib"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// migratedToAnnotation on a PersistentVolume names the CSI driver that an in-tree volume was migrated to
// (k8s.io/component-helpers, pv.kubernetes.io).
const migratedToAnnotation = "pv.kubernetes.io/migrated-to"

// Indexes over the watch caches.
const (
	indexVolumeName = "volumeName" // attachments of any attacher, by PersistentVolume name
	indexNode       = "node"       // our attachments, by node name
	indexIdentity   = "identity"   // our attachments with an inline source or a recorded handle, by CSI volume handle
	indexInline     = "inline"     // those with an inline source
	indexRecorded   = "recorded"   // our attachments, by recordedPlaces
	indexHandle     = "handle"     // our PersistentVolumes, by CSI volume handle
	indexNodeID     = "nodeID"     // CSINodes, by our driver's node ID
)

// objects holds the watch caches of one driver's attacher.
type objects struct {
	driver     string
	translator csitrans.CSITranslator
	factory    informers.SharedInformerFactory

	attachmentInformer, volumeInformer, csiNodeInformer cache.SharedIndexInformer

	attachments newest[*storagev1.VolumeAttachment]
	volumes     newest[*corev1.PersistentVolume]
	csiNodes    newest[*storagev1.CSINode]

	shared   sharedVolumes
	orphans  *orphans
	interned kube.Interner
	// others are CSI sources with nothing but the driver, by driver.
	others kube.Interned[*corev1.CSIPersistentVolumeSource]
	// keepTraceparents is set before the informers start, if traces are on.
	keepTraceparents bool
}

// newObjects creates the informers; nothing is read before factory.Start.
func newObjects(client kubernetes.Interface, driver string, resync time.Duration) (*objects, error) {
	o := &objects{driver: driver, translator: csitrans.New(), orphans: newOrphans()}
	o.factory = informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithTransform(o.trimObject))
	o.attachmentInformer = o.factory.Storage().V1().VolumeAttachments().Informer()
	o.volumeInformer = o.factory.Core().V1().PersistentVolumes().Informer()
	o.csiNodeInformer = o.factory.Storage().V1().CSINodes().Informer()
	ofAttachments := cache.Indexers{
		indexVolumeName: indexAttachments(func(va *storagev1.VolumeAttachment) *string { return va.Spec.Source.PersistentVolumeName }),
		indexNode: indexAttachments(func(va *storagev1.VolumeAttachment) *string {
			if va.Spec.Attacher != driver {
				return nil
			}
			return &va.Spec.NodeName
		}),
		indexIdentity: indexAttachments(func(va *storagev1.VolumeAttachment) *string {
			return cmp.Or(inlineHandle(va, driver), identified(va, driver))
		}),
		indexInline: indexAttachments(func(va *storagev1.VolumeAttachment) *string { return inlineHandle(va, driver) }),
		indexRecorded: func(item any) ([]string, error) {
			va, ok := item.(*storagev1.VolumeAttachment)
			if !ok || va.Spec.Attacher != driver {
				return nil, nil
			}
			return recordedPlaces(va), nil
		},
	}
	ofVolumes, ofNodes := cache.Indexers{indexHandle: o.indexVolumes}, cache.Indexers{indexNodeID: indexNodes}
	err := errors.Join(o.attachmentInformer.AddIndexers(kube.Coarse(ofAttachments)), o.volumeInformer.AddIndexers(kube.Coarse(ofVolumes)),
		o.csiNodeInformer.AddIndexers(kube.Coarse(ofNodes)))
	if err != nil {
		return nil, err
	}
	o.attachments = newNewest[*storagev1.VolumeAttachment](o.attachmentInformer.GetIndexer(), ofAttachments)
	o.volumes = newNewest[*corev1.PersistentVolume](o.volumeInformer.GetIndexer(), ofVolumes)
	o.csiNodes = newNewest[*storagev1.CSINode](o.csiNodeInformer.GetIndexer(), ofNodes)
	return o, nil
}

// cached lists the cached resources in the order of synced.
var cached = []string{"volumeattachments", "persistentvolumes", "csinodes"}

func (o *objects) synced() []cache.InformerSynced {
	return []cache.InformerSynced{o.attachmentInformer.HasSynced, o.volumeInformer.HasSynced, o.csiNodeInformer.HasSynced}
}

// indexAttachments indexes attachments by one optional string.
func indexAttachments(value func(*storagev1.VolumeAttachment) *string) cache.IndexFunc {
	return func(item any) ([]string, error) {
		va, ok := item.(*storagev1.VolumeAttachment)
		if !ok {
			return nil, nil
		}
		if v := value(va); v != nil {
			return []string{*v}, nil
		}
		return nil, nil
	}
}

// inlineHandle returns the handle of an attachment with an inline source.
func inlineHandle(va *storagev1.VolumeAttachment, driver string) *string {
	inline := va.Spec.Source.InlineVolumeSpec
	if va.Spec.Attacher != driver || va.Spec.Source.PersistentVolumeName != nil || inline == nil || inline.CSI == nil {
		return nil
	}
	return &inline.CSI.VolumeHandle
}

// identified returns the handle that is recorded on an attachment. One with two sources is invalid.
func identified(va *storagev1.VolumeAttachment, driver string) *string {
	handle := recordedHandle(va)
	if va.Spec.Attacher != driver || va.Spec.Source.InlineVolumeSpec != nil || handle == "" {
		return nil
	}
	return &handle
}

// indexNodes indexes CSINodes by the node ID of our driver, the only one that the cache keeps.
func indexNodes(item any) (ids []string, _ error) {
	if node, ok := item.(*storagev1.CSINode); ok {
		for _, driver := range node.Spec.Drivers {
			ids = append(ids, driver.NodeID)
		}
	}
	return ids, nil
}

// indexVolumes indexes our PersistentVolumes by CSI volume handle.
func (o *objects) indexVolumes(item any) ([]string, error) {
	pv, ok := item.(*corev1.PersistentVolume)
	if !ok {
		return nil, nil
	}
	if from, err := o.sourceOfVolume(pv); err == nil {
		return []string{from.handle}, nil
	}
	return nil, nil
}

// trimObject removes unused fields before an object enters a cache: the caches hold the objects of all drivers.
func (o *objects) trimObject(item any) (any, error) {
	switch object := item.(type) {
	case *storagev1.VolumeAttachment:
		return o.trimAttachment(object), nil
	case *corev1.PersistentVolume:
		return o.trimVolume(object), nil
	case *storagev1.CSINode:
		return o.trimCSINode(object), nil
	default:
		return item, nil
	}
}

// trimmedMarker replaces managedFields. It is empty but not nil, which the API server never returns, and so marks an
// object as trimmed: an informer may transform an object twice, and a second copy of each would cost memory.
var trimmedMarker = []metav1.ManagedFieldsEntry{}

func isTrimmed(m metav1.ObjectMeta) bool { return m.ManagedFields != nil && len(m.ManagedFields) == 0 }

func (o *objects) trimMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp,
		DeletionTimestamp: m.DeletionTimestamp, Finalizers: o.interned.List(m.Finalizers), ManagedFields: trimmedMarker,
	}
}

// trimAttachment keeps only the PersistentVolume name of other drivers' attachments. Of the publish context it keeps
// the keys, which are needed to clear it; the values may be large.
func (o *objects) trimAttachment(va *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	if isTrimmed(va.ObjectMeta) {
		return va
	}
	kept := &storagev1.VolumeAttachment{ObjectMeta: o.trimMeta(va.ObjectMeta), Spec: va.Spec, Status: va.Status}
	kept.Spec.Attacher, kept.Spec.NodeName = o.interned.Word(va.Spec.Attacher), o.interned.Word(va.Spec.NodeName)
	if va.Spec.Attacher != o.driver {
		kept.Spec.Source.InlineVolumeSpec = nil
		kept.Status = storagev1.VolumeAttachmentStatus{}
		return kept
	}
	kept.Annotations = o.interned.Map(trimAnnotations(va))
	if handle := va.Annotations[kube.PublishedHandleAnnotation]; o.mayBelongTo(va, handle) { // else it was edited
		kept.GenerateName = handle
	}
	if o.keepTraceparents && len(va.Annotations[kube.TraceparentAnnotation]) == kube.TraceparentLength {
		kept.SelfLink = va.Annotations[kube.TraceparentAnnotation] //nolint:staticcheck // deprecated, and so free
	}
	keys := make(map[string]string, len(va.Status.AttachmentMetadata))
	for key := range va.Status.AttachmentMetadata {
		keys[key] = ""
	}
	kept.Status.AttachmentMetadata = o.interned.Map(keys)
	return kept
}

// foreignDigest is a cache-only annotation: a digest of the labels and of all annotations that belay does not own. Only
// a change of them matters. It is never written to the API server.
const foreignDigest = "belay.dev/others"

// recordedHandle returns the volume handle that was recorded on an attachment before its first call. The cache keeps it
// in GenerateName, which is otherwise unused: the annotations are shared by all attachments of a node, so a handle
// among them would cost a map for each attachment. It is never written to the API server.
func recordedHandle(va *storagev1.VolumeAttachment) string { return va.GenerateName }

// traceparent returns the trace context of an attachment. The cache keeps it in SelfLink, which is otherwise unused, for the same reason.
func traceparent(va *storagev1.VolumeAttachment) string {
	if va == nil {
		return ""
	}
	return va.SelfLink //nolint:staticcheck // deprecated, and so free
}

// recordedSecret returns the Secret that was recorded with the handle.
func recordedSecret(va *storagev1.VolumeAttachment) *corev1.SecretReference {
	namespace, name, ok := strings.Cut(va.Annotations[kube.PublishSecretAnnotation], "/")
	if !ok {
		return nil
	}
	return &corev1.SecretReference{Namespace: namespace, Name: name}
}

// writtenBy is a cache-only annotation: the field manager that wrote the recorded node ID, if that is no attacher. It is never written to the API
// server.
const writtenBy = "belay.dev/node-id-written-by"

// isAttacher reports whether a field manager is an attacher: it is named after its program, csi-attacher or belay-attacher, which vendors name
// otherwise.
func isAttacher(manager string) bool { return strings.Contains(manager, "attacher") }

// keptAnnotations are read. All attachments of a node mostly have the same values, so that they share one map.
var keptAnnotations = []string{kube.NodeIDAnnotation, kube.PublishSecretAnnotation, kube.DetachRequestedAnnotation, kube.BootIDAnnotation,
	kube.SameMachineAnnotation, kube.PublishedElsewhereAnnotation}

// trimAnnotations keeps the annotations that are read, and a digest of those of other components. belay's own
// annotations are not part of the digest: a change of them must not end a back-off.
func trimAnnotations(va *storagev1.VolumeAttachment) map[string]string {
	kept, others := map[string]string{}, map[string]string{}
	if left := va.Annotations[kube.UnpublishedFromAnnotation]; left != "" && !va.Status.Attached { // few attachments of a node share it
		kept[kube.UnpublishedFromAnnotation] = left
	}
	for name, value := range va.Annotations {
		switch {
		case slices.Contains(keptAnnotations, name):
			kept[name] = value
		case name == kube.TraceparentAnnotation:
		case name == kube.DeclaredGoneAnnotation:
			if kube.IsDeclaration(va.ObjectMeta) { // else it was edited or restored
				kept[name] = value
			}
		case name == kube.RetryAnnotation:
			kept[name], others[name] = value, value
		case !kube.IsOwnAnnotation(name):
			others[name] = value
		}
	}
	if by := kube.AnnotationManagers(va.ObjectMeta, kube.NodeIDAnnotation); len(by) > 0 && !slices.ContainsFunc(by, isAttacher) {
		kept[writtenBy] = by[0]
		delete(kept, kube.UnpublishedFromAnnotation) // another cluster's record
	}
	if len(others)+len(va.Labels) > 0 {
		kept[foreignDigest] = digest(va.Labels, others)
	}
	return kept
}

// digest returns a hash of strings, bools, slices and maps.
func digest(things ...any) string {
	sum := fnv.New64a()
	_ = json.NewEncoder(sum).Encode(things)
	return strconv.FormatUint(sum.Sum64(), 36)
}

// inTreeAnnotation is a cache-only annotation on a PersistentVolume of an in-tree plugin, which is cached translated to
// CSI. Its value is the error of a failed translation. It is never written to the API server.
const inTreeAnnotation = "belay.dev/in-tree"

// trimVolume keeps only the existence and the driver of other drivers' volumes. In-tree volumes are translated first,
// because translation reads labels, annotations, claimRef and node affinity, which are dropped here.
func (o *objects) trimVolume(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	if isTrimmed(pv.ObjectMeta) {
		return pv
	}
	kept, marks := &corev1.PersistentVolume{ObjectMeta: o.trimMeta(pv.ObjectMeta)}, map[string]string{}
	if to, ok := pv.Annotations[migratedToAnnotation]; ok {
		marks[migratedToAnnotation] = to
	}
	if o.translator.IsPVMigratable(pv) {
		marks[inTreeAnnotation] = ""
		translated, err := o.translator.TranslateInTreePVToCSI(log.Log, pv)
		if err != nil {
			marks[inTreeAnnotation] = err.Error()
		} else {
			pv = translated
		}
	}
	kept.Annotations = o.interned.Map(marks)
	switch {
	case pv.Spec.CSI == nil:
	case pv.Spec.CSI.Driver != o.driver:
		driver := pv.Spec.CSI.Driver
		kept.Spec.CSI = o.others.Take(driver, &corev1.CSIPersistentVolumeSource{Driver: driver})
	default:
		kept.Spec.CSI = o.trimSource(pv.Spec.CSI)
		keepRequestFields(kept, pv)
		keepClaim(kept, pv)
	}
	return kept
}

// keepClaim stores the bound claim, for log messages, in Status.Message: an ObjectReference would make the cached
// object a tenth larger. It is never written to the API server.
func keepClaim(kept, pv *corev1.PersistentVolume) {
	if claim := pv.Spec.ClaimRef; claim != nil {
		kept.Status.Message = claim.Namespace + "/" + claim.Name
	}
}

// claimOf returns the claim that a cached volume is bound to.
func claimOf(pv *corev1.PersistentVolume) (namespace, name string, ok bool) {
	if pv == nil {
		return "", "", false
	}
	return strings.Cut(pv.Status.Message, "/")
}

// trimSource keeps the fields that ControllerPublishVolume needs.
func (o *objects) trimSource(from *corev1.CSIPersistentVolumeSource) *corev1.CSIPersistentVolumeSource {
	return &corev1.CSIPersistentVolumeSource{
		Driver: o.driver, VolumeHandle: from.VolumeHandle, ReadOnly: from.ReadOnly, FSType: o.interned.Word(from.FSType),
		VolumeAttributes: o.interned.Map(from.VolumeAttributes), ControllerPublishSecretRef: from.ControllerPublishSecretRef,
	}
}

func keepRequestFields(kept, pv *corev1.PersistentVolume) {
	kept.Spec.AccessModes = kube.SameModes(pv.Spec.AccessModes)
	kept.Spec.MountOptions = pv.Spec.MountOptions
	kept.Spec.VolumeMode = kube.SameVolumeMode(pv.Spec.VolumeMode)
}

func (o *objects) trimCSINode(node *storagev1.CSINode) *storagev1.CSINode {
	if isTrimmed(node.ObjectMeta) {
		return node
	}
	kept := &storagev1.CSINode{ObjectMeta: o.trimMeta(node.ObjectMeta)}
	for _, driver := range node.Spec.Drivers {
		if driver.Name == o.driver {
			kept.Spec.Drivers = []storagev1.CSINodeDriver{{Name: o.driver, NodeID: driver.NodeID}}
		}
	}
	return kept
}

// csiSpec returns the spec of a cached PersistentVolume, which has a CSI source, if need be by translation.
func csiSpec(pv *corev1.PersistentVolume) (spec *corev1.PersistentVolumeSpec, migrated bool, err error) {
	failed, migrated := pv.Annotations[inTreeAnnotation]
	switch {
	case failed != "":
		return nil, migrated, errors.New(explain.TranslateFailed(failed))
	case pv.Spec.CSI == nil:
		return nil, migrated, errNotCSI
	}
	return &pv.Spec, migrated, nil
}

// isInTree reports whether a cached PersistentVolume is one of an in-tree plugin.
func isInTree(pv *corev1.PersistentVolume) bool {
	_, inTree := pv.Annotations[inTreeAnnotation]
	return inTree
}

// newest is kube.Newest with lists in a fixed order.
type newest[T kube.Object[T]] struct{ *kube.Newest[T] }

func newNewest[T kube.Object[T]](indexer cache.Indexer, exact cache.Indexers) newest[T] {
	return newest[T]{kube.NewCoarse[T](indexer, exact)}
}

// byIndex returns the newest known objects with an index value, sorted by name.
func (n newest[T]) byIndex(index, value string) []T { return sorted(n.ByIndex(index, value)) }

func sorted[T any](found map[string]T) []T {
	objects := make([]T, 0, len(found))
	for _, name := range slices.Sorted(maps.Keys(found)) {
		objects = append(objects, found[name])
	}
	return objects
}
