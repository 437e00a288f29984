package attacher

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// inUse is whether a Node lists a volume in use, and why it is not known that none does: empty if that is known.
type inUse struct {
	known decision.Knowledge
	why   string
}

// inUseAt reports whether a Node with a CSI node ID lists the volume in use, by a live read: a watch cache may lag behind a mount.
// Several Nodes may have one ID: all are asked, and the Nodes that had it then: one that is gone holds nothing.
func (a *Attacher) inUseAt(ctx context.Context, handle, nodeID string, then ...string) inUse {
	return a.newNodeReader().inUseAt(ctx, handle, nodeID, then...)
}

// nodesThen are the names of the Node that had a node ID when the driver confirmed the unpublish.
func (s *subject) nodesThen(nodeID string) (names []string) {
	for _, left := range s.left {
		if left.NodeID == nodeID && left.Node != "" {
			names = append(names, left.Node)
		}
	}
	return names
}

// nodeReader reads Nodes live, each once.
type nodeReader struct {
	attacher *Attacher
	byID     map[string]sets.Set[string] // names of Nodes by CSI node ID
	read     map[string]nodeAnswer       // by name
}

// nodeAnswer is the answer to a read of a Node. Without an error and without the Node, there is no such Node.
type nodeAnswer struct {
	node *corev1.Node
	err  error
}

func (a *Attacher) newNodeReader() *nodeReader {
	return &nodeReader{attacher: a, read: map[string]nodeAnswer{}}
}

// inUseAt is Attacher.inUseAt with Nodes that were read since the reader was made.
func (r *nodeReader) inUseAt(ctx context.Context, handle, nodeID string, then ...string) inUse {
	names := r.names(nodeID).Union(sets.New(then...))
	if names.Len() == 0 {
		return inUse{why: explain.NoNodeWithID(nodeID)}
	}
	volumes := r.attacher.uniqueNames(handle, nodeID)
	all := inUse{known: decision.No}
	for _, name := range sets.List(names) {
		switch one := r.lists(ctx, name, volumes); {
		case one.known == decision.Yes:
			return one
		case one.known == decision.Unknown && all.known == decision.No:
			all = one
		}
	}
	return all
}

// lists reports whether a Node lists a volume in use. What it does not list it does not use, if there is no such Node, or if it is Ready:
// the list of one that is not may be old, for instance from a backup of etcd.
func (r *nodeReader) lists(ctx context.Context, name string, volumes []corev1.UniqueVolumeName) inUse {
	answer, ok := r.read[name]
	if !ok {
		answer = r.attacher.readNode(ctx, name)
		r.read[name] = answer
	}
	switch node := answer.node; {
	case apierrors.IsForbidden(answer.err):
		return inUse{why: explain.NodeNotReadable(name)}
	case answer.err != nil:
		return inUse{why: explain.NodeNotRead(name, answer.err)}
	case node == nil:
		return inUse{known: decision.No}
	case slices.ContainsFunc(node.Status.VolumesInUse, func(v corev1.UniqueVolumeName) bool { return slices.Contains(volumes, v) }):
		return inUse{known: decision.Yes, why: explain.ListedInUse(name)}
	case !isReady(node):
		return inUse{why: explain.ListMayBeOld(name)}
	default:
		return inUse{known: decision.No}
	}
}

func (a *Attacher) readNode(ctx context.Context, name string) (answer nodeAnswer) {
	answer.err = a.request(ctx, func(ctx context.Context) (err error) {
		answer.node, err = a.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		return err
	})
	if answer.err != nil {
		answer.node = nil
	}
	if apierrors.IsNotFound(answer.err) {
		answer.err = nil
	}
	return answer
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// uniqueNames are the names under which a kubelet may list a volume: for some migrated volumes (GCE PD) the handle that the driver lists
// is another one than that of the PersistentVolume.
func (a *Attacher) uniqueNames(handle, nodeID string) []corev1.UniqueVolumeName {
	names := []corev1.UniqueVolumeName{corev1.UniqueVolumeName(kube.UniqueVolumeName(a.driver, handle))}
	if listed, err := a.objects.translator.RepairVolumeHandle(a.driver, handle, nodeID); err == nil && listed != handle {
		names = append(names, corev1.UniqueVolumeName(kube.UniqueVolumeName(a.driver, listed)))
	}
	return names
}

// names are the Nodes that have, or had, a CSI node ID: by their CSINodes, and by what is recorded on our attachments.
func (r *nodeReader) names(nodeID string) sets.Set[string] {
	if r.byID != nil {
		return r.byID[nodeID]
	}
	r.byID = map[string]sets.Set[string]{}
	add := func(id, name string) {
		if r.byID[id] == nil {
			r.byID[id] = sets.Set[string]{}
		}
		r.byID[id].Insert(name)
	}
	objects := r.attacher.objects
	for _, item := range objects.csiNodeInformer.GetStore().List() {
		if node, ok := item.(*storagev1.CSINode); ok {
			for _, driver := range node.Spec.Drivers { // the cache keeps only ours
				add(driver.NodeID, node.Name)
			}
		}
	}
	for _, va := range objects.attachments.All() {
		if va.Spec.Attacher == r.attacher.driver {
			add(va.Annotations[kube.NodeIDAnnotation], va.Spec.NodeName)
		}
	}
	delete(r.byID, "")
	return r.byID[nodeID]
}
