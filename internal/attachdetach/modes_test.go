package attachdetach

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// anInlineDisk is a volume of a pod without a PersistentVolume; read-only ones may be shared.
func anInlineDisk(readOnly bool) corev1.VolumeSource {
	return corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk", ReadOnly: readOnly}}
}

// inlineAttachment is a confirmed attachment of the inline volume of a pod.
func inlineAttachment(k key, pod *corev1.Pod) *storagev1.VolumeAttachment {
	va := anAttachment(k, pod.Spec.NodeName, "", true)
	va.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: kube.InlineVolumes(pod)[0].Spec}
	va.Status.Attached = true
	return va
}

// A pod of another tenant uses the disk of a shared PersistentVolume as an inline volume for one node.
func TestInlineVolumeDoesNotMakeVolumeExclusive(t *testing.T) {
	m := newModel(t)
	intruder := aPod("intruder", "c", anInlineDisk(false))
	k := kube.InlineVolumes(intruder)[0].Key
	pv := aVolume("pv", k.Handle, corev1.ReadWriteMany)
	pv.Spec.CSI.Driver = k.Driver
	m.put(pv)
	m.put(aClaim("pv"))
	unique := []string{kube.UniqueVolumeName(k.Driver, k.Handle)}
	m.put(intruder)
	for _, node := range []string{"a", "b", "c"} {
		m.put(aNode(node, isReady, listing(nil, unique)))
	}
	for _, node := range []string{"a", "b"} {
		m.put(aPod("on-"+node, node, byClaimOf("pv")))
		va := anAttachment(k, node, "pv", true)
		va.Status.Attached = true
		m.put(va)
	}
	m.put(inlineAttachment(k, intruder))
	if d := m.decide(k); does[attachment.WithdrawReport](d) || does[attachment.Wait](d) {
		t.Errorf("the inline volume disturbs the PersistentVolume: %v", d.Steps)
	}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	m.put(pv)
	m.put(aNode("d", isReady))
	m.put(aPod("ro", "d", anInlineDisk(true)))
	if got := attaches(m.decide(k)); len(got) > 0 {
		t.Errorf("S1: an inline volume makes an exclusive PersistentVolume shared: %v", got)
	}
}

// A disk without a PersistentVolume is attached read-only to two nodes. A pod on a third wants to write: it waits, and
// takes it from no other. Then the others end.
func TestWantedAttachmentOutlivesChangeOfMode(t *testing.T) {
	m := newModel(t)
	var k key
	for _, node := range []string{"a", "b"} {
		pod := aPod("on-"+node, node, anInlineDisk(true))
		k = kube.InlineVolumes(pod)[0].Key
		unique := kube.UniqueVolumeName(k.Driver, k.Handle)
		m.put(pod)
		m.put(aNode(node, isReady, listing(nil, []string{unique})))
		m.put(inlineAttachment(k, pod))
	}
	if d := m.decide(k); len(d.Steps) > 0 {
		t.Fatalf("shared, and does %v", d.Steps)
	}
	m.put(aNode("c", isReady))
	m.put(aPod("writer", "c", anInlineDisk(false)))
	d := m.decide(k)
	if does[attachment.WithdrawReport](d) || does[attachment.Detach](d) {
		t.Errorf("a pod on c takes the volume from pods elsewhere: %v", d.Steps)
	}
	if got := attaches(d); len(got) > 0 {
		t.Errorf("S1: attaches to %v what others have", got)
	}
	m.remove(aPod("on-a", "a"))
	m.remove(aPod("on-b", "b"))
	if d := m.decide(k); !slices.ContainsFunc(d.Steps, func(s attachment.Step) bool { w, ok := s.(attachment.WithdrawReport); return ok && w.Node == "a" }) {
		t.Errorf("not detached after its pods: %v", d.Steps)
	}
}
