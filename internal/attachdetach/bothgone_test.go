package attachdetach

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodeAndAttachmentDeleted (docs/not-guaranteed.md): a person who deletes both says that the machine is gone. The volume is attached
// elsewhere, although the machine is known to run: no object is left that could hold it.
func TestNodeAndAttachmentDeleted(t *testing.T) {
	l := newLab(t)
	recovery := &proofs{}
	l.options.Proofs = recovery
	l.runAttachedOnA()
	l.node("b")
	l.use("a", "v")
	recovery.runs(l.runningLife("a"))
	l.gone("p")
	l.awaitWaiting("v", "a")
	l.must(l.Delete(l.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: l.name("a")}}))
	l.must(l.Delete(l.ctx, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: l.read("v", "a").Name}}))
	l.pod("q", "b", "v")
	l.awaitReported("v", "b")
}
