package labtest

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/scenario"
	"belay.dev/belay/lab/timeline"
)

// FenceLimit bounds each wait for a fence. The longest is the minute after an untaint.
const FenceLimit = 3 * time.Minute

// Site is a lab with recovery, and a writer.
type Site struct {
	*testing.T

	Scene *scenario.Scene
	// API reads and writes the objects of recovery.
	API client.WithWatch
}

// NeedsFencing skips a test where no machine can be fenced.
func NeedsFencing(t *testing.T) {
	t.Helper()
	Needs(t)
	if !cluster.CanFence() {
		t.Skip("NOT RUN: ipmi_sim, ipmitool or fence_ipmilan is missing: run hack/install-packages")
	}
}

// OpenSite starts a lab with recovery, in the profile fast if the options name none, in which every node could be fenced and the writer runs.
func OpenSite(t *testing.T, o cluster.Options) *Site {
	t.Helper()
	if o.NodeKind == cluster.NodeKindKubelet {
		if kind, because := cluster.DefaultNodeKind(); kind != cluster.NodeKindKubelet {
			t.Skip("NOT RUN: " + because)
		}
	}
	o.Drivers, o.Recovery = []string{labdisk.DriverDisk}, cmp.Or(o.Recovery, fencing.Fast.Name)
	s := &Site{T: t, Scene: Open(t, o)}
	scheme := runtime.NewScheme()
	if err := fencingv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	config := s.Scene.Cluster.RESTConfig()
	config.ContentType, config.AcceptContentTypes = "", "" // these types have no protobuf
	var err error
	if s.API, err = client.NewWithWatch(config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Scene.Place(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range s.Scene.Cluster.Options().Nodes {
		s.Bound(fmt.Sprintf("node-%d", i+1))
	}
	return s
}

// Of is the same site for a subtest.
func (s *Site) Of(t *testing.T) *Site {
	t.Helper()
	return &Site{T: t, Scene: s.Scene, API: s.API}
}

// Bound waits until the node's BMC has said On for the boot that the Node shows.
func (s *Site) Bound(node string) {
	s.Helper()
	Until(s.T, FenceLimit, "the FenceSource of "+node+" to be ready", func() error {
		source := &fencingv1.FenceSource{}
		if err := s.API.Get(s.Context(), client.ObjectKey{Name: node}, source); err != nil {
			return err
		}
		shown := s.Node(node)
		if !meta.IsStatusConditionTrue(source.Status.Conditions, "FenceReady") || source.Status.Bound == nil ||
			source.Status.Bound.BootID != shown.Status.NodeInfo.BootID || source.Status.Bound.NodeUID != string(shown.UID) {
			return fmt.Errorf("it is %+v, for the boot %s", source.Status, shown.Status.NodeInfo.BootID)
		}
		return nil
	})
}

// Node is the Node of a name.
func (s *Site) Node(name string) *corev1.Node {
	s.Helper()
	node, err := s.Scene.Client.CoreV1().Nodes().Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return node
}

// Tainted lists the taints of a node that belay set.
func (s *Site) Tainted(name string) (taints []string) {
	s.Helper()
	for _, taint := range s.Node(name).Spec.Taints {
		if taint.Key == corev1.TaintNodeOutOfService || taint.Key == "fencing.belay.dev/isolated" {
			taints = append(taints, taint.Key)
		}
	}
	return taints
}

// Fence is the NodeFence of a node, nil if there is none.
func (s *Site) Fence(node string) *fencingv1.NodeFence {
	s.Helper()
	f := &fencingv1.NodeFence{}
	err := s.API.Get(s.Context(), client.ObjectKey{Name: node}, f)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.Fatal(err)
	}
	return f
}

// Reaches waits until the fence of a node is at least as far as a phase.
func (s *Site) Reaches(node string, p fencing.Phase) *fencingv1.NodeFence {
	s.Helper()
	var f *fencingv1.NodeFence
	Until(s.T, FenceLimit, "the fence of "+node+" to reach "+string(p), func() error {
		f = s.Fence(node)
		switch {
		case f == nil:
			return fmt.Errorf("%s has no NodeFence", node)
		case slices.Index(fencing.Phases(), fencing.Phase(f.Status.Phase)) < slices.Index(fencing.Phases(), p):
			return fmt.Errorf("it is %s and waits for %q", f.Status.Phase, f.Status.Missing)
		}
		return nil
	})
	return f
}

// WriterNode is where the writer's pod is.
func (s *Site) WriterNode() string {
	s.Helper()
	node, err := s.Scene.WriterNode()
	if err != nil {
		s.Fatal(err)
	}
	return node
}

// WriterPod is the writer's pod.
func (s *Site) WriterPod() *corev1.Pod {
	s.Helper()
	pod, err := s.Scene.Client.CoreV1().Pods(scenario.Namespace).Get(s.Context(), scenario.WriterPod, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return pod
}

// Writes are those to the writer's volume, in the order of the first one.
func (s *Site) Writes() []labdisk.Writes {
	s.Helper()
	volume, err := s.Scene.Record.Volume(scenario.ClaimKey)
	if err != nil {
		s.Fatal(err)
	}
	all, err := s.Scene.Cluster.Fabric().Writes(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return slices.DeleteFunc(all, func(w labdisk.Writes) bool { return w.Volume != volume.Handle })
}

// LastWrites are those of the latest attachment of a node.
func (s *Site) LastWrites(node string) (last labdisk.Writes) {
	s.Helper()
	for _, w := range s.Writes() {
		if w.Node == node {
			last = w
		}
	}
	return last
}

// Attachment is the VolumeAttachment of the writer's volume on a node, empty if there is none.
func (s *Site) Attachment(node string) (uid string) {
	s.Helper()
	list, err := s.Scene.Client.StorageV1().VolumeAttachments().List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	for i := range list.Items {
		if va := &list.Items[i]; va.Spec.NodeName == node && va.DeletionTimestamp == nil {
			uid = string(va.UID)
		}
	}
	return uid
}

// Deleted is when the VolumeAttachment of a node was deleted, as it was watched, for the first time since a time.
func (s *Site) Deleted(node string, since time.Time) time.Time {
	s.Helper()
	for _, c := range s.Scene.Record.Changes() {
		if c.Kind == timeline.AttachmentDeleted && c.Node == node && c.At.After(since) {
			return c.At
		}
	}
	s.Fatalf("no VolumeAttachment of %s was deleted", node)
	return time.Time{}
}

// SwitchedOff is when the BMC of a node carried out the command to switch it off, since a time, as it logged itself; zero if it did not.
func (s *Site) SwitchedOff(node string, since time.Time) (at time.Time) {
	s.Helper()
	log, err := s.Scene.Cluster.BMCLog(node)
	if err != nil {
		s.Fatal(err)
	}
	for _, r := range log {
		if r.Request == cluster.BMCOff && r.Error == "" && r.Began.After(since) && at.IsZero() {
			at = r.Ended
		}
	}
	return at
}

// Moved waits until the writer writes on another node, and checks that nothing of the old one came after its first write there, and that no
// acknowledged record is lost.
func (s *Site) Moved(from string, within time.Duration) (to string) {
	s.Helper()
	began := time.Now()
	Until(s.T, within, "the writer to write elsewhere", func() error {
		for _, w := range s.Writes() {
			if w.First.After(s.LastWrites(from).First) && w.Node != from && w.Count > 0 {
				to = w.Node
			}
		}
		if to == "" {
			return fmt.Errorf("they are %+v", s.Writes())
		}
		return nil
	})
	s.Logf("writing on %s %.1f s later", to, time.Since(began).Seconds())
	before, after := s.LastWrites(from), s.LastWrites(to)
	if before.Last.After(after.First) {
		s.Errorf("%s wrote until %v, and %s from %v", from, before.Last, to, after.First)
	}
	return to
}

// Intact checks that all acknowledged records are there, and that the storage refused no write but those of the nodes named.
func (s *Site) Intact(but ...string) {
	s.Helper()
	pod := UntilPod(s.T, s.Scene, scenario.WriterPod, "runs", func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodRunning })
	acknowledged := s.Scene.Acknowledged()
	Until(s.T, FenceLimit, "the writer on "+pod.Spec.NodeName+" to acknowledge", func() error {
		if now := s.Scene.Acknowledged(); now <= acknowledged {
			return fmt.Errorf("the last one was %d", now)
		}
		return nil
	})
	verified, err := s.Scene.Verify(s.Context())
	if err != nil || verified.Count < verified.Acknowledged {
		s.Errorf("%+v (%v)", verified, err)
	}
	violations, err := s.Scene.Violations(s.Context())
	if err != nil {
		s.Error(err)
	}
	for _, v := range violations {
		if !v.Refused || !slices.Contains(but, v.Node) {
			s.Errorf("a write that is forbidden: %+v", v)
		}
	}
}

// Released waits until a node that was fenced, or not, takes pods again and could be fenced again.
func (s *Site) Released(node string) {
	s.Helper()
	Until(s.T, FenceLimit, node+" to be released", func() error {
		if taints := s.Tainted(node); len(taints) > 0 {
			return fmt.Errorf("it has the taints %v", taints)
		}
		if f := s.Fence(node); f != nil && len(f.Finalizers) > 0 {
			return fmt.Errorf("its fence is %s and waits for %q", f.Status.Phase, f.Status.Missing)
		}
		return nil
	})
	s.Bound(node)
}

// Must fails the test on an error.
func (s *Site) Must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// Wrote is an error unless a node wrote more than so often.
func (s *Site) Wrote(node string, more int64) error {
	if count := s.LastWrites(node).Count; count <= more {
		return fmt.Errorf("%s wrote %d times", node, count)
	}
	return nil
}

// IsReady is an error unless a node is Ready.
func (s *Site) IsReady(name string) error {
	for _, c := range s.Node(name).Status.Conditions {
		if c.Type == "Ready" && c.Status == "True" {
			return nil
		}
	}
	return fmt.Errorf("%s is not Ready", name)
}

// Heard is an error unless there is an event of a reason since a time.
func (s *Site) Heard(reason string, since time.Time) error {
	list, err := s.Scene.Client.EventsV1().Events(metav1.NamespaceAll).List(s.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if e := &list.Items[i]; e.Reason == reason && !e.EventTime.Time.Before(since.Add(-time.Second)) {
			return nil
		}
	}
	return fmt.Errorf("there is none among %d events", len(list.Items))
}
