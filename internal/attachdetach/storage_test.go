package attachdetach

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// TestStorageProofMovesOneVolume (S1, S2, S5; hole 11): the proof that a driver cuts a boot off at the unpublish of a volume takes that volume
// and no other one, once its pod is gone, and another node gets it after the driver has confirmed the unpublish.
func TestStorageProofMovesOneVolume(t *testing.T) {
	l := newLab(t)
	recovery := &proofs{}
	l.options.Proofs = recovery
	l.runAttachedOnA()
	l.volume("w")
	l.node("b")
	l.pod("p2", "a", "w")
	l.awaitReported("w", "a")
	l.use("a", "v", "w")
	name := l.name("a")
	m := kube.MachineOf(l.seenNode("a"))
	boot := fencing.Boot{Node: name, NodeUID: m.NodeUID, ID: m.BootID, Machine: m.SystemUUID}
	now := time.Now()
	proven := fencing.Decide(now, fencing.Fence{Phase: fencing.Fencing, Boot: boot, StorageProven: true}, fencing.Observed{
		Exists: fencing.Yes, Now: boot, Silent: true, ReadAt: now, Isolated: true, Cut: []fencing.Volume{{Driver: driver, Handle: l.name("v")}},
	})
	if proven.Proof.Class() != fencing.StorageFenced {
		t.Fatalf("the proof is %+v", proven.Proof)
	}
	recovery.mu.Lock()
	recovery.proof = proven.Proof
	recovery.mu.Unlock()
	recovery.wake(name)
	l.pod("q", "b", "v")
	l.await("q waits", func() bool { return len(l.messages("q", explain.FailedAttachVolume)) > 0 })
	l.never("S2: taken from a pod", long, func() bool { return l.detaching("v", "a") })
	l.attacher.set(func() {
		l.attacher.mood = func(va *storagev1.VolumeAttachment) (bool, string) { return va.DeletionTimestamp != nil, "" }
	})
	l.gone("p")
	l.gone("p2")
	l.awaitObjectEvent("PersistentVolumeClaim", "v", explain.DetachingVolume,
		explain.DetachStarted(l.name("v"), attachment.NodeName(name), attachment.StorageFenced{}, attachment.StillInUse))
	l.await("the detach is asked for", func() bool { return l.detaching("v", "a") })
	l.never("S1: attached elsewhere before the driver confirmed", long, func() bool { return l.attachment("v", "b") != nil })
	l.attacher.set(func() { l.attacher.mood = nil })
	l.awaitReported("v", "b")
	l.awaitWaiting("w", "a")
	if va := l.read("w", "a"); va.DeletionTimestamp != nil {
		t.Error("S2: another volume of the driver was taken")
	}
}

// TestFenceTaintWaitsForTheProof (S2; hole 1): between the taint and the second answer of the power switch nothing is detached, although the
// node is not Ready and no pod wants the volume there any more.
func TestFenceTaintWaitsForTheProof(t *testing.T) {
	l := newLab(t)
	recovery := &proofs{}
	l.options.Proofs, l.options.Policy.FencesProve = recovery, true
	l.runAttachedOnA()
	l.use("a", "v")
	l.gone("p")
	l.awaitWaiting("v", "a")
	name := l.name("a")
	m := kube.MachineOf(l.seenNode("a"))
	body := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %q}}, "spec": {"taints": [{"key": %q, "value": "belay-1", "effect": "NoExecute"}]}}`,
		kube.FencedBootAnnotation, m.BootID, kube.OutOfServiceTaint)
	l.must(l.Patch(l.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, client.RawPatch(types.MergePatchType, body)))
	l.patchStatus(&corev1.Node{}, "", name, map[string]any{"conditions": []map[string]any{{"type": "Ready", "status": "Unknown"}}})
	l.never("S2: detached before the proof", long, func() bool { return l.detaching("v", "a") })
	boot := fencing.Boot{Node: name, NodeUID: m.NodeUID, ID: m.BootID, Machine: m.SystemUUID}
	ended := fencing.Decide(time.Now(), fencing.Fence{Phase: fencing.Evicting, Boot: boot, Evidence: fencing.PoweredOff}, fencing.Observed{Exists: fencing.No, Ended: true})
	recovery.mu.Lock()
	recovery.proof = ended.Proof
	recovery.mu.Unlock()
	recovery.wake(name)
	l.awaitDetached("v", "a")
}
