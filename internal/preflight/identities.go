package preflight

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/identity"
	"belay.dev/belay/internal/kube"
)

// identitiesPage is about what identifies the machine of a node.
const identitiesPage = "docs/operate.md#what-identifies-a-machine"

// checkIdentities looks for nodes whose machines cannot be distinguished.
func (h *health) checkIdentities() []Check {
	equal := map[string][]string{} // by kind
	for i, names := range kube.Carriers(h.Nodes) {
		if len(names) > 1 {
			equal[i.Kind] = append(equal[i.Kind], together(names)+": "+i.Value)
		}
	}
	return []Check{
		h.checkSystemUUIDs(equal[kube.SystemIdentity]),
		h.checkEqual("provider IDs", equal[kube.ProviderIdentity], "all are different",
			"that several nodes have: %d; none of them says that a machine is the same as before: correct kubelet's --provider-id, or the cloud controller"),
		h.checkEqual("boot IDs", equal[kube.BootIdentity], "all are different",
			"that several nodes have: %d, as nodes in containers of one host, or machines that were cloned while they ran; none of them says that a machine "+
				"was not restarted: expect waits, and restart clones"),
	}
}

// checkSystemUUIDs looks for nodes that no system UUID identifies.
func (h *health) checkSystemUUIDs(equal []string) Check {
	var found []string
	for _, n := range h.Nodes {
		switch uuid := n.Status.NodeInfo.SystemUUID; {
		case uuid == "":
			found = append(found, "node "+n.Name+": it has none")
		case identity.Of(uuid) == "":
			found = append(found, "node "+n.Name+": "+uuid+", which many machines have")
		}
	}
	return h.checkEqual("system UUIDs", slices.Concat(found, equal), "each node has one of its own",
		"missing, without a meaning, or that several nodes have: %d; a restarted machine cannot be distinguished from another one under its name, so volumes wait "+
			"longer when a Node is registered again, and recovery fences none of these nodes: set the UUID in the firmware or the hypervisor")
}

// checkEqual is a check for values that nodes must not have.
func (h *health) checkEqual(name string, found []string, right, wrong string) Check {
	c := Check{Category: CategoryNodes, Name: name, Result: OK, Message: right}
	if u, lacks := h.lacks(diagnosis.Nodes); lacks && len(found) == 0 {
		return c.unreadable(u)
	}
	if len(found) > 0 {
		slices.Sort(found)
		c.Result, c.Objects, c.Hint, c.Message = Warning, found, identitiesPage, fmt.Sprintf(wrong, len(found))
	}
	return c
}

// checkNodeIDs looks for nodes that a driver knows by the same ID.
func (h *health) checkNodeIDs() Check {
	c := Check{Category: CategoryDrivers, Name: "CSI node IDs", Result: OK, Message: "no driver has one ID for two nodes"}
	nodes := map[[2]string][]string{}
	for _, n := range h.CSINodes {
		for _, d := range n.Spec.Drivers {
			nodes[[2]string{d.Name, d.NodeID}] = append(nodes[[2]string{d.Name, d.NodeID}], n.Name)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(nodes), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		if names := nodes[id]; len(names) > 1 {
			c.Objects = append(c.Objects, fmt.Sprintf("%s: %s of driver %s", together(names), id[1], id[0]))
		}
	}
	u, lacks := h.lacks(diagnosis.CSINodes)
	switch {
	case len(c.Objects) > 0:
		c.Result, c.Hint = Failed, identitiesPage
		c.Message = fmt.Sprintf("that a driver has for several nodes: %d; it takes them for one machine: a volume that they share is detached from all of "+
			"them at once, by belay-attacher only when the last one is done with it: make the IDs different, and register the driver again", len(c.Objects))
	case lacks:
		return c.unreadable(u)
	}
	return c
}

// together names several nodes.
func together(names []string) string {
	slices.Sort(names)
	return "nodes " + strings.Join(names, ", ")
}

// clouds begin the provider IDs of nodes whose cloud controller deletes a Node once its instance is gone.
var clouds = []string{"aws://", "gce://", "azure://"}

// machineControllers delete a Node once its machine is gone, and mark it by a finalizer or an annotation:
//   - Karpenter: sigs.k8s.io/karpenter v1.12.0 pkg/controllers/node/termination/controller.go:281-300;
//   - Cluster API: sigs.k8s.io/cluster-api v1.14.2 core/reconcilers/machine/machine_controller.go:648-660;
//   - OpenShift: github.com/openshift/machine-api-operator 88465550a74b pkg/controller/machine/controller.go:304-317.
var machineControllers = []string{"karpenter.sh/termination", "cluster.x-k8s.io/machine", "machine.openshift.io/machine"}

// controllerDeletes reports whether the Node is one of those that a controller deletes once their machines are gone.
func controllerDeletes(n *corev1.Node) bool {
	return slices.ContainsFunc(clouds, func(prefix string) bool { return strings.HasPrefix(n.Spec.ProviderID, prefix) }) ||
		slices.ContainsFunc(machineControllers, func(mark string) bool {
			return slices.Contains(n.Finalizers, mark) || n.Annotations[mark] != ""
		})
}

// checkDeletedNodes looks at the policy for deleted Nodes where a controller deletes them.
func (h *health) checkDeletedNodes() []Check {
	deleted := 0
	for _, n := range h.Nodes {
		if controllerDeletes(n) {
			deleted++
		}
	}
	i := slices.IndexFunc(h.programs, func(p program) bool { return p.name == kube.FieldManager })
	if i < 0 || deleted == 0 {
		return nil
	}
	p := h.programs[i]
	c := Check{Category: CategoryControllers, Name: "deleted Nodes", Result: OK, Message: "their volumes are detached when no pod needs them"}
	if !slices.Contains(flagValues(slices.Concat(p.container.Command, p.container.Args), "deleted-node-policy"), "detach") {
		c.Result, c.Hint = Warning, "docs/adopt-controller.md#volumes-of-dead-and-deleted-nodes"
		c.Message = fmt.Sprintf("a controller of clouds or machines deletes Nodes of this cluster, %d of which it may manage, and their volumes wait for the unmount timeout: if it "+
			"does so only after the machine is gone, and people do not delete Nodes of machines that run, set --deleted-node-policy=detach", deleted)
	}
	return []Check{c}
}
