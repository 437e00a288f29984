package kubectl

import (
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
)

// TestMachineOfTheMessage: the node whose node ID a driver's message has is named, though neither pod nor VolumeAttachment leads to it.
func TestMachineOfTheMessage(t *testing.T) {
	server.Start(t)
	namespaces(t, "elsewhere")
	create(t, node("elsewhere-near"))
	create(t, node("elsewhere-far"))
	for name, id := range map[string]string{"elsewhere-near": "i-0near", "elsewhere-far": "i-0far"} {
		create(t, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: id}}}})
	}
	pv := fixture.PersistentVolume("elsewhere-volume", driver, "vol-1")
	claim := fixture.Claim("elsewhere", "data", pv)
	create(t, claim)
	create(t, fixture.Bind(pv, claim))
	va := fixture.Attachment(kube.AttachmentName("vol-1", driver, "elsewhere-near"), driver, "elsewhere-near", pv.Name)
	va.Status.AttachError = &storagev1.VolumeError{Message: "rpc error: code = Internal desc = volume vol-1 is already attached to instance i-0far", Time: metav1.Now()}
	create(t, va)
	create(t, fixture.Pod("elsewhere", "waiter", "elsewhere-near", "data"))
	got := run(t, apiserver.Kubeconfig(t, server.Config()), "explain", "pod/waiter", "-n", "elsewhere")
	if !strings.Contains(got.out, "that node elsewhere-far has the volume, and no VolumeAttachment shows it") || !strings.Contains(got.out, "UNSAFE") {
		t.Errorf("exit status %d:\n%s%s", got.status, got.out, got.err)
	}
}
