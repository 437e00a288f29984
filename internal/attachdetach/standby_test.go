package attachdetach

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/kube"
)

// TestStandbyRemembersWhatWasTakenBack with two real controllers: the leader moves
// an exclusive Fibre Channel volume from a to b, a's kubelet registers anew, the leader ends.
func TestRealStandbyReportsToTwoNodes(t *testing.T) {
	l := newLab(t)
	l.readyNode("a", "b")
	fc, unique := l.fcVolume()
	l.pvOf("v", corev1.PersistentVolumeSource{FC: &fc})
	stopLeader := l.run()
	l.pod("p", "a", "v")
	l.await("reported to a", func() bool { return l.reports("a", unique) })
	stopStandby := l.run()
	defer stopStandby()
	time.Sleep(3 * time.Second) // its caches are warm
	l.uses("a", unique)
	l.gone("p")
	l.pod("q", "b", "v")
	l.uses("a")
	l.await("handed over", func() bool { return l.reports("b", unique) && !l.reports("a", unique) })
	l.uses("b", unique)
	l.shut("a")
	l.registers("a")
	time.Sleep(time.Second)
	stopLeader()
	l.never("S1: reported to a while it is reported to and mounted on b", 15*time.Second, func() bool {
		return l.reports("a", unique) && l.reports("b", unique)
	})
}

// a has a Fibre Channel volume mounted; its Node is deleted and made anew, for the same boot,
// by somebody who leaves the annotation to kubelet.
func TestRealNodeWithoutAnnotation(t *testing.T) {
	l := newLab(t)
	l.readyNode("a", "b")
	fc, unique := l.fcVolume()
	l.pvOf("v", corev1.PersistentVolumeSource{FC: &fc})
	stop := l.run()
	defer stop()
	l.pod("p", "a", "v")
	l.await("reported to a", func() bool { return l.reports("a", unique) })
	l.uses("a", unique)
	l.pod("q", "b", "v")
	l.shut("a")
	l.gone("p")
	l.registers("a", func(n *corev1.Node) { delete(n.Annotations, kube.ManagedAttachAnnotation) })
	l.never("S1: reported to b while a has it mounted", 10*time.Second, func() bool { return l.reports("b", unique) })
}
