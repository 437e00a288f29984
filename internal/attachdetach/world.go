package attachdetach

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// Names of the indexes. Values of byVolume are unique volume names.
const (
	byVolume           = "volume"           // PersistentVolumes, VolumeAttachments, Nodes
	byDriver           = "driver"           // PersistentVolumes
	byPersistentVolume = "persistentVolume" // VolumeAttachments
	byNode             = "node"             // VolumeAttachments, Pods
	byClaim            = "claim"            // Pods, "namespace/name"
)

// world is all that the controller knows, by way of the watch caches.
type world struct {
	pods, claims, volumes, drivers toolscache.Indexer

	nodes       *kube.Newest[*corev1.Node]
	attachments *kube.Newest[*storagev1.VolumeAttachment]

	// informers are the caches, for the barrier of a new leader.
	informers map[schema.GroupVersionKind]toolscache.SharedIndexInformer

	mu sync.Mutex
	// departed holds what is left of each Node that was deleted.
	departed map[string]departure
}

func newWorld(ctx context.Context, caches cache.Cache) (*world, error) {
	w := &world{
		informers: map[schema.GroupVersionKind]toolscache.SharedIndexInformer{},
		departed:  map[string]departure{},
	}
	nodeIndexers := toolscache.Indexers{byVolume: nodeVolumes}
	attachmentIndexers := toolscache.Indexers{
		byVolume: attachmentVolume, byPersistentVolume: attachmentSource, byNode: attachmentNode,
	}
	stores := map[string]toolscache.Indexer{}
	for _, kind := range []struct {
		group    schema.GroupVersion
		name     string
		object   client.Object
		indexers toolscache.Indexers
	}{
		{corev1.SchemeGroupVersion, "Pod", &corev1.Pod{}, toolscache.Indexers{byClaim: podClaims, byNode: podNode}},
		{corev1.SchemeGroupVersion, "Node", &corev1.Node{}, nodeIndexers},
		{corev1.SchemeGroupVersion, "PersistentVolumeClaim", &corev1.PersistentVolumeClaim{}, nil},
		{
			corev1.SchemeGroupVersion, "PersistentVolume", &corev1.PersistentVolume{},
			toolscache.Indexers{byVolume: persistentVolumeName, byDriver: persistentVolumeDriver},
		},
		{storagev1.SchemeGroupVersion, "VolumeAttachment", &storagev1.VolumeAttachment{}, attachmentIndexers},
		{storagev1.SchemeGroupVersion, "CSIDriver", &storagev1.CSIDriver{}, nil},
	} {
		informer, err := caches.GetInformer(ctx, kind.object, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", kind.name, err)
		}
		shared, ok := informer.(toolscache.SharedIndexInformer)
		if !ok {
			return nil, fmt.Errorf("watch %s: the cache gives a %T, which has no index", kind.name, informer)
		}
		if err := shared.AddIndexers(kind.indexers); err != nil {
			return nil, fmt.Errorf("index %s: %w", kind.name, err)
		}
		w.informers[kind.group.WithKind(kind.name)] = shared
		stores[kind.name] = shared.GetIndexer()
	}
	w.pods, w.claims = stores["Pod"], stores["PersistentVolumeClaim"]
	w.volumes, w.drivers = stores["PersistentVolume"], stores["CSIDriver"]
	w.nodes = kube.NewNewest[*corev1.Node](stores["Node"], nodeIndexers)
	w.attachments = kube.NewNewest[*storagev1.VolumeAttachment](stores["VolumeAttachment"], attachmentIndexers)
	return w, nil
}

func podClaims(obj any) ([]string, error) {
	pod := obj.(*corev1.Pod)
	if pod.Spec.NodeName == "" {
		return nil, nil
	}
	var claims []string
	for i := range pod.Spec.Volumes {
		if name := claimName(pod, &pod.Spec.Volumes[i]); name != "" {
			claims = append(claims, pod.Namespace+"/"+name)
		}
	}
	return claims, nil
}

// claimName is the claim behind a pod's volume, empty for other volumes.
func claimName(pod *corev1.Pod, volume *corev1.Volume) string {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return volume.PersistentVolumeClaim.ClaimName
	case volume.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, volume)
	}
	return ""
}

func podNode(obj any) ([]string, error) {
	if name := obj.(*corev1.Pod).Spec.NodeName; name != "" {
		return []string{name}, nil
	}
	return nil, nil
}

func nodeVolumes(obj any) ([]string, error) {
	node := obj.(*corev1.Node)
	names := make([]string, 0, len(node.Status.VolumesAttached)+len(node.Status.VolumesInUse))
	for _, v := range node.Status.VolumesAttached {
		names = append(names, string(v.Name))
	}
	for _, v := range node.Status.VolumesInUse {
		names = append(names, string(v))
	}
	names = slices.AppendSeq(names, maps.Keys(requestsOn(node)))
	slices.Sort(names)
	return slices.Compact(names), nil
}

func persistentVolumeName(obj any) ([]string, error) {
	if csi := obj.(*corev1.PersistentVolume).Spec.CSI; csi != nil {
		return []string{kube.UniqueVolumeName(csi.Driver, csi.VolumeHandle)}, nil
	}
	return nil, nil
}

func persistentVolumeDriver(obj any) ([]string, error) {
	if csi := obj.(*corev1.PersistentVolume).Spec.CSI; csi != nil {
		return []string{csi.Driver}, nil
	}
	return nil, nil
}

