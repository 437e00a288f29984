package e2e

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/scenario"
)

// stuckLimit bounds each wait. The longest is that for an attacher which is silent: two minutes.
const stuckLimit = 4 * time.Minute

// stuck is one volume, a pod that has it, and a pod that waits for it.
type stuck struct {
	*testing.T
	scene  *scenario.Scene
	name   string // of the claim; pods are <name>-<role>
	began  time.Time
	volume string // of the PersistentVolume
	handle string
}

func (s *stuck) pod(role string) string { return s.name + "-" + role }

// claim makes the claim and waits for its volume.
func (s *stuck) claim(class string) {
	s.Helper()
	_, err := s.scene.Client.CoreV1().PersistentVolumeClaims(scenario.Namespace).Create(s.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: s.name, Namespace: scenario.Namespace},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	until(s.T, stuckLimit, "the claim to be bound", func() error {
		volume, err := s.scene.Record.Volume(scenario.Namespace + "/" + s.name)
		s.volume, s.handle = volume.PV, volume.Handle
		return err
	})
}

// hold makes the claim and a pod on the node that uses its volume.
func (s *stuck) hold(node, class string) {
	s.Helper()
	s.claim(class)
	s.create("holder", node)
	untilPod(s.T, s.scene, s.pod("holder"), "runs", isRunning)
	s.Logf("%s runs on %s", s.pod("holder"), node)
}

// create makes a pod on the node, past the scheduler, which would keep it from a node with a taint.
func (s *stuck) create(role, node string) {
	s.Helper()
	pod := writer(s.pod(role), corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: s.name},
	}})
	pod.Spec.NodeName = node
	if _, err := s.scene.Client.CoreV1().Pods(scenario.Namespace).Create(s.Context(), pod, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
}

// wait makes the pod that waits for the volume.
func (s *stuck) wait() { s.create("waiter", waiting) }

// remove deletes a pod as users do.
func (s *stuck) remove(role string) { s.delete(role, metav1.DeleteOptions{}) }

// vanish deletes a pod as PodGC does where the Node is gone: its node is not asked.
func (s *stuck) vanish(role string) {
	s.delete(role, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
}

func (s *stuck) delete(role string, o metav1.DeleteOptions) {
	s.Helper()
	if err := s.scene.Client.CoreV1().Pods(scenario.Namespace).Delete(s.Context(), s.pod(role), o); err != nil {
		s.Fatal(err)
	}
}

func (s *stuck) deleteNode(name string) {
	s.Helper()
	if err := s.scene.Client.CoreV1().Nodes().Delete(s.Context(), name, metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
}

// arrives waits until the pod that waited runs.
func (s *stuck) arrives() {
	s.Helper()
	began := time.Now()
	untilPod(s.T, s.scene, s.pod("waiter"), "runs", isRunning)
	s.Logf("the pod that waited runs %.1f s later", time.Since(began).Seconds())
}

// fault makes calls about the volume fail until it is lifted.
func (s *stuck) fault(f labdisk.Fault) (lift func()) {
	s.Helper()
	fabric := s.scene.Cluster.Fabric()
	f.Volume = s.handle
	id, err := fabric.SetFault(s.Context(), f)
	if err != nil {
		s.Fatal(err)
	}
	clear := func(ctx context.Context) {
		if err := fabric.ClearFaults(ctx, id); err != nil {
			s.Error(err)
		}
	}
	s.Cleanup(func() { clear(context.Background()) })
	return func() { clear(s.Context()) }
}

// called waits until the node has been asked for the call about the volume, and it is answered.
func (s *stuck) called(method, node string, answered bool) {
	s.Helper()
	until(s.T, stuckLimit, method+" on "+node, func() error {
		calls, err := s.scene.Cluster.Fabric().Calls(s.Context(), s.began)
		if err != nil {
			return err
		}
		for _, c := range calls {
			if c.Method == method && c.Node == node && c.Volume == s.handle && (c.Code == "OK" || !answered) {
				return nil
			}
		}
		return fmt.Errorf("none among %d calls", len(calls))
	})
}

// hears waits for an event on the waiting pod that says why.
func (s *stuck) hears(parts ...string) string {
	s.Helper()
	return s.reads("Pod", s.pod("waiter"), "FailedAttachVolume", parts...)
}

// reads waits for a Warning event on an object with all parts in its text.
func (s *stuck) reads(kind, name, reason string, parts ...string) (text string) {
	s.Helper()
	began := time.Now()
	until(s.T, stuckLimit, fmt.Sprintf("an event %s on %s %s with %q", reason, kind, name, parts), func() error {
		events, err := s.events(kind, name)
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

// events are those on an object, oldest first.
func (s *stuck) events(kind, name string) ([]corev1.Event, error) {
	list, err := s.scene.Client.CoreV1().Events(scenario.Namespace).List(context.WithoutCancel(s.Context()), metav1.ListOptions{
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

// story logs all that was to be read, in its order.
func (s *stuck) story() {
	for kind, names := range map[string][]string{"Pod": {s.pod("holder"), s.pod("waiter")}, "PersistentVolumeClaim": {s.name}} {
		for _, name := range names {
			events, err := s.events(kind, name)
			if err != nil {
				s.Error(err)
			}
			for _, e := range events {
				s.Logf("%s %s %s %s (%d, %s): %s", e.FirstTimestamp.UTC().Format(time.TimeOnly), kind, name, e.Reason, max(1, e.Count), e.Source.Component, e.Message)
			}
		}
	}
}

// until looks until there is no error.
func until(t *testing.T, limit time.Duration, what string, look func() error) {
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
