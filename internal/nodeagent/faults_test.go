package nodeagent

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/wait"
)

// lossy loses replies of Node PATCHes, sends some a second time later, and refuses some.
type lossy struct {
	next http.RoundTripper

	mu  sync.Mutex
	rng *rand.Rand
	off bool
}

var errLost = errors.New("the reply is lost")

func (l *lossy) roll() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.off {
		return 100
	}
	return l.rng.IntN(8)
}

func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPatch || !strings.HasSuffix(r.URL.Path, "/status") {
		return l.next.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	again := func() *http.Request {
		fresh := r.Clone(r.Context())
		fresh.Body = io.NopCloser(strings.NewReader(string(body)))
		return fresh
	}
	switch l.roll() {
	case 0: // never sent
		return nil, errLost
	case 1: // landed, reply lost
		if reply, err := l.next.RoundTrip(again()); err == nil {
			_ = reply.Body.Close()
		}
		return nil, errLost
	case 2: // is committed later, when no caller waits for it any more
		late := again().WithContext(context.Background())
		time.AfterFunc(time.Duration(l.roll())*time.Millisecond, func() {
			if reply, err := l.next.RoundTrip(late); err == nil {
				_ = reply.Body.Close()
			}
		})
		return nil, errLost
	default:
		return l.next.RoundTrip(again())
	}
}

func TestLostRepliesNeverTakeAStagedVolumeOutOfUse(t *testing.T) {
	seed := envNumber(t, "BELAY_FAULT_SEED", uint64(time.Now().UnixNano()))
	t.Logf("replay with BELAY_FAULT_SEED=%d", seed)
	w := newWorld(t)
	handle := w.volume("data")
	wire := &lossy{rng: rand.New(rand.NewPCG(seed, 3))}
	w.nodeID.Wrap(func(next http.RoundTripper) http.RoundTripper { wire.next = next; return wire })
	check := func(when, _ string, _ int) error {
		node, err := w.admin.CoreV1().Nodes().Get(w.ctx, w.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !slices.Contains(node.Status.VolumesInUse, w.unique(handle)) {
			t.Errorf("S7: %s and in use are %v", when, node.Status.VolumesInUse)
		}
		return nil
	}
	w.driver.Before = check
	agent, _ := w.agent()
	w.attach(handle) // and never detached: the report stays, so a stage follows at once on being in use
	for range 40 {
		pod := w.podWith("p", func(p *corev1.Pod) { p.Name, p.GenerateName = "", "p-" }, "data")
		agent.SetPod(pod)
		w.mounted(agent, pod)
		if node := w.node(); !slices.Contains(node.Status.VolumesInUse, w.unique(handle)) {
			t.Fatalf("S7: mounted, and in use are %v", node.Status.VolumesInUse)
		}
		agent.RemovePod(pod.UID)
		w.unmounted(agent, pod)
	}
	wire.mu.Lock()
	wire.off = true
	wire.mu.Unlock()
	w.untilNotInUse(handle)
}

// TestRecreatedNode: what the cluster knew of the Node is restored, also if it was created from the manifest of the
// earlier one, with its annotations and labels. The CSINode belongs to the new Node.
func TestRecreatedNode(t *testing.T) {
	for name, fromManifest := range map[string]bool{"bare": false, "from its manifest": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			l := w.live()
			w.driver.Registered()
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.name}}
			if earlier := w.node(); fromManifest {
				node.Annotations, node.Labels = earlier.Annotations, earlier.Labels
			}
			must(t, w.admin.CoreV1().Nodes().Delete(w.ctx, w.name, metav1.DeleteOptions{}))
			node, err := w.admin.CoreV1().Nodes().Create(w.ctx, node, metav1.CreateOptions{})
			must(t, err)
			w.untilInUse(l.handle)
			w.untilNode("the driver's ID is back", func(n *corev1.Node) bool {
				return n.Annotations[kube.CSINodeIDsAnnotation] != "" && n.Labels["topology.test.belay.dev/rack"] == "r1"
			})
			wait.Until(w, "the CSINode belongs to the new Node", func() bool {
				got, err := w.admin.StorageV1().CSINodes().Get(w.ctx, w.name, metav1.GetOptions{})
				return err == nil && len(got.OwnerReferences) == 1 && got.OwnerReferences[0].UID == node.UID
			})
			w.wantCSINode(node)
		})
	}
}

// TestShippedRoleSuffices runs the daemon through a volume's lifecycle under the ClusterRole that deploy ships.
func TestShippedRoleSuffices(t *testing.T) {
	w := newWorld(t, modes(persistent, ephemeral), asksForTokens(storagev1.TokenRequest{Audience: "vault"}))
	w.grant(w.robot())
	var mu sync.Mutex
	forbidden := map[string]bool{} // whether the last request of its kind was
	w.nodeID.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			reply, err := next.RoundTrip(r)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				forbidden[r.Method+" "+r.URL.Path] = reply.StatusCode == http.StatusForbidden
			}
			return reply, err
		})
	})
	_, err := w.admin.CoreV1().Secrets(w.name).Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key"}}, metav1.CreateOptions{})
	must(t, err)
	handle := w.volume("data", func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: w.name, Name: "key"}
	})
	agent, _ := w.agent()
	go agent.FollowPods(w.ctx)
	pod := w.podOfRobotWith("p", w.addInline(func(source *corev1.CSIVolumeSource) {
		source.NodePublishSecretRef = &corev1.LocalObjectReference{Name: "key"}
	}, "scratch"), "data")
	w.untilInUse(handle)
	must(t, w.report(handle, true)) // before there is an attachment: leads to an event
	w.untilEvent(pod, "FailedMount", "WaitForAttach")
	w.attach(handle)
	wait.Until(w, "the pod is published", func() bool { return slices.Contains(w.driver.Made(), "Publish data") })
	wait.Until(w, "its inline volume too", func() bool { return slices.Contains(w.driver.Made(), "Publish "+inlineID(pod, "scratch")) })
	must(t, w.admin.CoreV1().Pods(w.name).Delete(w.ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	w.untilNotInUse(handle)
	mu.Lock()
	defer mu.Unlock()
	// Until the API server's own watch has seen the role, it forbids everything.
	for request, was := range forbidden {
		if was {
			t.Errorf("forbidden: %s", request)
		}
	}
	w.untilNothingIsLeft()
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
