package nodeagent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/testing/csidriver"
)

// TestSecretInDriverErrorIsRedacted: the driver's errors contain the request's secrets. No event, log line, error or
// record does.
func TestSecretInDriverErrorIsRedacted(t *testing.T) {
	for _, step := range []string{"Stage", "Publish"} {
		t.Run(step, func(t *testing.T) {
			w := newWorld(t, noAttach)
			_, err := w.admin.CoreV1().Secrets(w.name).Create(w.ctx, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: "key"}, StringData: map[string]string{"password": "hunter2-and-more"},
			}, metav1.CreateOptions{})
			must(t, err)
			w.volume("data", func(pv *corev1.PersistentVolume) {
				key := &corev1.SecretReference{Namespace: w.name, Name: "key"}
				pv.Spec.CSI.NodeStageSecretRef, pv.Spec.CSI.NodePublishSecretRef = key, key
			})
			w.driver.Before = func(method, _ string, _ int) error {
				if method != step {
					return nil
				}
				request := csidriver.LastRequest[interface {
					GetSecrets() map[string]string
				}](w.driver)
				return status.Error(codes.Internal, fmt.Sprintf("login refused: %v", request.GetSecrets()))
			}
			log := &lines{}
			agent, _ := w.agent(func(c *Config) { c.Logger = log.logger() })
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			w.untilEvent(pod, "FailedMount", "login refused: map[password:[REDACTED]]")
			said := []string{w.waitFails(agent, pod).Error()}
			said = append(said, log.with("")...)
			events, err := w.admin.CoreV1().Events(w.name).List(w.ctx, metav1.ListOptions{})
			must(t, err)
			for _, e := range events.Items {
				said = append(said, e.Message)
			}
			records, err := filepath.Glob(filepath.Join(w.root, recordsDir, "*"))
			must(t, err)
			for _, name := range records {
				raw, err := os.ReadFile(name)
				must(t, err)
				said = append(said, string(raw))
			}
			for _, text := range said {
				if strings.Contains(text, "hunter2") {
					t.Errorf("the secret is in: %s", text)
				}
			}
			if got := csidriver.LastRequest[*csispec.NodeStageVolumeRequest](w.driver).Secrets["password"]; got != "hunter2-and-more" {
				t.Errorf("the driver was sent %q", got)
			}
		})
	}
}
