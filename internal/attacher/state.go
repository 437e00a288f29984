package attacher

import (
	"encoding/json"
	"errors"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	csitrans "k8s.io/csi-translation-lib"

	"belay.dev/belay/internal/kube"
)

// migratedToAnnotation on a PersistentVolume names the CSI driver that looks
// after an in-tree volume (k8s.io/component-helpers, pv.kubernetes.io).
const migratedToAnnotation = "pv.kubernetes.io/migrated-to"

// Indexes over the watch caches.
const (
	indexVolumeName = "volumeName" // attachments of any attacher, by PersistentVolume name
	indexNode       = "node"       // our attachments, by node name
	indexIdentity   = "identity"   // our attachments that say themselves which volume they are for, by CSI volume handle
	indexHandle     = "handle"     // our PersistentVolumes, by CSI volume handle
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

	orphans *orphans
	common  *interner
}

// newObjects prepares the caches; nothing is read before factory.Start.
func newObjects(client kubernetes.Interface, driver string, resync time.Duration) (*objects, error) {
	o := &objects{driver: driver, translator: csitrans.New(), orphans: newOrphans(), common: newInterner()}
	o.factory = informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithTransform(o.keepWhatIsRead))
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
			inline, handle := va.Spec.Source.InlineVolumeSpec, recordedHandle(va)
			switch {
			case va.Spec.Attacher != driver:
				return nil
			case va.Spec.Source.PersistentVolumeName == nil && inline != nil && inline.CSI != nil:
				return &inline.CSI.VolumeHandle
			case inline == nil && handle != "": // those with two sources are nobody's
				return &handle
			}
			return nil
		}),
	}
	ofVolumes := cache.Indexers{indexHandle: o.indexVolumes}
	if err := errors.Join(o.attachmentInformer.AddIndexers(kube.Coarse(ofAttachments)), o.volumeInformer.AddIndexers(kube.Coarse(ofVolumes))); err != nil {
		return nil, err
	}
	o.attachments = newNewest[*storagev1.VolumeAttachment](o.attachmentInformer.GetIndexer(), ofAttachments)
	o.volumes = newNewest[*corev1.PersistentVolume](o.volumeInformer.GetIndexer(), ofVolumes)
	o.csiNodes = newNewest[*storagev1.CSINode](o.csiNodeInformer.GetIndexer(), nil)
	return o, nil
}

// cached are the resources of the caches, in the order of synced.
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

// keepWhatIsRead drops what is never looked at before it enters a cache: the
// caches hold the objects of every driver in the cluster.
func (o *objects) keepWhatIsRead(item any) (any, error) {
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

// noWriters stands for the list of who wrote which field. Not nil and empty, as none comes from the API server, it shows that
// an object was trimmed before: while a cache is filled each is trimmed twice, and a second copy of all is memory.
var noWriters = []metav1.ManagedFieldsEntry{}

func isTrimmed(m metav1.ObjectMeta) bool { return m.ManagedFields != nil && len(m.ManagedFields) == 0 }

// trimMeta keeps an object's identity and its finalizers.
func (o *objects) trimMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp,
		DeletionTimestamp: m.DeletionTimestamp, Finalizers: o.common.list(m.Finalizers), ManagedFields: noWriters,
	}
}

// trimAttachment keeps, of other drivers' attachments, only which volume they
// name. Of the publish context only the keys are kept: they are needed to clear
// it; the values may be large.
func (o *objects) trimAttachment(va *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	if isTrimmed(va.ObjectMeta) {
		return va
	}
	kept := &storagev1.VolumeAttachment{ObjectMeta: o.trimMeta(va.ObjectMeta), Spec: va.Spec, Status: va.Status}
	kept.Spec.Attacher, kept.Spec.NodeName = o.common.word(va.Spec.Attacher), o.common.word(va.Spec.NodeName)
	if va.Spec.Attacher != o.driver {
		kept.Spec.Source.InlineVolumeSpec = nil
		kept.Status = storagev1.VolumeAttachmentStatus{}
		return kept
	}
	kept.Annotations = o.common.pairs(trimAnnotations(va))
	if handle := va.Annotations[kube.PublishedHandleAnnotation]; o.fits(va, handle) { // else somebody edited it
		kept.GenerateName = handle
	}
	keys := make(map[string]string, len(va.Status.AttachmentMetadata))
	for key := range va.Status.AttachmentMetadata {
		keys[key] = ""
	}
	kept.Status.AttachmentMetadata = o.common.pairs(keys)
	return kept
}

// othersMark is what the cache notes on an attachment in place of labels and other
// people's annotations: a digest, since nothing but a change of them matters. No
// such object is ever written.
const othersMark = "belay.dev/others"

// recordedHandle is the handle that was recorded on an attachment before the first call.
// The cache keeps it in a field that it has no other use for: among the annotations, which
// a node's attachments share, it would cost each attachment a map. No such object is ever
// written.
func recordedHandle(va *storagev1.VolumeAttachment) string { return va.GenerateName }

// recordedSecret is the Secret that was recorded beside the handle.
func recordedSecret(va *storagev1.VolumeAttachment) *corev1.SecretReference {
	namespace, name, ok := strings.Cut(va.Annotations[kube.PublishSecretAnnotation], "/")
	if !ok {
		return nil
	}
	return &corev1.SecretReference{Namespace: namespace, Name: name}
}

