package nodeagent

import (
	"errors"
	"slices"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/testing/csidriver"
)

// An in-tree inline volume is mounted by the CSI driver to which its plugin was migrated.
func TestInTreeInlineVolumeIsMounted(t *testing.T) {
	w := newWorld(t)
	const ebs = "ebs.csi.aws.com"
	drivers := w.admin.StorageV1().CSIDrivers()
	_, err := drivers.Create(w.ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: ebs}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)},
	}, metav1.CreateOptions{})
	must(t, err)
	defer drivers.Delete(w.ctx, ebs, metav1.DeleteOptions{})
	driver := w.startDriver(ebs)
	agent, _ := w.agent(func(c *Config) { c.MountPoints = driver.MountPoints })
	pod := w.podWith("p", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{
			{Name: "disk", VolumeSource: corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1", FSType: "ext4", ReadOnly: true}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "disk", MountPath: "/disk"}, {Name: "scratch", MountPath: "/scratch"}}
	})
	agent.SetPod(pod)
	mounts := w.mounted(agent, pod)
	if len(mounts) != 1 || mounts[0].VolumeName != "disk" || mounts[0].Driver != ebs || mounts[0].VolumeHandle != "vol-1" || !mounts[0].ReadOnly {
		t.Errorf("mounted are %+v", mounts)
	}
	request := csidriver.LastRequest[*csispec.NodePublishVolumeRequest](driver)
	if request.VolumeId != "vol-1" || request.VolumeCapability.GetMount().GetFsType() != "ext4" || !request.Readonly {
		t.Errorf("the driver was asked for %v", request)
	}
	agent.RemovePod(pod.UID)
	w.unmounted(agent, pod)
}

// A PersistentVolume of another plugin is left to the kubelet that runs the pod; the CSI volumes of that pod are
// mounted nevertheless.
func TestOtherPersistentVolumesAreLeftAlone(t *testing.T) {
	w := newWorld(t, noAttach)
	w.volume("data", func(pv *corev1.PersistentVolume) { pv.Annotations = map[string]string{groupAnnotation: "4711"} })
	w.volume("share", func(pv *corev1.PersistentVolume) {
		pv.Annotations = map[string]string{groupAnnotation: "everybody"}
		pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nfs", Path: "/"}}
	})
	agent, _ := w.agent()
	pod := w.pod("p", "data", "share")
	agent.SetPod(pod)
	mounts := w.mounted(agent, pod)
	if len(mounts) != 2 {
		t.Fatalf("mounted are %+v", mounts)
	}
	if m := mounts[0]; m.VolumeName != "data" || m.PersistentVolume != nil || m.SupplementalGroup == nil || *m.SupplementalGroup != 4711 {
		t.Errorf("the CSI volume is %+v", m)
	}
	if m := mounts[1]; m.VolumeName != "share" || m.Path != "" || m.PersistentVolume.Spec.NFS.Server != "nfs" || m.SupplementalGroup != nil {
		t.Errorf("the other volume is %+v", m)
	}
	w.untilEvent(pod, "VolumeNotMounted", `Volume "share"`, "(nfs)", "leaves it to the program that runs")
}

// placesOf leaves out what hosts of virtual machines need besides.
func placesOf(mounts []Mount) []Mount {
	var places []Mount
	for _, m := range mounts {
		places = append(places, Mount{VolumeName: m.VolumeName, Path: m.Path, Block: m.Block, ReadOnly: m.ReadOnly, SELinuxLabel: m.SELinuxLabel})
	}
	return places
}

// terminating creates a pod that is being deleted and that a finalizer keeps.
func (w *world) terminating(pod *corev1.Pod) *corev1.Pod {
	w.Helper()
	pods := w.admin.CoreV1().Pods(w.name)
	must(w, pods.Delete(w.ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(30))}))
	pod, err := pods.Get(w.ctx, pod.Name, metav1.GetOptions{})
	must(w, err)
	if pod.DeletionTimestamp == nil {
		w.Fatal("the pod is not being deleted")
	}
	return pod
}

func TestTerminatingPodGetsNoFirstMount(t *testing.T) {
	for name, before := range map[string]bool{"when it is seen first": false, "while it waits for the attach": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			handle := w.volume("data")
			agent, _ := w.agent()
			pod := w.pod("p", "data")
			if before {
				agent.SetPod(pod)
				w.untilInUse(handle)
			}
			pod = w.terminating(pod)
			agent.SetPod(pod)
			var refused *RefusedError
			if err := w.waitSays(agent, pod, "is being deleted"); !errors.As(err, &refused) {
				t.Errorf("the wait for its volumes ends with %v", err)
			}
			w.untilNotInUse(handle)
			if made := w.driver.Made(); len(made) > 0 {
				t.Errorf("called: %v", made)
			}
		})
	}
	t.Run("what it has stays through a restart", func(t *testing.T) {
		w := newWorld(t)
		l := w.live()
		pod := w.terminating(l.pod)
		l.agent.SetPod(pod)
		l.stop()
		agent, _ := w.agent()
		agent.SetPod(pod)
		agent.PodsSynced()
		w.mounted(agent, pod)
		w.callsAre("Stage data", "Publish data")
	})
}

// After a restart a claim that cannot be used does not block another volume of its pod: that volume is republished.
func TestLostClaimDoesNotBlockOtherVolumes(t *testing.T) {
	w := newWorld(t, noAttach, republishes)
	w.volume("data")
	w.volume("other")
	agent, stop := w.agent()
	pod := w.pod("p", "data", "other")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	stop()
	claims := w.admin.CoreV1().PersistentVolumeClaims(w.name)
	claim, err := claims.Get(w.ctx, "other", metav1.GetOptions{})
	must(t, err)
	claim.Status.Phase = corev1.ClaimLost
	_, err = claims.UpdateStatus(w.ctx, claim, metav1.UpdateOptions{})
	must(t, err)
	before := w.driver.Count("Publish", "data")
	agent, _ = w.agent(every(20 * time.Millisecond))
	agent.SetPod(pod)
	agent.PodsSynced()
	w.untilPublished(before + 2)
	err = w.waitSays(agent, pod, "is not bound")
	if wait, ok := errors.AsType[*WaitError](err); !ok || wait.Volumes[0].Reason != ClaimNotReady {
		t.Errorf("the pod waits with %v", err)
	}
	if made := w.driver.Made(); slices.Contains(made, "Unpublish other") {
		t.Errorf("the volume of the lost claim was taken down: %v", made)
	}
}
