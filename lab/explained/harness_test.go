package explained

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/testing/golden"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/nodes"
	"belay.dev/belay/lab/scenario"
)

var update = flag.Bool("update", false, "rewrite the stored texts and snapshots: read each before you commit it")

// TestMain lets all situations wait at the same time: they take minutes and do little.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "64"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// stuck is a situation on one of the planes.
type stuck struct {
	*labtest.Stuck
	plane string
}

const (
	// explainWithin bounds the wait for an explanation. The longest is that for an attacher which is silent: two minutes.
	explainWithin = 3 * time.Minute
	lookAgain     = 4 * time.Second
	// stableFor is how many looks in a row have to find the same text before it is stored: events come late. fleeting is that for a
	// text that lasts a few seconds.
	stableFor, fleeting = 8, 2
)

// Objects that are asked about.
func (s *stuck) waiter() diagnosis.Ref { return s.podRef("waiter") }

func (s *stuck) podRef(role string) diagnosis.Ref {
	return diagnosis.Ref{Resource: diagnosis.Pods, Namespace: scenario.Namespace, Name: s.Pod(role)}
}

// explains waits until the explanation of the subject gives the reason, and is the stored text of the name.
func (s *stuck) explains(name string, subject diagnosis.Ref, verdict, reason string) {
	s.Helper()
	s.explainsFor(stableFor, name, subject, verdict, reason)
}

// orTried ends the name of the text for the other order of two attaches that upstream's controller retries: it has one operation for a volume at a
// time (k/k v1.36.3 pkg/volume/util/operationexecutor: keyed by the volume alone if it forbids a second node), and whichever comes first after the
// back-off is tried.
const orTried = "-or-tried"

func (s *stuck) explainsFor(stable int, name string, subject diagnosis.Ref, verdict, reason string) {
	s.Helper()
	began := time.Now()
	text := filepath.Join("testdata", s.plane, name+".txt")
	stored, err := os.ReadFile(text)
	if err != nil && !*update {
		s.Fatal(err)
	}
	other, _ := os.ReadFile(filepath.Join("testdata", s.plane, name+orTried+".txt"))
	dump := filepath.Join(s.TempDir(), "snapshot.json")
	var last string
	same, met, seen := 0, time.Time{}, ""
	labtest.Until(s.T, explainWithin, "the explanation of "+name, func() error {
		time.Sleep(lookAgain)
		out := s.ask(subject, dump)
		if heading := golden.Normalize(headingOf(out)); heading != seen {
			seen = heading
			s.Logf("%s: %.0f s: %s", name, time.Since(began).Seconds(), heading)
		}
		if !strings.HasPrefix(out, verdict) || !strings.Contains(out, "("+reason+")") {
			last, same = out, 0
			return fmt.Errorf("want %s (%s):\n%s", verdict, reason, out)
		}
		if met.IsZero() {
			met = time.Now()
		}
		now := golden.Normalize(out)
		if now != last {
			last, same = now, 0
		}
		same++
		switch {
		case *update && same >= stable, !*update && now == string(stored), !*update && now == string(other):
			return nil
		case *update:
			return errors.New("it changes:\n" + now)
		}
		return errors.New("the text differs (-stored +printed):\n" + cmp.Diff(string(stored), now))
	})
	s.Logf("%s: %.0f s, %.0f s after it was first so:\n%s", name, time.Since(began).Seconds(), time.Since(met).Seconds(), last)
	if *update {
		s.store(name, text, last, subject, dump)
	}
}

// headingOf is the verdict and the reason of an output.
func headingOf(out string) string {
	lines := strings.SplitN(out, "\n", 3)
	if len(lines) < 2 {
		return out
	}
	verdict, _, _ := strings.Cut(lines[0], ": ")
	return verdict + " " + lines[1][strings.LastIndex(lines[1], "(")+1:]
}

// ask runs the command as a user does.
func (s *stuck) ask(subject diagnosis.Ref, dump string) string {
	s.Helper()
	command := exec.CommandContext(s.Context(), filepath.Join(os.Getenv("BELAY_BIN"), "kubectl-belay"), "explain", string(subject.Resource), subject.Name,
		"-n", scenario.Namespace, "-o", "wide", "--dump-snapshot", dump)
	command.Env = append(os.Environ(), "KUBECONFIG="+s.Scene.Cluster.Kubeconfig())
	var out, errOut bytes.Buffer
	command.Stdout, command.Stderr = &out, &errOut
	err := command.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		s.Fatal(err)
	}
	return out.String() + errOut.String()
}

