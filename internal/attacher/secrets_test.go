package attacher

import (
	"context"
	"encoding/json"
	"net/http"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/process"
)

// The program at its most talkative says no secret, not even one that the driver puts
// into its error, and nothing that it stores holds one.
func TestSecretsAreNeitherLoggedNorStored(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			w := newWorld(t)
			w.node("node1")
			const secret, later = "xK4vQ9zR2mT7wB5nJ8cL", "pD6hY3gF8sA1uE0iO7qZkM"
			w.secret("s1", map[string][]byte{"password": []byte(secret)})
			w.volume("pv1", withSecret(w, "s1"))
			var seen atomic.Bool // the error of the detach
			w.driver.SetAnswer(func(_ context.Context, c call, _ int) (map[string]string, error) {
				if c.Secrets["password"] == later && (c.Method == "Publish" || seen.Load()) {
					return nil, nil
				}
				return nil, status.Errorf(codes.Unauthenticated, "login with %q refused, all of %v", c.Secrets["password"], c.Secrets)
			})
			p := process.Start(t, exec.Command(programPath(t), "--kubeconfig", shippedKubeconfig(t), "--csi-address", w.driver.Address,
				"-v=10", "--logging-format", format, "--retry-interval-start=500ms", "--retry-interval-max=500ms"))

			va := w.attachment("pv1", "node1")
			failed := w.until(va, "refused", hasAttachError("login with"))
			want := `rpc error: code = Unauthenticated desc = login with "[REDACTED]" refused, all of map[password:[REDACTED]]`
			if got := failed.Status.AttachError.Message; got != want {
				t.Errorf("attachError is %q, want %q", got, want)
			}
			w.changeSecret("s1", later) // it is read again for the next call
			w.until(va, "attached", isAttached)
			w.delete(va)
			w.untilWas(va, "not detached", hasDetachError("login with"))
			seen.Store(true)
			w.until(va, "gone", isGone)
			p.Stop(syscall.SIGTERM)
			w.holdsNone(p.Output(), "the log", secret, later)
			w.holdsNone(w.stored(), "the API", secret, later)
			if log := p.Output(); !strings.Contains(log, "***stripped***") || !strings.Contains(log, "Response Body") {
				t.Error("the log is not as talkative as this test wants it: no request to the driver, or no answer of the API server is in it")
			}
		})
	}
}

// holdsNone looks for secrets in any of the ways in which logs write bytes.
func (w *world) holdsNone(text, what string, secrets ...string) {
	w.t.Helper()
	for _, secret := range secrets {
		// Bodies in protobuf are dumped with 16 bytes a line: a part is enough.
		for i := range len(secret) - 7 {
			if at := strings.Index(text, secret[i:i+8]); at >= 0 {
				w.t.Errorf("%s holds the secret: %s", what, text[max(0, at-200):min(len(text), at+100)])
				break
			}
		}
	}
}

// stored is everything that the API has about the test's objects, but for its secrets.
func (w *world) stored() string {
	w.t.Helper()
	ctx, all := w.t.Context(), metav1.ListOptions{}
	attachments, errA := w.client.StorageV1().VolumeAttachments().List(ctx, all)
	volumes, errV := w.client.CoreV1().PersistentVolumes().List(ctx, all)
	events, errE := w.client.CoreV1().Events("").List(ctx, all)
	leases, errL := w.client.CoordinationV1().Leases("").List(ctx, all)
	for _, err := range []error{errA, errV, errE, errL} {
		must(w.t, err)
	}
	text, err := json.Marshal([]any{attachments, volumes, events, leases})
	must(w.t, err)
	return string(text)
}

func (w *world) changeSecret(name, password string) {
	w.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: w.name(name), Namespace: "default"}, Data: map[string][]byte{"password": []byte(password)}}
	if _, err := w.client.CoreV1().Secrets("default").Update(w.t.Context(), s, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// secretReads counts the requests for Secrets, and answers each after a while.
type secretReads struct {
	http.RoundTripper
	delay time.Duration
	n     atomic.Int32
}

func (s *secretReads) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.Path, "/secrets/") {
		s.n.Add(1)
		select {
		case <-time.After(s.delay):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return s.RoundTripper.RoundTrip(r)
}

// The Secret is read once for each call, the first one included, and the time that this takes
// is not the driver's.
func TestSecretIsReadOncePerCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.api.put("secrets", &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s1", Namespace: "default"}, Data: map[string][]byte{"password": []byte("x")}})
		pv := fixture.PersistentVolume("v", bubbleDriver, "v")
		pv.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Name: "s1", Namespace: "default"}
		b.api.put("persistentvolumes", pv)
		refused := false
		b.answers(func(_ context.Context, c call) error {
			if c.Secrets["password"] != "x" {
				t.Errorf("%s without the secret", c.Method)
			}
			if !refused {
				refused = true
				return errFull
			}
			return nil
		})
		const timeout = time.Second
		reads := &secretReads{RoundTripper: b.api, delay: 2 * timeout}
		clients, err := clientThrough(reads)
		must(t, err)
		defer b.start(func(c *Config) { c.Client, c.Timeout = clients, timeout })()
		b.attach("v", "node1")
		b.within(time.Minute, "attached", func() bool { return b.isAttached("v", "node1") })
		b.detach("v", "node1")
		b.within(time.Minute, "detached", func() bool { return b.isGone("v", "node1") })
		if diff := cmp.Diff([]string{"Publish id-node1", "Publish id-node1", "Unpublish id-node1"}, b.received("v")); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		if got := reads.n.Load(); got != 3 {
			t.Errorf("the Secret was read %d times for 3 calls", got)
		}
	})
}

// Secrets are held for one call, and not for long.
func TestPendingSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pendingSecrets
		ref := &corev1.SecretReference{Namespace: "ns", Name: "s"}
		p.keep("a", ref, csi.Secrets{"key": "value"})
		if _, ok := p.take("a", &corev1.SecretReference{Namespace: "ns", Name: "other"}); ok {
			t.Error("got the secrets of another Secret")
		}
		if got, ok := p.take("a", ref); !ok || got["key"] != "value" {
			t.Error("did not get what was kept")
		}
		if _, ok := p.take("a", ref); ok {
			t.Error("got secrets twice")
		}
		p.keep("b", ref, csi.Secrets{"key": "value"})
		time.Sleep(pendingSecretsTTL)
		synctest.Wait()
		if len(p.byKey) > 0 {
			t.Errorf("held for longer than %v", pendingSecretsTTL)
		}
	})
}
