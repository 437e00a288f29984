package diagnosis

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/decision"
)

// MayName reports whether objects of the namespace may appear in an output.
func (s *Snapshot) MayName(namespace string) bool { return s.mayName(namespace) }

// LeaseHeld reports whether a process held the lease when the objects were read.
func (s *Snapshot) LeaseHeld(lease *coordinationv1.Lease) bool {
	return (&state{Snapshot: s}).held(lease)
}

// Hide returns a function that takes the names from namespaces that the reader may not read out of a text.
func (s *Snapshot) Hide() func(text string) string { return newState(s).hide }

// Silent reports whether a node counts as Ready although it has not renewed its lease for longer than a kubelet should take.
func (s *Snapshot) Silent(node *corev1.Node) bool {
	x := &state{Snapshot: s, nodes: map[string]*corev1.Node{node.Name: node}, heartbeats: map[string]*coordinationv1.Lease{}}
	for _, lease := range s.Leases {
		if lease.Namespace == corev1.NamespaceNodeLease && lease.Name == node.Name {
			x.heartbeats[node.Name] = lease
		}
	}
	return x.silentNode(x.node(node.Name))
}

// Gone reports whether an object that is not in the snapshot does not exist.
func (s *Snapshot) Gone(r Ref) bool { return s.exists(r) == decision.No }
