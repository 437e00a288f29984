package kube

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/identity"
)

// MachineOf identifies the machine behind a Node.
func MachineOf(node *corev1.Node) attachment.Machine {
	return attachment.Machine{
		NodeUID:    string(node.UID),
		BootID:     node.Status.NodeInfo.BootID,
		SystemUUID: node.Status.NodeInfo.SystemUUID,
		ProviderID: node.Spec.ProviderID,
	}
}

// RecordedMachine is the machine that belay recorded on a VolumeAttachment.
func RecordedMachine(va *storagev1.VolumeAttachment) attachment.Machine {
	return attachment.Machine{
		NodeUID:    va.Annotations[NodeUIDAnnotation],
		BootID:     va.Annotations[BootIDAnnotation],
		SystemUUID: va.Annotations[SystemUUIDAnnotation],
		ProviderID: va.Annotations[ProviderIDAnnotation],
	}
}

// Identity is one string that identifies the machine or the boot behind a Node.
type Identity struct{ Kind, Value string }

// The kinds of Identity.
const (
	BootIdentity     = "boot ID"
	SystemIdentity   = "system UUID"
	ProviderIdentity = "provider ID"
)

// IdentitiesOf returns what identifies the machine behind a Node.
func IdentitiesOf(node *corev1.Node) []Identity {
	m := MachineOf(node)
	return slices.DeleteFunc([]Identity{
		{BootIdentity, identity.Of(m.BootID)}, {SystemIdentity, identity.Of(m.SystemUUID)}, {ProviderIdentity, identity.Of(m.ProviderID)},
	}, func(i Identity) bool { return i.Value == "" })
}

// ByIdentity is the index of Nodes by what identifies their machines, for SharedWith. Its values are buckets: a set for each of the three
// strings of each Node would take more memory than what it finds.
const ByIdentity = "identity"

// IdentityBuckets are the values of a Node in ByIdentity.
func IdentityBuckets(obj any) ([]string, error) {
	identities := IdentitiesOf(obj.(*corev1.Node))
	found := make([]string, 0, len(identities))
	for _, i := range identities {
		found = append(found, bucket(i.Kind+i.Value))
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// SharedWith returns the other Nodes that carry an identity of the Node, by that identity.
func SharedWith(nodes *Newest[*corev1.Node], node *corev1.Node) map[Identity][]*corev1.Node {
	var found map[Identity][]*corev1.Node
	for _, i := range IdentitiesOf(node) {
		for _, other := range nodes.ByIndex(ByIdentity, bucket(i.Kind+i.Value)) {
			if other.Name == node.Name || !slices.Contains(IdentitiesOf(other), i) {
				continue
			}
			if found == nil {
				found = map[Identity][]*corev1.Node{}
			}
			found[i] = append(found[i], other)
		}
	}
	return found
}

// Carriers returns the names of the Nodes that carry each identity.
func Carriers(nodes []*corev1.Node) map[Identity][]string {
	carriers := make(map[Identity][]string, len(nodes))
	for _, node := range nodes {
		for _, i := range IdentitiesOf(node) {
			carriers[i] = append(carriers[i], node.Name)
		}
	}
	return carriers
}

// Shared says which identities of a Node are carried by others too, given whether each is.
func Shared(node *corev1.Node, shared func(Identity) bool) (s attachment.Shared) {
	for _, i := range IdentitiesOf(node) {
		switch yes := shared(i); i.Kind {
		case BootIdentity:
			s.BootID = yes
		case SystemIdentity:
			s.SystemUUID = yes
		case ProviderIdentity:
			s.ProviderID = yes
		}
	}
	return s
}
