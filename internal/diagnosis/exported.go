package diagnosis

import (
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
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

// Misplaced reports whether a pod that waits is on a node on which one of its volumes cannot be used.
func (s *Snapshot) Misplaced() bool {
	x := newState(s)
	return slices.ContainsFunc(s.Pods, func(pod *corev1.Pod) bool {
		return pod.Spec.NodeName != "" && !mounted(pod) && slices.ContainsFunc(x.keysOf(pod), func(v volumeOfPod) bool {
			return x.outOfReach(pod, v.key).reason != ""
		})
	})
}

// ProvisionerPods are the hosts of provisioners that have failed, by the namespace of the attacher of the same driver, if that has the same host: one pod
// has both, unless it has the network of its node. Whether they may be named is decided later.
func (s *Snapshot) ProvisionerPods() map[string][]string {
	found := map[string][]string{}
	x := newState(s)
	for _, claim := range s.Claims {
		provisioner := x.provisioner(claim)
		host := provisionerHost(x.claimFailure(claim), provisioner)
		if claim.Spec.VolumeName != "" || host == "" {
			continue
		}
		lease := x.attacherLease(provisioner)
		if lease != nil && leaseHolder(lease) == host && !slices.Contains(found[lease.Namespace], host) && x.pods[join(lease.Namespace, host)] == nil {
			found[lease.Namespace] = append(found[lease.Namespace], host)
		}
	}
	return found
}

// Unregistered reports whether an event of a node agent says that a driver has not registered on its node.
func Unregistered(e *corev1.Event) bool {
	return from(e, nodeAgents) && noDriver.MatchString(e.Message)
}

// HeldByPod reports whether an event says that another pod has a volume, or the scheduler that another pod uses a claim.
func (s *Snapshot) HeldByPod() bool {
	return slices.ContainsFunc(s.Pods, func(pod *corev1.Pod) bool {
		return pod.Spec.NodeName == "" && Unschedulable(pod) == explain.ReadWriteOncePodInUse
	}) || slices.ContainsFunc(s.Events, func(e *corev1.Event) bool {
		return from(e, controllers) && multiAttach.MatchString(strings.TrimPrefix(e.Message, combined))
	})
}
