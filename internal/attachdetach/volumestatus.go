package attachdetach

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/kube"
)

func volumeStatuses(node *corev1.Node) map[string]kube.Listing {
	all := map[string]kube.Listing{}
	for name, since := range kube.DetachesRequested(node) {
		all[name] = kube.Listing{DetachRequested: since}
	}
	for _, v := range node.Status.VolumesAttached {
		s := all[string(v.Name)]
		s.Reported = true
		all[string(v.Name)] = s
	}
	for _, v := range node.Status.VolumesInUse {
		s := all[string(v)]
		s.InUse = true
		all[string(v)] = s
	}
	return all
}

// largeNodes caches the parsed state of Nodes with unusually many volumes. A node may write as much as the API server
// stores, and each listed volume is enqueued: such a Node is parsed once per version, not once per volume. Other Nodes
// are parsed on demand, which saves memory.
type largeNodes struct {
	mu   sync.Mutex
	read map[string]largeNode // by name
}

type largeNode struct {
	node *corev1.Node
	all  map[string]kube.Listing
}

// Thresholds of volumes and of annotation bytes for a large Node.
const largeNodeVolumes, largeNodeBytes = 500, 32 << 10

func (l *largeNodes) of(node *corev1.Node, unique string) kube.Listing {
	listed, requests := len(node.Status.VolumesAttached)+len(node.Status.VolumesInUse), node.Annotations[kube.DetachesRequestedAnnotation]
	if listed <= largeNodeVolumes && len(requests) <= largeNodeBytes {
		return kube.ListingOf(node, unique)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.read == nil {
		l.read = map[string]largeNode{}
	}
	if l.read[node.Name].node != node {
		l.read[node.Name] = largeNode{node, volumeStatuses(node)}
	}
	return l.read[node.Name].all[unique]
}

func (l *largeNodes) forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.read, name)
}

// changedStatuses returns the states in two versions of a Node, or nil if they are the same, as in most updates.
func changedStatuses(before, after *corev1.Node) (was, is map[string]kube.Listing) {
	if slices.Equal(before.Status.VolumesAttached, after.Status.VolumesAttached) &&
		slices.Equal(before.Status.VolumesInUse, after.Status.VolumesInUse) &&
		before.Annotations[kube.DetachesRequestedAnnotation] == after.Annotations[kube.DetachesRequestedAnnotation] {
		return nil, nil
	}
	return volumeStatuses(before), volumeStatuses(after)
}

// changedVolumes returns the volumes whose state differs.
func changedVolumes(was, is map[string]kube.Listing) []string {
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
