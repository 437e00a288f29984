package diagnosis

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/kube"
)

// failingFleet is a cluster in which a driver refuses to attach the volumes of so many pods.
func failingFleet(n int) scene {
	s := newScene()
	pod, va, pv, claim := s.waiter, s.va, s.Volumes[0], s.Claims[0]
	*s.Snapshot = Snapshot{Now: s.Now, AllNamespaces: true, Whole: s.Whole, Nodes: s.Nodes}
	for i := range n {
		name := fmt.Sprint("p", i)
		pod, va, pv, claim := pod.DeepCopy(), va.DeepCopy(), pv.DeepCopy(), claim.DeepCopy()
		pod.Name, pod.UID, pv.Name, claim.Name = name, types.UID(name), name, name
		pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName, claim.Spec.VolumeName, pv.Spec.ClaimRef.Name, pv.Spec.CSI.VolumeHandle = name, name, name, name
		va.Name, va.Spec.NodeName, va.Spec.Source.PersistentVolumeName = kube.AttachmentName(name, oneDriver, "b"), "b", new(name)
		va.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "rpc error: code = Internal desc = no", Time: metav1.NewTime(s.Now)}}
		s.Pods, s.Attachments, s.Volumes, s.Claims = append(s.Pods, pod), append(s.Attachments, va), append(s.Volumes, pv), append(s.Claims, claim)
	}
	s.CSINodes = []*storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: oneDriver}}}}}
	s.Nodes[0].Status.VolumesInUse, s.Nodes[0].Status.VolumesAttached = []corev1.UniqueVolumeName{}, nil
	return s
}

// TestManyStuckTakeLinearTime: a driver that fails leaves all its pods waiting, and stuck and check ask of each whether the driver is installed and its attacher
// runs. That takes no longer than to index the objects does, which looks at each a few times: a look at all objects for each took a hundred times as long.
func TestManyStuckTakeLinearTime(t *testing.T) {
	s := failingFleet(16000)
	indexes, asks := time.Hour, time.Hour
	for range 3 {
		begun := time.Now()
		x := newState(s.Snapshot)
		indexed := time.Now()
		for key, volumes := range x.byKey {
			if situation := x.situation(x.describe(key, volumes[0]), nil); situation.NotInstalled {
				t.Fatalf("driver %s is not installed", key.Driver)
			}
		}
		indexes, asks = min(indexes, indexed.Sub(begun)), min(asks, time.Since(indexed))
	}
	if asks > 10*indexes {
		t.Errorf("to index all takes %v, to ask for all %v", indexes, asks)
	}
}
