package e2e

import (
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
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
	"belay.dev/belay/lab/timeline"
)

// fenceLimit bounds each wait for a fence. The longest is the minute after an untaint.
const fenceLimit = 3 * time.Minute

// site is a lab with recovery, and a writer.
type site struct {
	*testing.T
	scene *scenario.Scene
	api   client.Client
}

// needsFencing skips a test where no machine can be fenced.
func needsFencing(t *testing.T) {
	t.Helper()
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: recovery from faults that take minutes belongs to the long tests")
	}
	if !cluster.CanFence() {
		t.Skip("NOT RUN: ipmi_sim, ipmitool or fence_ipmilan is missing: run hack/install-packages")
	}
}

// openSite starts a lab with recovery's profile fast, in which every node could be fenced, and the writer runs.
func openSite(t *testing.T, o cluster.Options) *site {
	t.Helper()
	if o.NodeKind == cluster.NodeKindKubelet {
		if kind, because := cluster.DefaultNodeKind(); kind != cluster.NodeKindKubelet {
			t.Skip("NOT RUN: " + because)
		}
	}
	o.Drivers, o.Recovery = []string{labdisk.DriverDisk}, fencing.Fast.Name
	s := &site{T: t, scene: labtest.Open(t, o)}
	scheme := runtime.NewScheme()
	if err := fencingv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	config := s.scene.Cluster.RESTConfig()
	config.ContentType, config.AcceptContentTypes = "", "" // these types have no protobuf
	var err error
	if s.api, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.scene.Place(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range s.scene.Cluster.Options().Nodes {
		s.bound(fmt.Sprintf("node-%d", i+1))
	}
	return s
}

// of is the same site for a subtest.
func (s *site) of(t *testing.T) *site {
	t.Helper()
	return &site{T: t, scene: s.scene, api: s.api}
}

// bound waits until the node's BMC has said On for the boot that the Node shows.
func (s *site) bound(node string) {
	s.Helper()
	labtest.Until(s.T, fenceLimit, "the FenceSource of "+node+" to be ready", func() error {
		source := &fencingv1.FenceSource{}
		if err := s.api.Get(s.Context(), client.ObjectKey{Name: node}, source); err != nil {
			return err
		}
		shown := s.node(node)
		if !meta.IsStatusConditionTrue(source.Status.Conditions, "FenceReady") || source.Status.Bound == nil ||
			source.Status.Bound.BootID != shown.Status.NodeInfo.BootID || source.Status.Bound.NodeUID != string(shown.UID) {
			return fmt.Errorf("it is %+v, for the boot %s", source.Status, shown.Status.NodeInfo.BootID)
		}
		return nil
	})
}

func (s *site) node(name string) *corev1.Node {
	s.Helper()
	node, err := s.scene.Client.CoreV1().Nodes().Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return node
}

// tainted lists the taints of a node that belay set.
func (s *site) tainted(name string) (taints []string) {
	s.Helper()
	for _, taint := range s.node(name).Spec.Taints {
		if taint.Key == corev1.TaintNodeOutOfService || taint.Key == "fencing.belay.dev/isolated" {
			taints = append(taints, taint.Key)
		}
	}
	return taints
}

// fence is the NodeFence of a node, nil if there is none.
func (s *site) fence(node string) *fencingv1.NodeFence {
	s.Helper()
	f := &fencingv1.NodeFence{}
	err := s.api.Get(s.Context(), client.ObjectKey{Name: node}, f)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.Fatal(err)
	}
	return f
}

