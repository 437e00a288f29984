package kube

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// KarpenterFinalizer is on each Node of Karpenter: its deletion ends the machine first (sigs.k8s.io/karpenter v1.12.0
// pkg/controllers/node/termination/controller.go:281-300).
const KarpenterFinalizer = "karpenter.sh/termination"

// takedowns are the taints by which the owner of a machine says that it drains the node, and deletes the machine next. NodeRestriction refuses a kubelet
// all changes to taints (kubernetes v1.36.3 plugin/pkg/admission/noderestriction/admission.go:545-561).
//   - sigs.k8s.io/karpenter v1.12.0 pkg/apis/v1/taints.go:27;
//   - kubernetes/autoscaler 0af55ac5aff4 cluster-autoscaler/utils/taints/taints.go ToBeDeletedTaint. Its DeletionCandidateOfClusterAutoscaler is no more than a candidate.
var takedowns = map[string]string{"karpenter.sh/disrupted": "Karpenter", "ToBeDeletedByClusterAutoscaler": "cluster-autoscaler"}

// rebootAnnotations are those by which the owner of a machine says that it reboots: kured, with --annotate-nodes (kubereboot/kured cmd/kured/main.go
// KuredRebootInProgressAnnotation).
var rebootAnnotations = map[string]string{"weave.works/kured-reboot-in-progress": "kured"}

// shuttingDown is what kubelet says in the message of the condition Ready (k/k v1.36.3 pkg/kubelet/nodeshutdown/nodeshutdown_manager_linux.go:308).
const shuttingDown = "node is shutting down"

// Takedown is a sign on a Node that its machine is being stopped on purpose.
type Takedown struct {
	// Who stops it: "Karpenter", "cluster-autoscaler", "kured", "kubelet", or "a client" that deletes the Node.
	Who string
	// Sign is what shows that.
	Sign string
}

// TakedownOf returns the sign that the machine of a node is being stopped on purpose, by its own kubelet or by who owns it; the zero value without one. The
// caches of the programs keep few of these: it is asked about a Node as the API server has it.
func TakedownOf(node *corev1.Node) Takedown {
	for i := range node.Spec.Taints {
		if key := node.Spec.Taints[i].Key; takedowns[key] != "" {
			return Takedown{takedowns[key], "the taint " + key}
		}
	}
	if node.DeletionTimestamp != nil {
		if slices.Contains(node.Finalizers, KarpenterFinalizer) {
			return Takedown{"Karpenter", "the Node is being deleted, with the finalizer " + KarpenterFinalizer}
		}
		return Takedown{"a client", "the Node is being deleted"}
	}
	for name, who := range rebootAnnotations {
		if node.Annotations[name] != "" {
			return Takedown{who, "the annotation " + name}
		}
	}
	if slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, shuttingDown)
	}) {
		return Takedown{"kubelet", "its machine shuts down"}
	}
	return Takedown{}
}

// MachineRef names the object of a machine in this cluster, whose controller makes and deletes the machine.
type MachineRef struct {
	schema.GroupVersionKind

	// Owner is what runs that controller, Resource the plural of the kind, in lower case.
	Owner, Resource string
	// Namespace is empty for a kind without namespaces.
	Namespace, Name string
}

// MachineObject returns the object of a node's machine, as the Node names it; nil without one. A kubelet may write the annotations of its own Node, so what is read of
// the object counts for that node alone. Cluster API often keeps it in another cluster: then this one does not serve the kind.
//   - Cluster API: sigs.k8s.io/cluster-api/api v1.14.2 core/v1beta2/common_types.go:88,91;
//   - OpenShift: github.com/openshift/machine-api-operator 88465550a74b pkg/controller/nodelink;
//   - Karpenter: sigs.k8s.io/karpenter v1.12.0 pkg/utils/nodeclaim/nodeclaim.go UpdateNodeOwnerReferences.
func MachineObject(node *corev1.Node) *MachineRef {
	if name := node.Annotations["cluster.x-k8s.io/machine"]; name != "" {
		kind := schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "Machine"}
		return machineRef(kind, "Cluster API", "machines", node.Annotations["cluster.x-k8s.io/cluster-namespace"], name)
	}
	if namespace, name, ok := strings.Cut(node.Annotations["machine.openshift.io/machine"], "/"); ok {
		kind := schema.GroupVersionKind{Group: "machine.openshift.io", Version: "v1beta1", Kind: "Machine"}
		return machineRef(kind, "OpenShift's Machine API", "machines", namespace, name)
	}
	for i := range node.OwnerReferences {
		if o := &node.OwnerReferences[i]; o.Kind == "NodeClaim" && strings.HasPrefix(o.APIVersion, "karpenter.sh/") {
			return machineRef(schema.GroupVersionKind{Group: "karpenter.sh", Version: "v1", Kind: o.Kind}, "Karpenter", "nodeclaims", "", o.Name)
		}
	}
	return nil
}

// machineRef returns nil for what cannot be the name of an object.
func machineRef(kind schema.GroupVersionKind, owner, resource, namespace, name string) *MachineRef {
	ref := &MachineRef{GroupVersionKind: kind, Owner: owner, Resource: resource, Namespace: namespace, Name: name}
	if namespace == "" && kind.Kind == "Machine" || Name(name) != name || Name(namespace) != namespace ||
		len(content.IsPathSegmentName(name))+len(content.IsPathSegmentName(namespace)) > 0 {
		return nil
	}
	return ref
}
