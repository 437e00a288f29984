package recovery

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/wait"
)

// cutting is a driver that cuts at unpublish.
const cutting = "cuts.test"

// declares sets the annotation of a driver.
func (s *site) declares(driver, value string) {
	s.Helper()
	d := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver, Annotations: map[string]string{kube.CutsAtUnpublishAnnotation: value}}}
	must(s, client.IgnoreAlreadyExists(s.client.Create(s.Context(), d.DeepCopy())))
	must(s, s.client.Patch(s.Context(), d, client.MergeFrom(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}})))
}

// attaches makes the VolumeAttachment of a volume, as belay-controller does.
func (m *machine) attaches(driver, handle, boot string) *storagev1.VolumeAttachment {
	m.Helper()
	va := fixture.Attachment(kube.AttachmentName(handle, driver, m.name), driver, m.name, "pv-"+handle)
	va.Annotations = map[string]string{kube.VolumeHandleAnnotation: handle, kube.BootIDAnnotation: boot}
	must(m, m.client.Create(m.Context(), va))
	return va
}

// TestStorageEvidence (holes 10 and 11): where the state of the machine is unknown, the volumes of drivers that cut at unpublish are proven one
// by one, for the attach/detach controller of the same process. Nothing else is done to the node.
func TestStorageEvidence(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	s.declares(cutting, "true")
	s.declares("claims.test", "yes")
	own := m.attaches(cutting, "vol-1", m.boot)
	m.attaches(cutting, "vol-2", "n1-boot-0")
	m.attaches("claims.test", "vol-3", m.boot)
	m.attaches("other.test", "vol-4", m.boot)
	proofs := &Proofs{}
	woken := make(chan string, 64)
	proofs.OnNew(func(node string) { woken <- node })
	s.run(func(o *Options) { o.Proofs = proofs })
	m.dies(fencing.PowerOn)
	boot := fencing.Boot{Node: m.name, NodeUID: string(m.node().UID), ID: m.boot, Machine: machineID(m.uuid)}
	proves := func(driver, handle string) bool {
		return slices.ContainsFunc(proofs.Of(m.name), func(p fencing.Proof) bool { return p.Holds(boot, fencing.Volume{Driver: driver, Handle: handle}) })
	}
	wait.Until(t, "vol-1 is proven", func() bool { return proves(cutting, "vol-1") })
	if node := <-woken; node != m.name {
		t.Errorf("%q was woken", node)
	}
	for handle, driver := range map[string]string{"vol-2": cutting, "vol-3": "claims.test", "vol-4": "other.test", "": ""} {
		if proves(driver, handle) {
			t.Errorf("%q of %q is proven", handle, driver)
		}
	}
	f := m.waits("no power switch is known")
	wait.Until(t, "the advice says how", func() bool { f = m.fence(); return strings.Contains(f.Status.Advice, "1 of its volumes") })
	if !meta.IsStatusConditionTrue(f.Status.Conditions, conditionStorageFenced) || f.Status.Phase != "Fencing" || len(f.Status.Evidence) > 0 {
		t.Errorf("%+v", f.Status)
	}
	wait.Until(t, "an event reports it", func() bool { return s.event("StorageFenced") })
	if m.moved() || m.tainted(kube.OutOfServiceTaint) || !m.tainted(kube.IsolationTaint) || !m.exists(own) || own.DeletionTimestamp != nil {
		t.Errorf("moved %t, taints %v, %v", m.moved(), m.node().Spec.Taints, own)
	}
	s.declares(cutting, "false")
	wait.Until(t, "the proof goes with the declaration", func() bool { return !proves(cutting, "vol-1") })
	s.declares(cutting, "true")
	wait.Until(t, "it is proven again", func() bool { return proves(cutting, "vol-1") })
	// It was taken, and the node lives.
	must(t, s.client.Delete(t.Context(), own))
	node := m.node()
	before := client.MergeFrom(node.DeepCopy())
	node.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(kube.UniqueVolumeName(cutting, "vol-1"))}
	must(t, s.client.Status().Patch(t.Context(), node, before))
	m.mu.Lock()
	m.silent = false
	m.mu.Unlock()
	m.report(corev1.ConditionTrue)
	m.waits("to unmount")
	if m.fence().Status.Phase != "Fencing" || !m.tainted(kube.IsolationTaint) || len(proofs.Of(m.name)) > 0 {
		t.Errorf("%s, taints %v, proof %+v", m.fence().Status.Phase, m.node().Spec.Taints, proofs.Of(m.name))
	}
}
