package kubectl

import (
	"strings"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
)

// goneAttachment is a VolumeAttachment of a machine that is gone, which is being deleted.
func goneAttachment(t *testing.T, volume, nodeName string) string {
	t.Helper()
	create(t, fixture.PersistentVolume(volume, driver, volume))
	va := fixture.Attachment(kube.AttachmentName(volume, driver, nodeName), driver, nodeName, volume)
	va.Finalizers = []string{kube.AttacherFinalizer(driver)}
	va.Annotations = map[string]string{kube.NodeIDAnnotation: "i-gone"}
	va.Status.DetachError = &storagev1.VolumeError{Message: "rpc error: code = NotFound desc = no such instance", Time: metav1.Now()}
	create(t, va)
	if err := server.Client.Delete(t.Context(), va); err != nil {
		t.Fatal(err)
	}
	return va.Name
}

func storedAttachment(t *testing.T, name string) *storagev1.VolumeAttachment {
	t.Helper()
	va := &storagev1.VolumeAttachment{}
	if err := server.Client.Get(t.Context(), client.ObjectKey{Name: name}, va); err != nil {
		t.Fatal(err)
	}
	return va
}

// The declaration is shown, checked, and written only with --confirm, in the user's own name and by the command's field manager: an attacher takes
// it as it was written, and not after an edit.
func TestDeclareGone(t *testing.T) {
	server.Start(t)
	first, second := goneAttachment(t, "gone-1", "gone"), goneAttachment(t, "gone-2", "gone")
	create(t, node("well"))
	admin := apiserver.Kubeconfig(t, server.Config())
	say := []string{"declare-gone", "node/gone", "--node-id", "i-gone", "--reason", "terminated"}
	for name, tc := range map[string]struct {
		args   []string
		status int
		says   string
	}{
		"nothing stated":       {[]string{"declare-gone", "va/" + first}, StatusBlocked, "node ID, reason"},
		"another ID":           {[]string{"declare-gone", "va", first, "--node-id", "i-other", "--reason", "r", "--confirm"}, StatusBlocked, "recorded: i-gone"},
		"a node without any":   {[]string{"declare-gone", "node/well", "--node-id", "x", "--reason", "r", "--confirm"}, StatusError, "has no VolumeAttachments"},
		"no such attachment":   {[]string{"declare-gone", "va/none", "--node-id", "x", "--reason", "r", "--confirm"}, StatusError, "does not exist"},
		"another kind":         {[]string{"declare-gone", "pod/x"}, StatusError, "name a VolumeAttachment or a node"},
		"only shown":           {say, StatusClear, "the API server accepts the requests"},
		"only shown, for JSON": {append(say, "-o", "json"), StatusClear, `"kind": "GonePlan"`},
	} {
		got := run(t, admin, tc.args...)
		if got.status != tc.status || !strings.Contains(got.out+got.err, tc.says) {
			t.Errorf("%s: exit status %d, want %d and %q:\n%s%s", name, got.status, tc.status, tc.says, got.out, got.err)
		}
		if _, ok := storedAttachment(t, first).Annotations[kube.DeclaredGoneAnnotation]; ok {
			t.Fatalf("%s: a declaration was written", name)
		}
	}
	registered := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: "i-gone"}}}}
	create(t, registered)
	if got := run(t, admin, append(say, "--confirm")...); got.status != StatusBlocked || !strings.Contains(got.out, "CSINode elsewhere has this ID") {
		t.Fatalf("with a node of that ID: exit status %d\n%s%s", got.status, got.out, got.err)
	}
	if err := server.Client.Delete(t.Context(), registered); err != nil {
		t.Fatal(err)
	}
	got := run(t, admin, append(say, "--confirm")...)
	if got.status != StatusClear {
		t.Fatalf("exit status %d\n%s%s", got.status, got.out, got.err)
	}
	for _, name := range []string{first, second} {
		va := storedAttachment(t, name)
		d, err := kube.DeclaredGone(va, time.Now())
		if err != nil || d == nil || d.Reason != "terminated" || d.By == "" || d.NodeID != "i-gone" || !kube.IsDeclaration(va.ObjectMeta) {
			t.Errorf("%s: %+v (%v), managed by %v", name, d, err, kube.AnnotationManagers(va.ObjectMeta, kube.DeclaredGoneAnnotation))
		}
	}
	va := storedAttachment(t, first)
	va.Annotations[kube.DeclaredGoneAnnotation] += " "
	if err := server.Client.Update(t.Context(), va, client.FieldOwner("kubectl-edit")); err != nil {
		t.Fatal(err)
	}
	if kube.IsDeclaration(storedAttachment(t, first).ObjectMeta) {
		t.Error("a declaration counts after an edit")
	}
}
