package attacher

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/publication"
	"belay.dev/belay/internal/telemetry"
)

// watched runs a test in fake time against an attacher with metrics and a log.
func watched(t *testing.T, test func(b *bubble, registry *prometheus.Registry)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b, registry := newBubble(t), prometheus.NewRegistry()
		defer b.start(func(c *Config) { c.Metrics = telemetry.NewAttacher(registry) })()
		b.pass(time.Second)
		test(b, registry)
	})
}

// gauge reads a metric with these labels, by the order of their names.
func gauge(t *testing.T, registry *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	families, err := registry.Gather()
	must(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			if family.GetName() == name && strings.Join(values, " ") == strings.Join(labels, " ") {
				return m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s%q", name, labels)
	return 0
}

// A Secret that cannot be read fails the attach like an error of the driver, and the log has the same message.
func TestSecretThatCannotBeReadIsLogged(t *testing.T) {
	watched(t, func(b *bubble, _ *prometheus.Registry) {
		b.persistentVolume("v", "v", func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Namespace: "default", Name: "missing"}
		})
		b.node("node", "id-node")
		b.pass(time.Second)
		b.attach("v", "node")
		b.pass(500 * time.Millisecond)
		lines := b.log.of("Failed to attach volume")
		if len(lines) != 1 {
			t.Fatalf("logged %v, want one line", lines)
		}
		one := lines[0]
		if text, _ := one["error"].(string); !strings.Contains(text, `failed to load secret "default/missing"`) {
			t.Errorf("error %q", text)
		}
		if one["volume"] != "v" || one["node"] != "node" || one["nextAttempt"] == nil {
			t.Errorf("logged %v", one)
		}
	})
}

// While the driver has answered and the API server does not take the answer, the volume does not wait for a call.
func TestResultThatCannotBeRecorded(t *testing.T) {
	watched(t, func(b *bubble, registry *prometheus.Registry) {
		b.answers(func(ctx context.Context, _ call) error { return lasting(ctx, time.Second) })
		b.api.mu.Lock()
		b.api.refuse = func(r *http.Request) error {
			if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/status") {
				return errors.New("the API server is away")
			}
			return nil
		}
		b.api.mu.Unlock()
		b.volume("v")
		b.node("node", "id-node")
		b.pass(time.Second)
		b.attach("v", "node")
		b.pass(time.Minute)
		for reason, want := range map[publication.Reason]float64{publication.RecordingFailed: 1, publication.CallInFlight: 0} {
			if got := gauge(t, registry, "attacher_attachments_blocked", "attach", string(reason)); got != want {
				t.Errorf("%v attachments wait for %s, want %v", got, reason, want)
			}
		}
		if got := gauge(t, registry, "attacher_attachment_blocked_longest_seconds", "attach", string(publication.RecordingFailed)); got < 58 {
			t.Errorf("it has waited for %v s, want a minute", got)
		}
		if n := len(b.log.of("Waiting to attach volume")); n != 2 {
			t.Errorf("%d waits were logged, want the call's and the recording's: %v", n, b.log.of("Waiting to attach volume"))
		}
		b.api.mu.Lock()
		b.api.refuse = nil
		b.api.mu.Unlock()
		b.within(10*time.Second, "attached", func() bool { return b.isAttached("v", "node") })
		if got := gauge(t, registry, "attacher_attachments_blocked", "attach", string(publication.RecordingFailed)); got != 0 {
			t.Errorf("%v attachments still wait", got)
		}
	})
}

