package labtest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/scenario"
)

// Nodes of the situations: the volume is on the first and wanted on the second. What happens to a whole node happens to one of
// the others.
const (
	Holding = "node-1"
	Waiting = "node-2"
)

// StuckLimit bounds each wait. The longest is that for an attacher which is silent: two minutes.
const StuckLimit = 4 * time.Minute

// Stuck is one volume, a pod that has it, and a pod that waits for it.
type Stuck struct {
	*testing.T
	Scene  *scenario.Scene
	Name   string // of the claim; pods are <name>-<role>
	Began  time.Time
	Volume string // of the PersistentVolume
	Handle string
}

// Pod is the name of the pod with a role.
func (s *Stuck) Pod(role string) string { return s.Name + "-" + role }

// Claim makes the claim and waits for its volume.
func (s *Stuck) Claim(class string) {
	s.Helper()
	_, err := s.Scene.Client.CoreV1().PersistentVolumeClaims(scenario.Namespace).Create(s.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, Namespace: scenario.Namespace},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	Until(s.T, StuckLimit, "the claim to be bound", func() error {
		volume, err := s.Scene.Record.Volume(scenario.Namespace + "/" + s.Name)
		s.Volume, s.Handle = volume.PV, volume.Handle
		return err
	})
}

// Hold makes the claim and a pod on the node that uses its volume.
func (s *Stuck) Hold(node, class string) {
	s.Helper()
	s.Claim(class)
	s.Create("holder", node)
	UntilPod(s.T, s.Scene, s.Pod("holder"), "runs", isRunning)
	s.Logf("%s runs on %s", s.Pod("holder"), node)
}

// Create makes a pod on the node, past the scheduler, which would keep it from a node with a taint.
func (s *Stuck) Create(role, node string) {
	s.Helper()
	pod := Writer(s.Pod(role), corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: s.Name},
	}})
	pod.Spec.NodeName = node
	if _, err := s.Scene.Client.CoreV1().Pods(scenario.Namespace).Create(s.Context(), pod, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
}

// Wait makes the pod that waits for the volume.
func (s *Stuck) Wait() { s.Create("waiter", Waiting) }

// Remove deletes a pod as users do.
func (s *Stuck) Remove(role string) { s.delete(role, metav1.DeleteOptions{}) }

