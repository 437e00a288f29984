package attachdetach

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// logLine is one line of the log.
type logLine map[string]any

// logTo appends what is logged, at verbosity 1.
func logTo(t *testing.T, lines *[]logLine) logr.Logger {
	t.Helper()
	return funcr.NewJSON(func(text string) {
		one := logLine{}
		if err := json.Unmarshal([]byte(text), &one); err != nil {
			t.Errorf("log %s: %v", text, err)
		}
		*lines = append(*lines, one)
	}, funcr.Options{Verbosity: 1})
}

func objectNamed(name string) map[string]any { return map[string]any{"namespace": "ns", "name": name} }

// TestLogsNameTheVolume plays the lifecycle of a volume whose handle means nothing to people: each line also names the
// PersistentVolume, claim and node, and the pods if there are any.
func TestLogsNameTheVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines []logLine
		l := &life{T: t, begun: time.Now(), objects: map[string]client.Object{}, version: 100, logger: logTo(t, &lines)}
		l.lead()
		k := key{Driver: driver, Handle: "handle-1"}
		l.node("a")
		l.node("b")
		l.store(aVolume("pv-1", k.Handle))
		l.store(aClaim("pv-1"))
		l.settle()
		l.pod("p", "a", "pv-1")
		l.attached(k, "a")
		l.use("a", k)
		l.pod("q", "b", "pv-1")
		l.podGone("p")
		l.use("a")
		l.refusesDetach(k, "a", "array is away")
		l.detached(k, "a")
		broken := l.attachment(k, "b")
		broken.Status.AttachError = &storagev1.VolumeError{Message: "disk is broken"}
		l.store(broken)
		l.settle()
		l.control.client = refusing{l.control.client}
		l.remove(broken)
		l.settle() // it is created again, which is refused

		w := &work{Controller: l.control, key: k, reads: &nodeReads{}}
		w.now = l.control.state.observe(k, w.reads, l.control)
		if _, err := w.retry(errors.New("no way to the API server"), reconcile.Result{}); err == nil || err.Error() != "PersistentVolume pv-1 of claim ns/pv-1: no way to the API server" {
			t.Errorf("controller-runtime logs %v", err)
		}

		va := map[string]string{"a": kube.AttachmentName(k.Handle, driver, "a"), "b": kube.AttachmentName(k.Handle, driver, "b")}
		pods := func(name string) []any { return []any{objectNamed(name)} }
		for _, want := range []logLine{
			{"msg": "Attaching volume", "node": "a", "attachment": va["a"], "pods": pods("p")},
			{"msg": "Volume reported as attached", "node": "a", "attachment": va["a"], "pods": pods("p")},
			{"msg": "Waiting to attach volume", "node": "b", "pod": objectNamed("q"), "reason": string(attachment.OtherWriterAttached)},
			{"msg": "Detaching volume", "node": "a", "attachment": va["a"]},
			{"msg": "Failed to detach volume", "node": "a", "attachment": va["a"], "error": "array is away"},
			{"msg": "Failed to attach volume", "node": "b", "pod": objectNamed("q"), "error": "disk is broken"},
			{"msg": "Volume detached", "node": "a", "attachment": va["a"]},
			{"msg": "Attaching volume", "node": "b", "attachment": va["b"], "pods": pods("q")},
			{"msg": "API server refused a request, retrying", "retryAfter": "1s"},
			{"msg": "Decided"},
		} {
			want["volume"], want["claim"], want["handle"], want["driver"] = "pv-1", objectNamed("pv-1"), "handle-1", driver
			if !logs(lines, want) {
				text, _ := json.Marshal(lines)
				t.Errorf("no line has %v:\n%s", want, text)
			}
		}
		for _, one := range lines {
			if one["volume"] != "pv-1" || one["handle"] != k.Handle {
				t.Errorf("line without the volume: %v", one)
			}
		}
	})
}

// TestHeldBackAttachIsNamed as other lines name it: the volume is the PersistentVolume.
func TestHeldBackAttachIsNamed(t *testing.T) {
	var lines []logLine
	m, k := newModel(t), key{Driver: driver, Handle: "handle-1"}
	m.put(aVolume("pv-1", k.Handle))
	m.put(aClaim("pv-1"))
	r := &rivals{log: logTo(t, &lines), named: m.named, suspected: true}
	r.holdBack(k, []attachment.Step{attachment.Attach{Node: "a", PersistentVolume: "pv-1"}})
	want := logLine{"volume": "pv-1", "claim": objectNamed("pv-1"), "handle": k.Handle, "driver": driver, "node": "a"}
	if !logs(lines, want) {
		t.Errorf("no line has %v: %v", want, lines)
	}
}

// logs reports whether a line has all these values.
func logs(lines []logLine, want logLine) bool {
	for _, one := range lines {
		same := true
		for key, value := range want {
			same = same && cmp.Equal(one[key], value)
		}
		if same {
			return true
		}
	}
	return false
}

// refusing is an API server that forbids to create anything.
type refusing struct{ client.Client }

func (refusing) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: kindOf(obj)}, obj.GetName(), errors.New("not you"))
}

// TestErrorsOfReconcileNameTheVolume: controller-runtime logs what Reconcile returns, with the logger that it was given.
func TestErrorsOfReconcileNameTheVolume(t *testing.T) {
	var lines []logLine
	with := logConstructor(logTo(t, &lines))
	with(&key{Driver: driver, Handle: "handle-1"}).Info("a volume")
	with(&key{Driver: orphanDriver, Handle: "csi-1"}).Info("an orphan")
	with(nil).Info("none")
	want := []logLine{
		{"msg": "a volume", "driver": driver, "handle": "handle-1"},
		{"msg": "an orphan", "attachment": "csi-1"},
		{"msg": "none"},
	}
	for i := range want {
		want[i]["controller"], want[i]["logger"], want[i]["level"] = Name, "", 0.0
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("logged (-want +got):\n%s", diff)
	}
}