// trimAnnotations keeps what is read, and a digest of what others wrote. A change of belay's own annotations says nothing
// about whether a call that failed would succeed now.
func trimAnnotations(va *storagev1.VolumeAttachment) map[string]string {
	kept, others := map[string]string{}, map[string]string{}
	for name, value := range va.Annotations {
		switch {
		case name == kube.NodeIDAnnotation, name == kube.PublishSecretAnnotation, name == kube.DetachRequestedAnnotation:
			kept[name] = value
		case !kube.IsOwnAnnotation(name):
			others[name] = value
		}
	}
	if len(others)+len(va.Labels) > 0 {
		kept[othersMark] = digest(va.Labels, others)
	}
	return kept
}

// digest tells whether things are the same as before. They are strings, bools,
// slices and maps of them, which can be encoded.
func digest(things ...any) string {
	sum := fnv.New64a()
	_ = json.NewEncoder(sum).Encode(things)
	return strconv.FormatUint(sum.Sum64(), 36)
}

// inTreeMark is what the cache notes on a PersistentVolume of an in-tree plugin, which it
// keeps translated: why it could not be, or nothing. No such object is ever written.
const inTreeMark = "belay.dev/in-tree"

// trimVolume keeps, of volumes that are not ours, only that they are there and
// whose they are. In-tree volumes are translated first: what that reads (labels, claim,
// annotations, affinity) is not kept.
func (o *objects) trimVolume(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	if isTrimmed(pv.ObjectMeta) {
		return pv
	}
	kept, marks := &corev1.PersistentVolume{ObjectMeta: o.trimMeta(pv.ObjectMeta)}, map[string]string{}
	if to, ok := pv.Annotations[migratedToAnnotation]; ok {
		marks[migratedToAnnotation] = to
	}
	if o.translator.IsPVMigratable(pv) {
		marks[inTreeMark] = ""
		translated, err := o.translator.TranslateInTreePVToCSI(logr.Discard(), pv)
		if err != nil {
			marks[inTreeMark] = err.Error()
		} else {
			pv = translated
		}
	}
	kept.Annotations = o.common.pairs(marks)
	switch {
	case pv.Spec.CSI == nil:
	case pv.Spec.CSI.Driver != o.driver:
		kept.Spec.CSI = o.common.foreign(pv.Spec.CSI.Driver)
	default:
		kept.Spec.CSI = o.trimSource(pv.Spec.CSI)
		keepRequestFields(kept, pv)
		keepClaim(kept, pv)
	}
	return kept
}

// keepClaim keeps which claim a volume is bound to, for the log, in a field that nothing else is kept in: a reference of
// its own would be a tenth of the object. No such object is ever written.
func keepClaim(kept, pv *corev1.PersistentVolume) {
	if claim := pv.Spec.ClaimRef; claim != nil {
		kept.Status.Message = claim.Namespace + "/" + claim.Name
	}
}

// claimOf is the claim that a volume of the cache is bound to.
func claimOf(pv *corev1.PersistentVolume) (namespace, name string, ok bool) {
	if pv == nil {
		return "", "", false
	}
	return strings.Cut(pv.Status.Message, "/")
}

// trimSource keeps what a publish is made of.
func (o *objects) trimSource(from *corev1.CSIPersistentVolumeSource) *corev1.CSIPersistentVolumeSource {
	return &corev1.CSIPersistentVolumeSource{
		Driver: o.driver, VolumeHandle: from.VolumeHandle, ReadOnly: from.ReadOnly, FSType: o.common.word(from.FSType),
		VolumeAttributes: o.common.pairs(from.VolumeAttributes), ControllerPublishSecretRef: from.ControllerPublishSecretRef,
	}
}

func keepRequestFields(kept, pv *corev1.PersistentVolume) {
	kept.Spec.AccessModes = pv.Spec.AccessModes
	kept.Spec.MountOptions = pv.Spec.MountOptions
	kept.Spec.VolumeMode = pv.Spec.VolumeMode
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

// csiSpec is the spec of a PersistentVolume of the cache, which has a CSI source, translated
// if the volume is an in-tree one.
func csiSpec(pv *corev1.PersistentVolume) (spec *corev1.PersistentVolumeSpec, migrated bool, err error) {
	failed, migrated := pv.Annotations[inTreeMark]
	switch {
	case failed != "":
		return nil, migrated, errTranslate(failed)
	case pv.Spec.CSI == nil:
		return nil, migrated, errNotCSI
	}
	return &pv.Spec, migrated, nil
}

// isInTree tells whether a PersistentVolume of the cache is one of an in-tree plugin.
func isInTree(pv *corev1.PersistentVolume) bool {
	_, inTree := pv.Annotations[inTreeMark]
	return inTree
}

// newest is kube.Newest whose lists have a fixed order.
type newest[T kube.Object[T]] struct{ *kube.Newest[T] }

func newNewest[T kube.Object[T]](indexer cache.Indexer, exact cache.Indexers) newest[T] {
	return newest[T]{kube.NewCoarse[T](indexer, exact)}
}

// byIndex returns the newest known objects of an index value, by name: the same
// question gets the same answer.
func (n newest[T]) byIndex(index, value string) []T {
	found := n.ByIndex(index, value)
	objects := make([]T, 0, len(found))
	for _, name := range slices.Sorted(maps.Keys(found)) {
		objects = append(objects, found[name])
	}
	return objects
}
