package nodevolume

import "maps"

// Owner is the Node whose volumes the records under a root are.
type Owner struct {
	NodeName string `json:"nodeName"`
	// NodeUID is that of the Node object; empty if it was not there or could not be read.
	NodeUID string `json:"nodeUID,omitempty"`
	// Cluster holds the UIDs of objects of which a cluster has one, by the objects' paths; of those that
	// could be read. Two clusters have none of them in common.
	Cluster map[string]string `json:"cluster,omitempty"`
}

// Ownership is what a comparison of two owners says.
type Ownership int

// What a comparison can say. The zero value is the careful one.
const (
	// OwnerUnknown: too little could be read to tell.
	OwnerUnknown Ownership = iota
	// SameOwner: the same Node, or one that was recreated under its name in the same cluster. It is the same
	// machine: the root has not moved.
	SameOwner
	// OtherNode: a Node of another name.
	OtherNode
	// OtherCluster: a Node of the same name in another cluster.
	OtherCluster
)

// Compare says whether records that belong to o are those of now, the Node that an agent serves. A Node's UID
// settles it alone, since no two clusters give the same. Where the UIDs differ, or there is no Node, it
// depends on the cluster.
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

// Updated is o with what is known now of the same owner.
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

// Equal says that both hold the same.
func (o Owner) Equal(other Owner) bool {
	return o.NodeName == other.NodeName && o.NodeUID == other.NodeUID && maps.Equal(o.Cluster, other.Cluster)
}