func (s *stuck) store(name, text, now string, subject diagnosis.Ref, dump string) {
	s.Helper()
	snapshot, err := golden.ReadSnapshot(dump)
	if err != nil {
		s.Fatal(err)
	}
	file := filepath.Join("../../internal/diagnosis/testdata", s.plane, name+".json")
	for _, path := range []string{text, file} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			s.Fatal(err)
		}
	}
	if err := os.WriteFile(text, []byte(now), 0o644); err != nil {
		s.Fatal(err)
	}
	if err := golden.Write(file, s.Name, golden.Stored{Subject: subject, Snapshot: snapshot}); err != nil {
		s.Fatal(err)
	}
}

// claimAs makes a claim of the situation, named with the suffix, and does not wait for its volume.
func (s *stuck) claimAs(suffix string, change func(*corev1.PersistentVolumeClaimSpec)) string {
	s.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name + suffix, Namespace: scenario.Namespace},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new(scenario.StorageClass),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}},
		},
	}
	if change != nil {
		change(&claim.Spec)
	}
	if _, err := s.Scene.Client.CoreV1().PersistentVolumeClaims(scenario.Namespace).Create(s.Context(), claim, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	return claim.Name
}

// podAs makes a pod of the situation with a claim.
func (s *stuck) podAs(role, claim string, change func(*corev1.PodSpec)) {
	s.Helper()
	pod := s.podWith(s.Pod(role), claim)
	change(&pod.Spec)
	if _, err := s.Scene.Client.CoreV1().Pods(scenario.Namespace).Create(s.Context(), pod, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
}

func (s *stuck) podWith(name, claim string) *corev1.Pod {
	return labtest.Writer(name, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}})
}

// onto lets the scheduler choose one node only.
func onto(node string) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
				Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
			}}}},
		}}}
	}
}

// ends deletes the holder and waits until it is gone.
func (s *stuck) ends() {
	s.Helper()
	s.Remove("holder")
	labtest.UntilPod(s.T, s.Scene, s.Pod("holder"), "is gone", func(pod *corev1.Pod) bool { return pod == nil })
}

// runs waits until a pod of the situation runs.
func (s *stuck) runs(role string) {
	s.Helper()
	labtest.UntilPod(s.T, s.Scene, s.Pod(role), "runs", func(pod *corev1.Pod) bool { return pod != nil && pod.Status.Phase == corev1.PodRunning })
}

// patch changes an object without a namespace.
func (s *stuck) patch(what string, do func(ctx context.Context, data []byte) error, format string, args ...any) {
	s.Helper()
	labtest.Until(s.T, time.Minute, what, func() error { return do(s.Context(), fmt.Appendf(nil, format, args...)) })
}

// patchNode changes a node.
func (s *stuck) patchNode(name, format string, args ...any) {
	s.Helper()
	s.patch("the change of node "+name, func(ctx context.Context, data []byte) error {
		_, err := s.Scene.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{})
		return err
	}, format, args...)
}

// hang stops the node's agent, and renews the node's lease in its place: the node stays Ready and does nothing.
func (s *stuck) hang(node string) {
	s.Helper()
	s.freeze(node, nodes.ChildAgent)
	renew(s.T, s.Scene, corev1.NamespaceNodeLease, node)
}

// freeze stops a program of a node until the end of the situation: a frozen one keeps the lab from ending in order.
func (s *stuck) freeze(node, child string) {
	s.Helper()
	if err := s.Scene.Cluster.Node(node).FreezeChild(child); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := s.Scene.Cluster.Node(node).ThawChild(child); err != nil {
			s.Error(err)
		}
	})
}

// renew renews a lease until the end of the test.
func renew(t *testing.T, scene *scenario.Scene, namespace, name string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { stop(); <-done })
	leases := scene.Client.CoordinationV1().Leases(namespace)
	go func() {
		defer close(done)
		for {
			renewed := fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
			if _, err := leases.Patch(ctx, name, types.MergePatchType, renewed, metav1.PatchOptions{}); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(5 * time.Second):
			}
		}
	}()
}

// leads makes the lease that kube-controller-manager has in a cluster: the lab's runs alone, without one.
func leads(t *testing.T, scene *scenario.Scene) {
	t.Helper()
	const name = "kube-controller-manager"
	_, err := scene.Client.CoordinationV1().Leases(metav1.NamespaceSystem).Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("control-plane_1"), LeaseDurationSeconds: new(int32(15))},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	renew(t, scene, metav1.NamespaceSystem, name)
}
