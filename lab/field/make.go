package field

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
)

// maker makes situations.
type maker struct {
	client dynamic.Interface
	// began is the time to which "ago:SECONDS" refers, which is the same for all situations: the answers have no other durations than the
	// files.
	began time.Time
	// now is the time of the answers, to which "beat:SECONDS" refers: leases are renewed until then.
	now    time.Time
	events atomic.Int64
}

// resource is where objects of a kind are.
func (m *maker) resource(kind, namespace string) dynamic.ResourceInterface {
	gv, err := schema.ParseGroupVersion(kinds[kind].version)
	if err != nil || kinds[kind].version == "" {
		panic("no situation has objects of the kind " + kind)
	}
	plural, _ := meta.UnsafeGuessKindToResource(gv.WithKind(kind))
	return m.client.Resource(plural).Namespace(namespace)
}

// of is the object that a reference names.
func (m *maker) of(ref object) (client dynamic.ResourceInterface, name string) {
	return m.resource(text(ref, "kind"), text(ref, "namespace")), text(ref, "name")
}

// make makes all objects of a situation.
func (m *maker) make(ctx context.Context, s *Situation) error {
	if s.Name != surroundings {
		if err := m.namespace(ctx, s.Namespace()); err != nil {
			return fmt.Errorf("situation %s: %w", s.Name, err)
		}
	}
	for _, o := range s.Objects {
		if err := m.object(ctx, m.times(o).(object)); err != nil {
			return fmt.Errorf("situation %s: %w", s.Name, err)
		}
	}
	return nil
}

