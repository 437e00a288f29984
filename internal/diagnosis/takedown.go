package diagnosis

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
)

// Machine is the object of a node's machine, as the cluster's controller of machines has it.
type Machine struct {
	metav1.ObjectMeta `json:"metadata"`

	// Node is the node that names it, Owner what runs its controller, and Resource the name of the kind in kubectl.
	Node     string `json:"node"`
	Owner    string `json:"owner"`
	Kind     string `json:"kind"`
	Resource string `json:"resource"`
	// Conditions are those of its status.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Unread is why it could not be read.
	Unread string `json:"unread,omitempty"`
}

// waits are the conditions that say what a machine that is being deleted waits for, in order, and the status that says so.
//   - Karpenter: sigs.k8s.io/karpenter v1.12.0 pkg/controllers/node/termination/controller.go:200-275;
//   - Cluster API: sigs.k8s.io/cluster-api/api v1.14.2 core/v1beta2/machine_types.go MachineDeletingCondition.
var waits = []struct {
	condition string
	unless    metav1.ConditionStatus
}{{"Drained", metav1.ConditionTrue}, {"VolumesDetached", metav1.ConditionTrue}, {"Deleting", metav1.ConditionFalse}}

// takedown says who stops the machine of a node on purpose, by what sign, and what that one waits for; empty if nothing says so.
func (x *state) takedown(name string) string {
	node := x.nodes[name]
	if node == nil {
		return ""
	}
	var said []string
	if t := kube.TakedownOf(node); t.Who != "" {
		said = append(said, fmt.Sprintf("its machine is being stopped by %s: %s", t.Who, t.Sign))
	}
	for _, m := range x.Machines {
		if m.Node != name {
			continue
		}
		object := strings.TrimPrefix(m.Namespace+"/"+m.Name, "/")
		switch {
		case m.Unread != "" && len(said) > 0:
			said = append(said, fmt.Sprintf("%s %s could not be read (%s)", m.Kind, object, x.foreign(m.Unread)))
		case m.Unread == "" && m.DeletionTimestamp != nil:
			said = append(said, fmt.Sprintf("%s deletes its %s %s since %s%s", m.Owner, m.Kind, object, stamp(m.DeletionTimestamp.Time), x.waitsOf(m)))
		case m.Unread == "" && len(said) > 0 && x.waitsOf(m) != "":
			said = append(said, fmt.Sprintf("%s %s%s", m.Kind, object, x.waitsOf(m)))
		}
	}
	return strings.Join(said, "; ")
}

// waitsOf says what the controller of a machine waits for.
func (x *state) waitsOf(m *Machine) string {
	for _, w := range waits {
		for i := range m.Conditions {
			c := &m.Conditions[i]
			if c.Type != w.condition || c.Status == w.unless {
				continue
			}
			text := fmt.Sprintf(", with the condition %s %s", c.Type, c.Status)
			if c.Reason != "" && c.Reason != c.Type {
				text += " (" + x.foreign(c.Reason) + ")"
			}
			return text
		}
	}
	return ""
}

// withTakedown adds who stops the machine of a node to the findings about that node.
func (x *state) withTakedown(node Ref, found []Finding, clear string) ([]Finding, string) {
	said := x.takedown(node.Name)
	if said == "" {
		return found, clear
	}
	for i := range found {
		if found[i].Subject == node {
			found[i].Summary += "; " + said
		}
	}
	return found, clear + "; " + said
}
