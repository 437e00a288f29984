package attachdetach

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
)

// Names of the indexes. Values of byVolume are unique volume names.
const (
	byVolume           = "volume"           // PersistentVolumes, VolumeAttachments, Nodes; Pods with a volume of their own
	byDriver           = "driver"           // PersistentVolumes, VolumeAttachments; Pods with a volume of their own
	byPersistentVolume = "persistentVolume" // VolumeAttachments
	byNode             = "node"             // VolumeAttachments, Pods
	byClaim            = "claim"            // Pods, "namespace/name"
)

// clusterState is the cached state of the cluster.
type clusterState struct {
	pods, claims, volumes, drivers, csiNodes toolscache.Indexer

	nodes       *kube.Newest[*corev1.Node]
	attachments *kube.Newest[*storagev1.VolumeAttachment]

	// informers are used by the barrier of a new leader.
	informers map[schema.GroupVersionKind]toolscache.SharedIndexInformer

	clock        Clock
	proofs       Proofs
	ledger       ledger
	kubelets     kubelets
	doubts       doubts
	unidentified unidentified
	largeNodes   largeNodes
	// withoutAttach outlives CSIDrivers.
	withoutAttach withoutAttach
	// handled holds the VolumeAttachments whose latest event was handled, by name. The cache is ahead of the handlers.
	handled handled
	// deletes are deletes of VolumeAttachments without a response, reports are writes to Nodes, by name.
	deletes unanswered[types.UID]
	reports unanswered[string]

	// leads is set when this process leads: from then on, only it or a component that is not an attach/detach
	// controller removes volumes from a report.
	leads atomic.Bool

	mu sync.Mutex
	// departed holds the last version of each deleted Node.
	departed map[string]*corev1.Node
}

// kinds are the watched kinds and their indexes. No event may cause a scan of all objects of a kind.
var kinds = []struct {
	group    schema.GroupVersion
	name     string
	object   client.Object
	indexers toolscache.Indexers
}{
	{corev1.SchemeGroupVersion, "Pod", &corev1.Pod{}, toolscache.Indexers{
		byClaim: podClaims, byNode: podNode, byVolume: podVolumes, byDriver: podDrivers,
	}},
	{corev1.SchemeGroupVersion, "Node", &corev1.Node{}, toolscache.Indexers{
		byVolume: nodeVolumes, kube.ByIdentity: kube.IdentityBuckets,
	}},
	{corev1.SchemeGroupVersion, "PersistentVolumeClaim", &corev1.PersistentVolumeClaim{}, nil},
	{corev1.SchemeGroupVersion, "PersistentVolume", &corev1.PersistentVolume{}, toolscache.Indexers{
		byVolume: persistentVolumeName, byDriver: persistentVolumeDriver,
	}},
	{storagev1.SchemeGroupVersion, "VolumeAttachment", &storagev1.VolumeAttachment{}, toolscache.Indexers{
		byVolume: attachmentVolume, byPersistentVolume: attachmentSource, byNode: attachmentNode, byDriver: attachmentDriver,
	}},
	{storagev1.SchemeGroupVersion, "CSIDriver", &storagev1.CSIDriver{}, nil},
	{storagev1.SchemeGroupVersion, "CSINode", &storagev1.CSINode{}, nil},
}

func newClusterState(ctx context.Context, caches cache.Cache, clock Clock) (*clusterState, error) {
	informers := map[schema.GroupVersionKind]toolscache.SharedIndexInformer{}
	stores := map[string]toolscache.Indexer{}
	for _, kind := range kinds {
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
		informers[kind.group.WithKind(kind.name)] = shared
		stores[kind.name] = shared.GetIndexer()
	}
	w := clusterStateOf(stores, clock)
	w.informers = informers
	return w, nil
}

// clusterStateOf returns the state over the stores, one per kind, with the indexes of kinds.
func clusterStateOf(stores map[string]toolscache.Indexer, clock Clock) *clusterState {
	w := &clusterState{
		proofs: noProofs{},
		clock:  clock,
		pods:   stores["Pod"], claims: stores["PersistentVolumeClaim"],
		volumes: stores["PersistentVolume"], drivers: stores["CSIDriver"], csiNodes: stores["CSINode"],
		departed: map[string]*corev1.Node{},
	}
	for _, kind := range kinds {
		switch kind.name {
		case "Node":
			w.nodes = kube.NewNewest[*corev1.Node](stores[kind.name], kind.indexers)
		case "VolumeAttachment":
			w.attachments = kube.NewNewest[*storagev1.VolumeAttachment](stores[kind.name], kind.indexers)
		}
	}
	return w
}

func podClaims(obj any) ([]string, error) {
	pod := obj.(*corev1.Pod)
	if pod.Spec.NodeName == "" {
		return nil, nil
	}
	var claims []string
	for i := range pod.Spec.Volumes {
		if name := kube.ClaimName(pod, &pod.Spec.Volumes[i]); name != "" {
			claims = append(claims, pod.Namespace+"/"+name)
		}
	}
	return claims, nil
}

// podNode skips pods without volumes.
func podNode(obj any) ([]string, error) {
	pod := obj.(*corev1.Pod)
	if pod.Spec.NodeName == "" || len(pod.Spec.Volumes) == 0 {
		return nil, nil
	}
	return []string{pod.Spec.NodeName}, nil
}

// podVolumes returns the inline volumes of a pod.
func podVolumes(obj any) ([]string, error) {
	pod := obj.(*corev1.Pod)
	if pod.Spec.NodeName == "" {
		return nil, nil
	}
	var names []string
	for _, v := range kube.InlineVolumes(pod) {
		names = append(names, kube.UniqueVolumeName(v.Key.Driver, v.Key.Handle))
	}
	return names, nil
}

func podDrivers(obj any) ([]string, error) {
	pod := obj.(*corev1.Pod)
	if pod.Spec.NodeName == "" {
		return nil, nil
	}
	var drivers []string
	for _, v := range kube.InlineVolumes(pod) {
		drivers = append(drivers, v.Key.Driver)
	}
	return drivers, nil
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
	names = slices.AppendSeq(names, maps.Keys(kube.DetachesRequested(node)))
	slices.Sort(names)
	return slices.Compact(names), nil
}

func persistentVolumeName(obj any) ([]string, error) {
	if k, ok := kube.KeyOfVolume(obj.(*corev1.PersistentVolume)); ok {
		return []string{kube.UniqueVolumeName(k.Driver, k.Handle)}, nil
	}
	return nil, nil
}

func persistentVolumeDriver(obj any) ([]string, error) {
	if k, ok := kube.KeyOfVolume(obj.(*corev1.PersistentVolume)); ok {
		return []string{k.Driver}, nil
	}
	return nil, nil
}

func attachmentDriver(obj any) ([]string, error) {
	return []string{obj.(*storagev1.VolumeAttachment).Spec.Attacher}, nil
}

func attachmentNode(obj any) ([]string, error) {
	return []string{obj.(*storagev1.VolumeAttachment).Spec.NodeName}, nil
}

func attachmentSource(obj any) ([]string, error) {
	if name := kube.SourceName(obj.(*storagev1.VolumeAttachment)); name != "" {
		return []string{name}, nil
	}
	return nil, nil
}

// list returns the shared objects with an index value.
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

// get returns a shared object by "name" or "namespace/name".
func get[T any](store toolscache.Indexer, key string) (T, bool) {
	var none T
	item, ok, err := store.GetByKey(key)
	if err != nil || !ok {
		return none, false
	}
	return item.(T), true
}