// namespace makes a namespace with the account without which no pod can be made. Its token is mounted by the pods themselves.
func (m *maker) namespace(ctx context.Context, name string) error {
	for _, o := range []object{
		{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": name}},
		{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": object{"name": "default", "namespace": name}, "automountServiceAccountToken": false},
	} {
		u := &unstructured.Unstructured{Object: o}
		plural, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind())
		_, err := m.client.Resource(plural).Namespace(u.GetNamespace()).Create(ctx, u, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("making %s %s: %w", u.GetKind(), name, err)
		}
	}
	return nil
}

func seconds(text string) time.Duration {
	d, err := time.ParseDuration(text + "s")
	if err != nil {
		panic(err) // a situation is part of this program
	}
	return d
}

// times replaces each "ago:SECONDS" and "beat:SECONDS".
func (m *maker) times(value any) any {
	switch value := value.(type) {
	case object:
		all := object{}
		for k, v := range value {
			all[k] = m.times(v)
		}
		return all
	case []any:
		all := make([]any, 0, len(value))
		for _, v := range value {
			all = append(all, m.times(v))
		}
		return all
	case string:
		if age, ok := strings.CutPrefix(value, "ago:"); ok {
			return m.stamp(seconds(age))
		}
		if age, ok := strings.CutPrefix(value, "beat:"); ok {
			return m.now.Add(-seconds(age)).UTC().Format(metav1.RFC3339Micro)
		}
	}
	return value
}

func (m *maker) stamp(ago time.Duration) string {
	return m.began.Add(-ago).UTC().Format(time.RFC3339)
}

// object makes an object, or does what a kind of the situations' own says.
func (m *maker) object(ctx context.Context, o object) error {
	ref, _ := o["ref"].(object)
	switch kind := text(o, "kind"); kind {
	case "Event":
		return m.event(ctx, o, ref)
	case "NodeVolumes":
		return m.lists(ctx, o)
	case "Patch":
		return m.patch(ctx, o, ref)
	case "Wait":
		return m.await(ctx, ref, text(o, "phase"))
	case "Delete":
		client, name := m.of(ref)
		options := metav1.DeleteOptions{}
		if grace, ok := o["grace"]; ok {
			options.GracePeriodSeconds = new(number(grace))
		}
		if err := client.Delete(ctx, name, options); err != nil {
			return fmt.Errorf("deleting %s %s: %w", text(ref, "kind"), name, err)
		}
		return nil
	}
	return m.create(ctx, &unstructured.Unstructured{Object: o})
}

// number is a number of a file.
func number(value any) int64 {
	switch value := value.(type) {
	case float64:
		return int64(value)
	case int64:
		return value
	}
	return 0
}

// create makes an API object and its status.
func (m *maker) create(ctx context.Context, o *unstructured.Unstructured) error {
	owners := o.GetOwnerReferences()
	for i, owner := range owners {
		is, err := m.resource(owner.Kind, o.GetNamespace()).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading the owner of %s: %w", o.GetName(), err)
		}
		owners[i].UID = is.GetUID()
	}
	o.SetOwnerReferences(owners)
	status, hasStatus := o.Object["status"].(object)
	delete(o.Object, "status")
	client := m.resource(o.GetKind(), o.GetNamespace())
	made, err := client.Create(ctx, o, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("making %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	if o.GetKind() == "Node" {
		return m.ready(ctx, made, status)
	}
	if !hasStatus {
		return nil
	}
	return m.update(ctx, client, o.GetName(), "status", func(now object) { merge(now, "status", status) })
}

// ready writes the status of a node, and takes off the taint that the API server gives new nodes
// (k/k v1.36.3 plugin/pkg/admission/nodetaint): here no controller does.
func (m *maker) ready(ctx context.Context, node *unstructured.Unstructured, status object) error {
	client := m.resource("Node", "")
	err := m.update(ctx, client, node.GetName(), "status", func(now object) { merge(now, "status", status) })
	if err != nil {
		return err
	}
	return m.update(ctx, client, node.GetName(), "", func(now object) {
		taints, _, _ := unstructured.NestedSlice(now, "spec", "taints")
		var kept []any
		for _, t := range taints {
			if text(t.(object), "key") != "node.kubernetes.io/not-ready" {
				kept = append(kept, t)
			}
		}
		now["spec"].(object)["taints"] = kept
	})
}

func merge(o object, field string, with object) {
	into, _ := o[field].(object)
	if into == nil {
		into = object{}
		o[field] = into
	}
	maps.Copy(into, with)
}

// busy is for nodes, whose lists all situations change at the same time.
var busy = wait.Backoff{Steps: 40, Duration: 20 * time.Millisecond, Factor: 1.1, Jitter: 1}

// update changes an object, or a part of it, of which others may be written at the same time.
func (m *maker) update(ctx context.Context, client dynamic.ResourceInterface, name, part string, change func(object)) error {
	var parts []string
	if part != "" {
		parts = append(parts, part)
	}
	err := retry.RetryOnConflict(busy, func() error {
		now, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(now.Object)
		_, err = client.Update(ctx, now, metav1.UpdateOptions{}, parts...)
		return err
	})
	if err != nil {
		return fmt.Errorf("changing %s: %w", name, err)
	}
	return nil
}

// event is one of a component that does not run here. That of a cluster-scoped object is in the namespace default.
func (m *maker) event(ctx context.Context, o, ref object) error {
	client, name := m.of(ref)
	about := object{"kind": text(ref, "kind"), "apiVersion": kinds[text(ref, "kind")].version, "name": name, "namespace": text(ref, "namespace")}
	if is, err := client.Get(ctx, name, metav1.GetOptions{}); err == nil {
		about["uid"] = string(is.GetUID())
	}
	namespace := text(ref, "namespace")
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	set(o, "Warning", "type")
	set(o, int64(1), "count")
	age, first := number(o["age"]), number(o["first"])
	if first == 0 {
		first = age
		if number(o["count"]) > 1 {
			first += 1200
		}
	}
	at := func(age int64) string { return m.stamp(time.Duration(age) * time.Second) }
	return m.create(ctx, &unstructured.Unstructured{Object: object{
		"apiVersion": "v1", "kind": "Event", "metadata": object{"name": fmt.Sprintf("%s.%x", name, m.events.Add(1)), "namespace": namespace},
		"involvedObject": about, "reason": text(o, "reason"), "message": text(o, "message"), "type": text(o, "type"), "count": number(o["count"]),
		"source":             object{"component": text(o, "from"), "host": text(o, "host")},
		"reportingComponent": text(o, "from"), "reportingInstance": text(o, "host"),
		"firstTimestamp": at(first), "lastTimestamp": at(age),
	}})
}

// lists adds volumes to the lists of a node: "volumes" to both.
func (m *maker) lists(ctx context.Context, o object) error {
	list := func(field string) []any {
		of, _ := o[field].([]any)
		both, _ := o["volumes"].([]any)
		return append(append([]any{}, of...), both...)
	}
	return m.update(ctx, m.resource("Node", ""), text(o, "node"), "status", func(now object) {
		status := now["status"].(object)
		inUse, _ := status["volumesInUse"].([]any)
		attached, _ := status["volumesAttached"].([]any)
		status["volumesInUse"] = append(inUse, list("inUse")...)
		for _, name := range list("attached") {
			attached = append(attached, object{"name": name, "devicePath": ""})
		}
		status["volumesAttached"] = attached
	})
}

// patch changes what a claim requests, and the status of an object.
func (m *maker) patch(ctx context.Context, o, ref object) error {
	client, name := m.of(ref)
	if request := text(o, "request"); request != "" {
		err := m.update(ctx, client, name, "", func(now object) {
			_ = unstructured.SetNestedField(now, request, "spec", "resources", "requests", "storage") // it is there
		})
		if err != nil {
			return err
		}
	}
	status, _ := o["status"].(object)
	return m.update(ctx, client, name, "status", func(now object) { merge(now, "status", status) })
}

const (
	phaseWithin = time.Minute
	lookAgain   = 100 * time.Millisecond
)

// await waits until a claim or a volume has a phase.
func (m *maker) await(ctx context.Context, ref object, phase string) error {
	client, name := m.of(ref)
	err := wait.PollUntilContextTimeout(ctx, lookAgain, phaseWithin, true, func(ctx context.Context) (bool, error) {
		now, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, fmt.Errorf("reading %s: %w", name, err)
		}
		return text(now.Object, "status", "phase") == phase, nil
	})
	if err != nil {
		return errors.Join(fmt.Errorf("%s %s is not %s", text(ref, "kind"), name, phase), err)
	}
	return nil
}