// Vanish deletes a pod as PodGC does where the Node is gone: its node is not asked.
func (s *Stuck) Vanish(role string) {
	s.delete(role, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
}

func (s *Stuck) delete(role string, o metav1.DeleteOptions) {
	s.Helper()
	if err := s.Scene.Client.CoreV1().Pods(scenario.Namespace).Delete(s.Context(), s.Pod(role), o); err != nil {
		s.Fatal(err)
	}
}

// DeleteNode deletes a Node object.
func (s *Stuck) DeleteNode(name string) {
	s.Helper()
	if err := s.Scene.Client.CoreV1().Nodes().Delete(s.Context(), name, metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
}

// Arrives waits until the pod that waited runs.
func (s *Stuck) Arrives() {
	s.Helper()
	began := time.Now()
	UntilPod(s.T, s.Scene, s.Pod("waiter"), "runs", isRunning)
	s.Logf("the pod that waited runs %.1f s later", time.Since(began).Seconds())
}

// Fault makes calls about the volume fail until it is lifted.
func (s *Stuck) Fault(f labdisk.Fault) (lift func()) {
	s.Helper()
	fabric := s.Scene.Cluster.Fabric()
	f.Volume = s.Handle
	id, err := fabric.SetFault(s.Context(), f)
	if err != nil {
		s.Fatal(err)
	}
	var once sync.Once
	clear := func(ctx context.Context) {
		once.Do(func() {
			if err := fabric.ClearFaults(ctx, id); err != nil {
				s.Error(err)
			}
		})
	}
	s.Cleanup(func() { clear(context.Background()) })
	return func() { clear(s.Context()) }
}

// Called waits until the node has been asked for the call about the volume, and it is answered.
func (s *Stuck) Called(method, node string, answered bool) {
	s.Helper()
	Until(s.T, StuckLimit, method+" on "+node, func() error {
		calls, err := s.Scene.Cluster.Fabric().Calls(s.Context(), s.Began)
		if err != nil {
			return err
		}
		for _, c := range calls {
			if c.Method == method && c.Node == node && c.Volume == s.Handle && (c.Code == "OK" || !answered) {
				return nil
			}
		}
		return fmt.Errorf("none among %d calls", len(calls))
	})
}

// Hears waits for an event on the waiting pod that says why.
func (s *Stuck) Hears(parts ...string) string {
	s.Helper()
	return s.Reads("Pod", s.Pod("waiter"), "FailedAttachVolume", parts...)
}

// Reads waits for a Warning event on an object with all parts in its text.
func (s *Stuck) Reads(kind, name, reason string, parts ...string) (text string) {
	s.Helper()
	began := time.Now()
	Until(s.T, StuckLimit, fmt.Sprintf("an event %s on %s %s with %q", reason, kind, name, parts), func() error {
		events, err := s.Events(kind, name)
		if err != nil {
			return err
		}
		var all []string
		for _, e := range events {
			lacks := func(part string) bool { return !strings.Contains(e.Message, part) }
			if e.Type == corev1.EventTypeWarning && e.Reason == reason && !slices.ContainsFunc(parts, lacks) {
				text = e.Message
				return nil
			}
			all = append(all, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("events so far:\n%s", strings.Join(all, "\n"))
	})
	s.Logf("after %.1f s, %s on %s %s:\n%s", time.Since(began).Seconds(), reason, kind, name, text)
	return text
}

// Events are those on an object, oldest first.
func (s *Stuck) Events(kind, name string) ([]corev1.Event, error) {
	list, err := s.Scene.Client.CoreV1().Events(scenario.Namespace).List(context.WithoutCancel(s.Context()), metav1.ListOptions{
		FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name,
	})
	if err != nil {
		return nil, fmt.Errorf("list the events on %s %s: %w", kind, name, err)
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int {
		return cmp.Or(a.FirstTimestamp.Compare(b.FirstTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return list.Items, nil
}

// Story logs all that was to be read, in its order.
func (s *Stuck) Story() {
	for kind, names := range map[string][]string{"Pod": {s.Pod("holder"), s.Pod("waiter")}, "PersistentVolumeClaim": {s.Name}} {
		for _, name := range names {
			events, err := s.Events(kind, name)
			if err != nil {
				s.Error(err)
			}
			for _, e := range events {
				s.Logf("%s %s %s %s (%d, %s): %s", e.FirstTimestamp.UTC().Format(time.TimeOnly), kind, name, e.Reason, max(1, e.Count), e.Source.Component, e.Message)
			}
		}
	}
}

// Until looks until there is no error.
func Until(t *testing.T, limit time.Duration, what string, look func() error) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), limit)
	defer stop()
	for {
		err := look()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waited %v for %s: %v", limit, what, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// EndedCalls are all calls of the drivers, as soon as none is in flight: a node that was answered may have yet to tell the fabric.
func EndedCalls(t *testing.T, scene *scenario.Scene) []labdisk.Call {
	t.Helper()
	var calls []labdisk.Call
	Until(t, StuckLimit, "the ends of all calls", func() (err error) {
		if calls, err = scene.Cluster.Fabric().Calls(t.Context(), time.Time{}); err != nil {
			return err
		}
		for _, c := range calls {
			if c.End.IsZero() {
				return fmt.Errorf("in flight: %+v", c)
			}
		}
		return nil
	})
	return calls
}

func isRunning(pod *corev1.Pod) bool { return pod != nil && pod.Status.Phase == corev1.PodRunning }