// Each wait is logged once, with the event that ends it, however often the volume is processed in the meantime.
func TestEachWaitIsLoggedOnce(t *testing.T) {
	watched(t, func(b *bubble, _ *prometheus.Registry) {
		first := true // under b.mu
		b.answers(func(ctx context.Context, _ call) error {
			b.mu.Lock()
			fails := first
			first = false
			b.mu.Unlock()
			if err := lasting(ctx, 5*time.Second); err != nil || !fails {
				return err
			}
			return status.Error(codes.Internal, "array is away")
		})
		b.volume("v")
		b.node("node", "id-node")
		b.pass(time.Second)
		b.attach("v", "node")
		b.pass(time.Minute)
		if !b.isAttached("v", "node") {
			t.Fatal("not attached")
		}
		var got []string
		for _, one := range b.log.of("Waiting to attach volume") {
			got = append(got, one["reason"].(string)+" until "+one["until"].(string))
		}
		want := []string{
			"CallInFlight until the call returns or times out",
			"BackingOff until the back-off ends, the driver confirms another call, or the VolumeAttachment, PersistentVolume or CSINode changes",
			"CallInFlight until the call returns or times out",
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("waits were logged\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if failed := b.log.of("Failed to attach volume"); len(failed) != 1 || failed[0]["mayBePublished"] != true || failed[0]["outcome"] != nil {
			t.Errorf("failures were logged %v", failed)
		}
	})
}

// A contradiction between the driver's list and an attachment is logged, and the call that repairs it is logged with
// the node that it is for.
func TestDriftsInTheLog(t *testing.T) {
	watched(t, func(b *bubble, _ *prometheus.Registry) {
		b.answers(func(_ context.Context, c call) error {
			if c.Method == "Publish" && c.Volume == "v" {
				return status.Error(codes.FailedPrecondition, "attached elsewhere")
			}
			return nil
		})
		b.node("node-x", "id-node-x")
		b.attach("v", "node")
		b.attachedBefore("w", "node")
		b.pass(100 * time.Millisecond)
		claim := func(volume string) publication.ExpectedAttachment {
			va := b.attachment(volume, "node")
			return publication.ExpectedAttachment{Attachment: publication.Attachment{UID: string(va.UID), Name: va.Name, Node: "node"}, Handle: volume}
		}
		v, w := claim("v"), claim("w")
		(&reconciler{attacher: b.attacher}).act(b.logger, publication.Result{
			Confirmed: map[string]publication.Drift{v.UID: publication.Abandoned, w.UID: publication.NotPublished},
			At:        map[string]string{v.UID: "id-node-x"},
		}, []publication.ExpectedAttachment{v, w}, time.Now())
		b.pass(10 * time.Millisecond)
		for message, at := range map[string]any{
			"The driver lists the volume as published to a node that no VolumeAttachment is for, unpublishing it there": "id-node-x",
			"The driver does not list the volume as published to the node, publishing it again":                         nil,
		} {
			if lines := b.log.of(message); len(lines) != 1 || lines[0]["publishedAt"] != at {
				t.Errorf("%q: logged %v", message, lines)
			}
		}
		for _, message := range []string{"Detaching volume", "Volume detached"} {
			if lines := b.log.of(message); len(lines) != 1 || lines[0]["node"] != "node-x" {
				t.Errorf("%q: logged %v, want node-x", message, lines)
			}
		}
	})
}

// How long a VolumeAttachment has been waiting shows whatever it waits for: each attempt that is not answered is another wait.
func TestPendingLongest(t *testing.T) {
	watched(t, func(b *bubble, registry *prometheus.Registry) {
		pending := func(operation string) time.Duration {
			return time.Duration(gauge(t, registry, "attacher_attachment_pending_longest_seconds", operation) * float64(time.Second)).Round(time.Minute)
		}
		b.attachedBefore("w", "node")
		b.pass(time.Hour)
		if pending("attach") != 0 || pending("detach") != 0 {
			t.Errorf("nothing is pending: attach %v, detach %v", pending("attach"), pending("detach"))
		}
		b.answers(func(ctx context.Context, _ call) error { return unanswered(ctx) })
		b.attach("v", "node")
		b.pass(10 * time.Minute)
		b.detach("w", "node")
		b.pass(10 * time.Minute)
		if pending("attach") != 20*time.Minute || pending("detach") != 10*time.Minute {
			t.Errorf("attach %v, want 20m; detach %v, want 10m", pending("attach"), pending("detach"))
		}
		b.answers(func(context.Context, call) error { return nil })
		b.pass(10 * time.Minute)
		if pending("attach") != 0 || pending("detach") != 0 {
			t.Errorf("nothing is pending any more: attach %v, detach %v", pending("attach"), pending("detach"))
		}
	})
}