func attachmentNode(obj any) ([]string, error) {
	return []string{obj.(*storagev1.VolumeAttachment).Spec.NodeName}, nil
}

func attachmentSource(obj any) ([]string, error) {
	if name := sourceName(obj.(*storagev1.VolumeAttachment)); name != "" {
		return []string{name}, nil
	}
	return nil, nil
}

func sourceName(va *storagev1.VolumeAttachment) string {
	if name := va.Spec.Source.PersistentVolumeName; name != nil {
		return *name
	}
	return ""
}

// attachmentVolume finds the volume of an attachment in the object alone.
func attachmentVolume(obj any) ([]string, error) {
	if key, ok := ownVolume(obj.(*storagev1.VolumeAttachment)); ok {
		return []string{kube.UniqueVolumeName(key.Driver, key.Handle)}, nil
	}
	return nil, nil
}

// ownVolume reads the volume from an inline source or from belay's annotation. The
// annotation is believed only where the object's name confirms it.
func ownVolume(va *storagev1.VolumeAttachment) (attachment.VolumeKey, bool) {
	if inline := va.Spec.Source.InlineVolumeSpec; inline != nil && inline.CSI != nil {
		return attachment.VolumeKey{Driver: va.Spec.Attacher, Handle: inline.CSI.VolumeHandle}, true
	}
	if handle, ok := va.Annotations[kube.VolumeHandleAnnotation]; ok {
		key := attachment.VolumeKey{Driver: va.Spec.Attacher, Handle: handle}
		return key, computed(va, key)
	}
	return attachment.VolumeKey{}, false
}

// computed tells whether the attachment has the name that kubelet and every
// attach/detach controller give to this volume on its node.
func computed(va *storagev1.VolumeAttachment, key attachment.VolumeKey) bool {
	return va.Spec.Attacher == key.Driver && va.Name == kube.AttachmentName(key.Handle, key.Driver, va.Spec.NodeName)
}

// volumesOf gives the PersistentVolumes of one volume: usually one.
func (w *world) volumesOf(key attachment.VolumeKey) []*corev1.PersistentVolume {
	return list[*corev1.PersistentVolume](w.volumes, byVolume, kube.UniqueVolumeName(key.Driver, key.Handle))
}

// keyOfVolume is the key of a PersistentVolume, if CSI attaches it.
func keyOfVolume(pv *corev1.PersistentVolume) (attachment.VolumeKey, bool) {
	if pv.Spec.CSI == nil {
		return attachment.VolumeKey{}, false
	}
	return attachment.VolumeKey{Driver: pv.Spec.CSI.Driver, Handle: pv.Spec.CSI.VolumeHandle}, true
}

// keyOfAttachment finds the volume of an attachment by what it says itself, by its
// PersistentVolume, or by its name among what its node lists.
func (w *world) keyOfAttachment(va *storagev1.VolumeAttachment) (attachment.VolumeKey, bool) {
	if key, ok := ownVolume(va); ok {
		return key, true
	}
	if pv, ok := get[*corev1.PersistentVolume](w.volumes, sourceName(va)); ok {
		return keyOfVolume(pv)
	}
	if node, ok := w.nodes.Get(va.Spec.NodeName); ok {
		names, _ := nodeVolumes(node)
		for _, name := range names {
			if key, ok := keyOfName(name); ok && computed(va, key) {
				return key, true
			}
		}
	}
	return attachment.VolumeKey{}, false
}

func keyOfName(unique string) (attachment.VolumeKey, bool) {
	driver, handle, ok := kube.ParseUniqueVolumeName(unique)
	return attachment.VolumeKey{Driver: driver, Handle: handle}, ok
}

// attachmentsOf gives every attachment of the volume that can be known as one:
// by what it says itself, by its PersistentVolumes, and by its name at the nodes
// that have to do with the volume.
func (w *world) attachmentsOf(key attachment.VolumeKey, volumes []*corev1.PersistentVolume, nodes []string) []*storagev1.VolumeAttachment {
	found := w.attachments.ByIndex(byVolume, kube.UniqueVolumeName(key.Driver, key.Handle))
	for _, pv := range volumes {
		maps.Copy(found, w.attachments.ByIndex(byPersistentVolume, pv.Name))
	}
	for _, node := range nodes {
		name := kube.AttachmentName(key.Handle, key.Driver, node)
		if va, ok := w.attachments.Get(name); ok {
			found[name] = va
		}
	}
	return slices.Collect(maps.Values(found))
}

// attachRequired tells whether the driver's volumes are attached at all. A driver
// that did not register, or has not yet, is attached, as upstream does.
func (w *world) attachRequired(driver string) bool {
	d, ok := get[*storagev1.CSIDriver](w.drivers, driver)
	return !ok || d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
}

// list reads from an index; the objects are shared.
func list[T any](store toolscache.Indexer, index, value string) []T {
	items, err := store.ByIndex(index, value)
	if err != nil {
		panic("attachdetach: no such index: " + index) // programmer error
	}
	objects := make([]T, 0, len(items))
	for _, item := range items {
		objects = append(objects, item.(T))
	}
	return objects
}

// get reads one object by "name" or "namespace/name"; it is shared.
func get[T any](store toolscache.Indexer, key string) (T, bool) {
	var none T
	item, ok, err := store.GetByKey(key)
	if err != nil || !ok {
		return none, false
	}
	return item.(T), true
}
