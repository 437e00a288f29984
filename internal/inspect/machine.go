package inspect

import (
	"context"
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
)

// machineConditions limits the conditions that are kept of a machine.
const machineConditions = 20

// machine reads the object of the machine of a node, if the node is lost or its machine is being stopped: one request, none for a node that is well. Where the
// cluster does not serve the kind, it is in another cluster, and nothing is lacking.
func (r *run) machine(ctx context.Context, name string) {
	var node *corev1.Node
	r.add(func(s *diagnosis.Snapshot) {
		for _, n := range s.Nodes {
			if n.Name == name {
				node = n
			}
		}
	})
	if node == nil || !r.anyLost() && kube.TakedownOf(node) == (kube.Takedown{}) {
		return
	}
	ref := kube.MachineObject(node)
	if ref == nil {
		return
	}
	m := &diagnosis.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name}, Node: name, Owner: ref.Owner, Kind: ref.Kind, Resource: ref.Resource + "." + ref.Group,
	}
	path := []string{"/apis", ref.Group, ref.Version, ref.Resource, ref.Name}
	if ref.Namespace != "" {
		path = []string{"/apis", ref.Group, ref.Version, "namespaces", ref.Namespace, ref.Resource, ref.Name}
	}
	content, err := r.fences.Get().AbsPath(path...).DoRaw(ctx)
	var object struct {
		metav1.ObjectMeta `json:"metadata"`

		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if err == nil {
		err = json.Unmarshal(content, &object)
	}
	switch {
	case apierrors.IsNotFound(err):
		return
	case apierrors.IsForbidden(err):
		m.Unread = "you may not get " + m.Resource
	case err != nil:
		m.Unread = err.Error()
		cutTexts(&m.Unread)
	default:
		m.DeletionTimestamp = object.DeletionTimestamp
		for i := range object.Status.Conditions[:min(len(object.Status.Conditions), machineConditions)] {
			c := metav1.Condition{Type: object.Status.Conditions[i].Type, Status: object.Status.Conditions[i].Status, Reason: object.Status.Conditions[i].Reason}
			cutTexts(&c.Type, &c.Reason)
			c.Status = metav1.ConditionStatus(strings.Clone(kube.Name(string(c.Status))))
			m.Conditions = append(m.Conditions, c)
		}
	}
	r.add(func(s *diagnosis.Snapshot) { s.Machines = append(s.Machines, m) })
}
