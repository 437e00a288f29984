package nodeagent

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/testing/wait"
)

// reattach is a detach by force, and an attach that leads to another device.
func (w *world) reattach(handle string) {
	w.Helper()
	must(w, w.admin.StorageV1().VolumeAttachments().Delete(w.ctx, "csi-"+hash(handle+w.driverName()+w.name), metav1.DeleteOptions{}))
	must(w, w.attachAs(handle, w.name+"-data"))
}

// TestAttachmentRecreatedDuringCall: one pass publishes the volume for two pods. While the first call is in flight the
// volume is detached from the node by force and attached again. The second pod does not get the stage of the earlier
// attachment (k/k#119273).
func TestAttachmentRecreatedDuringCall(t *testing.T) {
	w := newWorld(t)
	handle := w.volume("data")
	w.driver.After = func(method, _ string, attempt int) error {
		if method == "Publish" && attempt == 1 {
			w.reattach(handle)
		}
		return nil
	}
	agent, _ := w.agent()
	first, second := w.pod("first", "data"), w.pod("second", "data")
	agent.SetPod(first)
	agent.SetPod(second)
	w.untilInUse(handle)
	wait.Until(w, "both are known", func() bool {
		agent.pods.mu.Lock()
		defer agent.pods.mu.Unlock()
		return agent.pods.known[first.UID].resolved && agent.pods.known[second.UID].resolved
	})
	w.attach(handle)
	wait.Until(w, "one is published", func() bool { return slices.Contains(w.driver.Made(), "Publish data") })
	has, waits := first, second
	if !w.publishedFor(agent, first) {
		has, waits = second, first
	}
	w.mounted(agent, has)
	w.waitSays(agent, waits, string(nodevolume.AttachmentReplaced))
	agent.RemovePod(has.UID)
	w.mounted(agent, waits)
	if diff := cmp.Diff([]string{"Stage data", "Publish data", "Unpublish data", "Unstage data", "Stage data", "Publish data"}, w.driver.Made()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func (w *world) publishedFor(agent *Agent, pod *corev1.Pod) bool {
	w.Helper()
	_, published := agent.waits.publishedWaits(pod.UID)
	return len(published) > 0
}

// TestAttachmentRecreatedBeforeCall: it happens while secrets are read for the call.
func TestAttachmentRecreatedBeforeCall(t *testing.T) {
	for _, call := range []string{"Stage", "Publish"} {
		t.Run(call, func(t *testing.T) {
			w := newWorld(t)
			_, err := w.admin.CoreV1().Secrets(w.name).Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key"}}, metav1.CreateOptions{})
			must(t, err)
			ref := &corev1.SecretReference{Namespace: w.name, Name: "key"}
			handle := w.volume("data", func(pv *corev1.PersistentVolume) {
				if call == "Stage" {
					pv.Spec.CSI.NodeStageSecretRef = ref
				} else {
					pv.Spec.CSI.NodePublishSecretRef = ref
				}
			})
			once := make(chan struct{}, 1)
			once <- struct{}{}
			w.beforeReading("/secrets/key", func() {
				select {
				case <-once:
					w.reattach(handle)
				default:
				}
			})
			agent, _ := w.agent()
			pod := w.pod("p", "data")
			w.bringUp(agent, pod, handle)
			va, err := w.admin.StorageV1().VolumeAttachments().Get(w.ctx, "csi-"+hash(handle+w.driverName()+w.name), metav1.GetOptions{})
			must(t, err)
			agent.volumes.mu.Lock()
			v := agent.volumes.all[string(w.unique(handle))]
			got := []string{v.state.Stage.Record.AttachmentUID, v.pods[0].Record.AttachmentUID}
			agent.volumes.mu.Unlock()
			if diff := cmp.Diff([]string{string(va.UID), string(va.UID)}, got); diff != "" {
				t.Errorf("attachments of stage and publish (-want +got):\n%s", diff)
			}
			want := []string{"Stage data", "Publish data"}
			if call == "Publish" {
				want = []string{"Stage data", "Unstage data", "Stage data", "Publish data"}
			}
			if diff := cmp.Diff(want, w.driver.Made()); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}

// beforeReading runs something before each read of the agent whose path ends so.
func (w *world) beforeReading(path string, do func()) {
	w.nodeID.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, path) {
				do()
			}
			return next.RoundTrip(r)
		})
	})
}
