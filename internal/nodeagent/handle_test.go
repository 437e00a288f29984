package nodeagent

import (
	"path/filepath"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/testing/csidriver"
)

// handleOf gives a PersistentVolume the handle of another one.
func handleOf(handle string) volumeOptions {
	return func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = handle }
}

// TestBlockVolumeOfTwoPersistentVolumes is staged once, at the path of the first one, and published for both from
// there.
func TestBlockVolumeOfTwoPersistentVolumes(t *testing.T) {
	w := newWorld(t)
	handle := w.volume("one", blockVolume)
	w.volume("two", blockVolume, handleOf(handle))
	agent, stop := w.agent()
	first, second := w.podWith("first", device, "one"), w.podWith("second", device, "two")
	w.bringUp(agent, first, handle)
	agent.SetPod(second)
	w.mounted(agent, second)
	staged := filepath.Join(w.root, blockDir, "staging", w.name+"-one")
	published := csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver)
	if want := filepath.Join(w.root, blockDir, "publish", w.name+"-two", string(second.UID)); published.TargetPath != want || published.StagingTargetPath != staged {
		t.Errorf("published at %s from %s, want at %s from %s", published.TargetPath, published.StagingTargetPath, want, staged)
	}
	agent.RemovePod(first.UID)
	w.unmounted(agent, first)
	stop()
	w.bootID = "boot-2" // what is staged is staged again, where it was
	agent, _ = w.agent()
	agent.SetPod(second)
	agent.PodsSynced()
	w.mounted(agent, second)
	if got := csidriver.LastRequest[*csispec.NodeStageVolumeRequest](w.driver).StagingTargetPath; got != staged {
		t.Errorf("staged again at %s, want %s", got, staged)
	}
	agent.RemovePod(second.UID)
	w.untilNotInUse(handle)
	w.untilForgotten(agent)
}

// TestNothingIsPublishedBesideAReadWriteOncePodVolume, also not through another PersistentVolume, and also after a restart, when the
// first pod's claim has not been read.
func TestNothingIsPublishedBesideAReadWriteOncePodVolume(t *testing.T) {
	w := newWorld(t, noAttach)
	handle := w.volume("sole", accessModes(corev1.ReadWriteOncePod))
	w.volume("shared", handleOf(handle))
	agent, stop := w.agent()
	first, second := w.pod("first", "sole"), w.pod("second", "shared")
	agent.SetPod(first)
	w.mounted(agent, first)
	agent.SetPod(second)
	w.waitSays(agent, second, "OtherPodMounted")
	stop()
	agent, _ = w.agent()
	agent.SetPod(second)
	w.waitSays(agent, second, "OtherPodMounted")
	agent.SetPod(first)
	agent.PodsSynced()
	w.mounted(agent, first)
	w.waitSays(agent, second, "OtherPodMounted")
	agent.RemovePod(first.UID)
	w.mounted(agent, second)
}

// TestReadWriteOncePodWaitsForPodOfSameHandle: the opposite order of the test above.
func TestReadWriteOncePodWaitsForPodOfSameHandle(t *testing.T) {
	w := newWorld(t, noAttach)
	handle := w.volume("shared")
	w.volume("sole", accessModes(corev1.ReadWriteOncePod), handleOf(handle))
	agent, _ := w.agent()
	first, second, third := w.pod("first", "shared"), w.pod("second", "sole"), w.pod("third", "shared")
	agent.SetPod(first)
	w.mounted(agent, first)
	agent.SetPod(second)
	w.waitSays(agent, second, "OtherPodMounted")
	agent.SetPod(third) // which the waiting one does not block
	w.mounted(agent, third)
	w.waitSays(agent, second, "OtherPodMounted")
	agent.RemovePod(first.UID)
	agent.RemovePod(third.UID)
	w.mounted(agent, second)
}
