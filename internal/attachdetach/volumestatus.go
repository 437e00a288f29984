package attachdetach

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/kube"
)

// standing is what a Node object says of one volume.
type standing struct {
	reported, inUse bool
	requested       string
}

func standings(node *corev1.Node) map[string]standing {
	all := map[string]standing{}
	for name, since := range requestsOn(node) {
		all[name] = standing{requested: since}
	}
	for _, v := range node.Status.VolumesAttached {
		s := all[string(v.Name)]
		s.reported = true
		all[string(v.Name)] = s
	}
	for _, v := range node.Status.VolumesInUse {
		s := all[string(v)]
		s.inUse = true
		all[string(v)] = s
	}
	return all
}

// standings of Nodes that say more of volumes than a kubelet would have to. A node may write
// as much as the API server stores, and wake each volume that it names: then the Node is
// read once for each of its versions, and not for each volume. Other Nodes are read where
// they are needed: to keep it all would cost memory for nothing.
type longNodes struct {
	mu   sync.Mutex
	read map[string]longNode // by name
}

type longNode struct {
	node *corev1.Node
	all  map[string]standing
}

// Nodes are long with more volumes, or more bytes of belay's annotation, than these.
const manyVolumes, manyBytes = 500, 32 << 10

func (l *longNodes) of(node *corev1.Node, unique string) standing {
	listed, requests := len(node.Status.VolumesAttached)+len(node.Status.VolumesInUse), node.Annotations[kube.DetachesRequestedAnnotation]
	if listed <= manyVolumes && len(requests) <= manyBytes {
		return standing{reported: reported(node, unique), inUse: inUse(node, unique), requested: requestsOn(node)[unique]}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.read == nil {
		l.read = map[string]longNode{}
	}
	if l.read[node.Name].node != node {
		l.read[node.Name] = longNode{node, standings(node)}
	}
	return l.read[node.Name].all[unique]
}

func (l *longNodes) forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.read, name)
}

// bothStandings are those of two versions of a Node, or nil where they agree: nearly always.
func bothStandings(before, after *corev1.Node) (was, is map[string]standing) {
	if slices.Equal(before.Status.VolumesAttached, after.Status.VolumesAttached) &&
		slices.Equal(before.Status.VolumesInUse, after.Status.VolumesInUse) &&
		before.Annotations[kube.DetachesRequestedAnnotation] == after.Annotations[kube.DetachesRequestedAnnotation] {
		return nil, nil
	}
	return standings(before), standings(after)
}

// changedNames are the volumes of which two versions of a Node say different things.
func changedNames(was, is map[string]standing) []string {
	var names []string
	for name := range was {
		if _, both := is[name]; !both {
			names = append(names, name)
		}
	}
	for name, now := range is {
		if now != was[name] {
			names = append(names, name)
		}
	}
	return names
}