// phases in which a fence is at least as far as another.
func (s *site) reaches(node string, p fencing.Phase) *fencingv1.NodeFence {
	s.Helper()
	var f *fencingv1.NodeFence
	labtest.Until(s.T, fenceLimit, "the fence of "+node+" to reach "+string(p), func() error {
		f = s.fence(node)
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

// writerNode is where the writer's pod is.
func (s *site) writerNode() string {
	s.Helper()
	node, err := s.scene.WriterNode()
	if err != nil {
		s.Fatal(err)
	}
	return node
}

func (s *site) writerPod() *corev1.Pod {
	s.Helper()
	pod, err := s.scene.Client.CoreV1().Pods(scenario.Namespace).Get(s.Context(), scenario.WriterPod, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return pod
}

// writes are those to the writer's volume, in the order of the first one.
func (s *site) writes() []labdisk.Writes {
	s.Helper()
	volume, err := s.scene.Record.Volume(scenario.ClaimKey)
	if err != nil {
		s.Fatal(err)
	}
	all, err := s.scene.Cluster.Fabric().Writes(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return slices.DeleteFunc(all, func(w labdisk.Writes) bool { return w.Volume != volume.Handle })
}

// lastWrites are those of the latest attachment of a node.
func (s *site) lastWrites(node string) (last labdisk.Writes) {
	s.Helper()
	for _, w := range s.writes() {
		if w.Node == node {
			last = w
		}
	}
	return last
}

// attachment is the VolumeAttachment of the writer's volume on a node, empty if there is none.
func (s *site) attachment(node string) (uid string) {
	s.Helper()
	list, err := s.scene.Client.StorageV1().VolumeAttachments().List(s.Context(), metav1.ListOptions{})
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

// deleted is when the VolumeAttachment of a node was deleted, as it was watched, for the first time since a time.
func (s *site) deleted(node string, since time.Time) time.Time {
	s.Helper()
	for _, c := range s.scene.Record.Changes() {
		if c.Kind == timeline.AttachmentDeleted && c.Node == node && c.At.After(since) {
			return c.At
		}
	}
	s.Fatalf("no VolumeAttachment of %s was deleted", node)
	return time.Time{}
}

// switchedOff is when the BMC of a node carried out the command to switch it off, since a time, as it logged itself; zero if it did not.
func (s *site) switchedOff(node string, since time.Time) (at time.Time) {
	s.Helper()
	log, err := s.scene.Cluster.BMCLog(node)
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

// moved waits until the writer writes on another node, and checks that nothing of the old one came after its first write there, and that no
// acknowledged record is lost.
func (s *site) moved(from string, within time.Duration) (to string) {
	s.Helper()
	began := time.Now()
	labtest.Until(s.T, within, "the writer to write elsewhere", func() error {
		for _, w := range s.writes() {
			if w.First.After(s.lastWrites(from).First) && w.Node != from && w.Count > 0 {
				to = w.Node
			}
		}
		if to == "" {
			return fmt.Errorf("they are %+v", s.writes())
		}
		return nil
	})
	s.Logf("writing on %s %.1f s later", to, time.Since(began).Seconds())
	before, after := s.lastWrites(from), s.lastWrites(to)
	if before.Last.After(after.First) {
		s.Errorf("%s wrote until %v, and %s from %v", from, before.Last, to, after.First)
	}
	return to
}

// intact checks that all acknowledged records are there, and that the storage refused no write but those of the nodes named.
func (s *site) intact(but ...string) {
	s.Helper()
	pod := labtest.UntilPod(s.T, s.scene, scenario.WriterPod, "runs", func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodRunning })
	acknowledged := s.scene.Acknowledged()
	labtest.Until(s.T, fenceLimit, "the writer on "+pod.Spec.NodeName+" to acknowledge", func() error {
		if now := s.scene.Acknowledged(); now <= acknowledged {
			return fmt.Errorf("the last one was %d", now)
		}
		return nil
	})
	verified, err := s.scene.Verify(s.Context())
	if err != nil || verified.Count < verified.Acknowledged {
		s.Errorf("%+v (%v)", verified, err)
	}
	violations, err := s.scene.Violations(s.Context())
	if err != nil {
		s.Error(err)
	}
	for _, v := range violations {
		if !v.Refused || !slices.Contains(but, v.Node) {
			s.Errorf("a write that is forbidden: %+v", v)
		}
	}
}

// released waits until a node that was fenced, or not, takes pods again and could be fenced again.
func (s *site) released(node string) {
	s.Helper()
	labtest.Until(s.T, fenceLimit, node+" to be released", func() error {
		if taints := s.tainted(node); len(taints) > 0 {
			return fmt.Errorf("it has the taints %v", taints)
		}
		if f := s.fence(node); f != nil && len(f.Finalizers) > 0 {
			return fmt.Errorf("its fence is %s and waits for %q", f.Status.Phase, f.Status.Missing)
		}
		return nil
	})
	s.bound(node)
}

// must fails the test on an error.
func (s *site) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}
