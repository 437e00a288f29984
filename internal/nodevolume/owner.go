package nodevolume

import "maps"

// Owner identifies the Node that the records under a root belong to.
type Owner struct {
	NodeName string `json:"nodeName"`
	// NodeUID is the UID of the Node object; empty if it did not exist or could not be read.
	NodeUID string `json:"nodeUID,omitempty"`
	// Cluster holds the UIDs of objects that exist once per cluster, by path, as far as they could be read. Two clusters have none
	// in common.
	Cluster map[string]string `json:"cluster,omitempty"`
}

// Ownership is the result of comparing two owners.
type Ownership int

// The zero value is the cautious one.
const (
	// OwnerUnknown: too little could be read.
	OwnerUnknown Ownership = iota
	// SameOwner: the same Node, or one that was recreated under the same name in the same cluster. It is the same machine, because
	// the root has not moved.
	SameOwner
	// OtherNode: a Node of another name.
	OtherNode
	// OtherCluster: a Node of the same name in another cluster.
	OtherCluster
)

// Compare reports whether records of owner o belong to now, the Node that the agent serves. An equal Node UID is sufficient,
// because no two clusters assign the same. If the UIDs differ, or there is no Node, the cluster decides.
func (o Owner) Compare(now Owner) Ownership {
	switch {
	case o.NodeName != now.NodeName:
		return OtherNode
	case o.NodeUID != "" && o.NodeUID == now.NodeUID:
		return SameOwner
	}
	verdict := OwnerUnknown
	for object, uid := range o.Cluster {
		switch seen, known := now.Cluster[object]; {
		case !known:
		case seen == uid:
			return SameOwner // the others were recreated
		default:
			verdict = OtherCluster
		}
	}
	return verdict
}

// Updated returns o with what is now known about the same owner.
func (o Owner) Updated(now Owner) Owner {
	if now.NodeUID != "" {
		o.NodeUID = now.NodeUID
	}
	cluster := map[string]string{}
	maps.Copy(cluster, o.Cluster)
	maps.Copy(cluster, now.Cluster)
	o.NodeName, o.Cluster = now.NodeName, cluster
	return o
}

// Equal reports whether both have the same content.
func (o Owner) Equal(other Owner) bool {
	return o.NodeName == other.NodeName && o.NodeUID == other.NodeUID && maps.Equal(o.Cluster, other.Cluster)
}
