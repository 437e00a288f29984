package attachdetach

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// TestVolumeAttachmentIsMissingBeforeItsEvent covers the moment in which another client's delete has reached the cache, but not yet
// the event handler. A pod elsewhere must not get the volume, which the node still reports and uses (S1), and the report
// must stay (S3).
func TestVolumeAttachmentIsMissingBeforeItsEvent(t *testing.T) {
	k := key{Driver: driver, Handle: "h"}
	unique := kube.UniqueVolumeName(k.Driver, k.Handle)
	m := newModel(t)
	va := anAttachment(k, "a", "pv", true)
	va.Status.Attached = true
	m.put(aVolume("pv", "h", corev1.ReadWriteOnce))
	m.put(aClaim("pv"))
	m.put(aNode("a", isReady, listing([]string{unique}, []string{unique})))
	m.put(aNode("b", isReady))
	m.put(va)
	m.put(aPod("q", "b", byClaimOf("pv")))
	if err := m.stores["VolumeAttachment"].Delete(va); err != nil { // the handler gets the event later
		t.Fatal(err)
	}
	for _, step := range m.decide(k).Steps {
		switch step.(type) {
		case attachment.Attach, attachment.WithdrawReport:
			t.Errorf("%T%+v while node a reports and uses the volume", step, step)
		}
	}
}
