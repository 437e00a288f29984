package attacher

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	csitrans "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
)

// migratedToAnnotation on a PersistentVolume names the CSI driver that looks
// after an in-tree volume (k8s.io/component-helpers, pv.kubernetes.io).
const migratedToAnnotation = "pv.kubernetes.io/migrated-to"

// Indexes over the watch caches.
const (
	indexVolumeName = "volumeName" // attachments of any attacher, by PersistentVolume name
	indexNode       = "node"       // our attachments, by node name
	indexInline     = "inline"     // our attachments with an inline volume, by CSI volume handle
	indexHandle     = "handle"     // our PersistentVolumes, by CSI volume handle
)

// objects holds the watch caches of one driver's attacher.
type objects struct {
	driver     string
	translator csitrans.CSITranslator
	factory    informers.SharedInformerFactory

	attachmentInformer, volumeInformer, csiNodeInformer cache.SharedIndexInformer

	attachments *newest[*storagev1.VolumeAttachment]
	volumes     *newest[*corev1.PersistentVolume]
	csiNodes    *newest[*storagev1.CSINode]
}

// newObjects prepares the caches; nothing is read before factory.Start.
func newObjects(client kubernetes.Interface, driver string, resync time.Duration) (*objects, error) {
	o := &objects{driver: driver, translator: csitrans.New()}
	o.factory = informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithTransform(o.keepWhatIsRead))
	o.attachmentInformer = o.factory.Storage().V1().VolumeAttachments().Informer()
	o.volumeInformer = o.factory.Core().V1().PersistentVolumes().Informer()
	o.csiNodeInformer = o.factory.Storage().V1().CSINodes().Informer()
	if err := o.attachmentInformer.AddIndexers(cache.Indexers{
		indexVolumeName: indexAttachments(func(va *storagev1.VolumeAttachment) *string { return va.Spec.Source.PersistentVolumeName }),
		indexNode: indexAttachments(func(va *storagev1.VolumeAttachment) *string {
			if va.Spec.Attacher != driver {
				return nil
			}
			return &va.Spec.NodeName
		}),
		indexInline: indexAttachments(func(va *storagev1.VolumeAttachment) *string {
			if inline := va.Spec.Source.InlineVolumeSpec; va.Spec.Attacher == driver && inline != nil && inline.CSI != nil {
				return &inline.CSI.VolumeHandle
			}
			return nil
		}),
	}); err != nil {
		return nil, err
	}
	if err := o.volumeInformer.AddIndexers(cache.Indexers{indexHandle: o.indexVolumes}); err != nil {
		return nil, err
	}
	o.attachments = newNewest[*storagev1.VolumeAttachment](o.attachmentInformer.GetIndexer())
	o.volumes = newNewest[*corev1.PersistentVolume](o.volumeInformer.GetIndexer())
	o.csiNodes = newNewest[*storagev1.CSINode](o.csiNodeInformer.GetIndexer())
	return o, nil
}

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
	if spec, _, err := o.csiSpec(pv); err == nil && spec.CSI.Driver == o.driver {
		return []string{spec.CSI.VolumeHandle}, nil
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

// trimMeta keeps an object's identity and its finalizers.
func trimMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp,
		DeletionTimestamp: m.DeletionTimestamp, Finalizers: m.Finalizers,
	}
}

// trimAttachment keeps, of other drivers' attachments, only which volume they
// name. Of the publish context only the keys are kept: they are needed to clear
// it; the values may be large.
func (o *objects) trimAttachment(va *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	kept := &storagev1.VolumeAttachment{ObjectMeta: trimMeta(va.ObjectMeta), Spec: va.Spec, Status: va.Status}
	if va.Spec.Attacher != o.driver {
		kept.Spec.Source.InlineVolumeSpec = nil
		kept.Status = storagev1.VolumeAttachmentStatus{}
		return kept
	}
	kept.Labels, kept.Annotations = va.Labels, va.Annotations
	if va.Status.AttachmentMetadata != nil {
		kept.Status.AttachmentMetadata = make(map[string]string, len(va.Status.AttachmentMetadata))
		for key := range va.Status.AttachmentMetadata {
			kept.Status.AttachmentMetadata[key] = ""
		}
	}
	return kept
}

// trimVolume keeps, of volumes that are not ours, only that they are there and
// whose they are.
func (o *objects) trimVolume(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	kept := &corev1.PersistentVolume{ObjectMeta: trimMeta(pv.ObjectMeta)}
	if to, ok := pv.Annotations[migratedToAnnotation]; ok {
		kept.Annotations = map[string]string{migratedToAnnotation: to}
	}
	switch {
	case pv.Spec.CSI != nil && pv.Spec.CSI.Driver != o.driver:
		kept.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: pv.Spec.CSI.Driver}
	case pv.Spec.CSI != nil:
		kept.Spec.CSI = pv.Spec.CSI
		keepRequestFields(kept, pv)
	case o.translator.IsPVMigratable(pv):
		kept.Labels = pv.Labels // zone and region make part of some handles
		kept.Spec.PersistentVolumeSource = pv.Spec.PersistentVolumeSource
		kept.Spec.NodeAffinity = pv.Spec.NodeAffinity
		keepRequestFields(kept, pv)
	}
	return kept
}

func keepRequestFields(kept, pv *corev1.PersistentVolume) {
	kept.Spec.AccessModes = pv.Spec.AccessModes
	kept.Spec.MountOptions = pv.Spec.MountOptions
	kept.Spec.VolumeMode = pv.Spec.VolumeMode
}

func (o *objects) trimCSINode(node *storagev1.CSINode) *storagev1.CSINode {
	kept := &storagev1.CSINode{ObjectMeta: trimMeta(node.ObjectMeta)}
	for _, driver := range node.Spec.Drivers {
		if driver.Name == o.driver {
			kept.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driver.Name, NodeID: driver.NodeID}}
		}
	}
	return kept
}

// csiSpec is a PersistentVolume's spec with a CSI source, translated if the
// volume is an in-tree one.
func (o *objects) csiSpec(pv *corev1.PersistentVolume) (spec *corev1.PersistentVolumeSpec, migrated bool, err error) {
	if o.translator.IsPVMigratable(pv) {
		translated, err := o.translator.TranslateInTreePVToCSI(klog.Background(), pv)
		if err != nil {
			return nil, true, errTranslate(err)
		}
		pv, migrated = translated, true
	}
	if pv.Spec.CSI == nil {
		return nil, migrated, errNotCSI
	}
	return &pv.Spec, migrated, nil
}
