package diagnosis

import (
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
)

// Resource is the plural name of a kind of object, as in RBAC rules.
type Resource string

// The resources that a snapshot holds.
const (
	Pods        Resource = "pods"
	Claims      Resource = "persistentvolumeclaims"
	Volumes     Resource = "persistentvolumes"
	Attachments Resource = "volumeattachments"
	Nodes       Resource = "nodes"
	Leases      Resource = "leases"
	CSINodes    Resource = "csinodes"
	Drivers     Resource = "csidrivers"
	Events      Resource = "events"
	// StorageClasses and Capacities say where a claim can get a volume; they are read for claims that have none.
	StorageClasses Resource = "storageclasses"
	Capacities     Resource = "csistoragecapacities"
	// Fences and FenceSources are those of recovery, where it is installed.
	Fences       Resource = "nodefences"
	FenceSources Resource = "fencesources"
	// Namespaces are only listed for completion.
	Namespaces Resource = "namespaces"
	// ClusterRoles and ClusterRoleBindings show which leases count; a snapshot does not hold them.
	ClusterRoles        Resource = "clusterroles"
	ClusterRoleBindings Resource = "clusterrolebindings"
	// The owners of pods, of which only the one that was asked about is read, and for a Deployment its ReplicaSets.
	StatefulSets Resource = "statefulsets"
	Deployments  Resource = "deployments"
	ReplicaSets  Resource = "replicasets"
	DaemonSets   Resource = "daemonsets"
	Jobs         Resource = "jobs"
)

// Ref names an object.
type Ref struct {
	Resource  Resource `json:"resource"`
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name"`
}

// String is the object as kubectl takes it, "pods/db-0", without the namespace.
func (r Ref) String() string { return string(r.Resource) + "/" + r.Name }

// Snapshot holds what was read from one cluster, at about one time.
type Snapshot struct {
	// Now is the time of the API server.
	Now time.Time `json:"now"`

	Pods        []*corev1.Pod                   `json:"pods,omitempty"`
	Claims      []*corev1.PersistentVolumeClaim `json:"claims,omitempty"`
	Volumes     []*corev1.PersistentVolume      `json:"volumes,omitempty"`
	Attachments []*storagev1.VolumeAttachment   `json:"attachments,omitempty"`
	Nodes       []*corev1.Node                  `json:"nodes,omitempty"`
	// Leases are those of the nodes, and of leader election those that count (kube.LeaseOwners).
	Leases   []*coordinationv1.Lease `json:"leases,omitempty"`
	CSINodes []*storagev1.CSINode    `json:"csiNodes,omitempty"`
	Drivers  []*storagev1.CSIDriver  `json:"drivers,omitempty"`
	Events   []*corev1.Event         `json:"events,omitempty"`
	// Classes and Capacities are read for claims without a volume, and Workloads for the owner of pods that was asked about.
	Classes    []*storagev1.StorageClass       `json:"storageClasses,omitempty"`
	Capacities []*storagev1.CSIStorageCapacity `json:"csiStorageCapacities,omitempty"`
	Workloads  []*Workload                     `json:"workloads,omitempty"`
	// Machines are read of the nodes that were asked about, if they are lost or being taken down.
	Machines []*Machine `json:"machines,omitempty"`
	// OtherLeases count for nothing. Their names are taken out of texts.
	OtherLeases []*coordinationv1.Lease `json:"otherLeases,omitempty"`
	// Fences are all NodeFences. Those and the FenceSources are absent as a whole where recovery is not installed.
	Fences       []*fencingv1.NodeFence   `json:"nodeFences,omitempty"`
	FenceSources []*fencingv1.FenceSource `json:"fenceSources,omitempty"`

	// Whole lists the resources of which all objects were read: one that is not here does not exist.
	Whole []Resource `json:"whole,omitempty"`
	// Absent lists objects that do not exist: the API server said so.
	Absent []Ref `json:"absent,omitempty"`
	// Unread lists what could not be read.
	Unread []Unread `json:"unread,omitempty"`
	// AllNamespaces is set when the pods of all namespaces may be read. Namespaces are the others that may be named: all that an
	// output says about objects of a namespace that is not among them is how many there are.
	AllNamespaces bool     `json:"allNamespaces,omitempty"`
	Namespaces    []string `json:"namespaces,omitempty"`
}

// Workload is an owner of pods.
type Workload struct {
	metav1.ObjectMeta `json:"metadata"`

	Resource Resource `json:"resource"`
	// Wanted is how many pods it is to have, and Made how many it has.
	Wanted int32 `json:"wanted"`
	Made   int32 `json:"made"`
	// Suspended is set for a Job that creates no pods until it is resumed.
	Suspended bool `json:"suspended,omitempty"`
}

// Unread is something that could not be read, and what that hides.
type Unread struct {
	Ref
	// Verb is "get" or "list".
	Verb string `json:"verb"`
	// Forbidden is set when a permission is missing.
	Forbidden bool `json:"forbidden,omitempty"`
	// Message is the error.
	Message string `json:"message"`
}

// Rule is the permission that would show it, "list pods" or "get nodes/node-1".
func (u Unread) Rule() string {
	rule := u.Verb + " " + string(u.Resource)
	if u.Name != "" {
		rule += "/" + u.Name
	}
	if u.Namespace != "" {
		rule += " in namespace " + u.Namespace
	}
	return rule
}

// HidesLeaders reports whether the snapshot, without it, may lack a lease of leader election that counts.
func (u Unread) HidesLeaders() bool {
	if u.Resource == Leases {
		return u.Verb == "list" && u.Namespace != corev1.NamespaceNodeLease
	}
	return u.Resource == ClusterRoles || u.Resource == ClusterRoleBindings
}

// mayName reports whether objects of the namespace may appear in an output.
func (s *Snapshot) mayName(namespace string) bool {
	return namespace == "" || s.AllNamespaces || slices.Contains(s.Namespaces, namespace)
}

// exists is whether an object exists that is not in the snapshot.
func (s *Snapshot) exists(r Ref) decision.Knowledge {
	if slices.Contains(s.Absent, r) || slices.Contains(s.Whole, r.Resource) || r.Resource == Claims && slices.Contains(s.Absent, ClaimsIn(r.Namespace)) {
		return decision.No
	}
	return decision.Unknown
}
