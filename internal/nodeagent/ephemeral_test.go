package nodeagent

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

// useLater has an ephemeral container of a running pod use a volume.
func (w *world) useLater(pod *corev1.Pod, volume string) *corev1.Pod {
	w.Helper()
	later := pod.DeepCopy()
	later.Spec.EphemeralContainers = append(later.Spec.EphemeralContainers, corev1.EphemeralContainer{
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "debug-" + volume, Image: "none", VolumeMounts: []corev1.VolumeMount{{Name: volume, MountPath: "/" + volume}},
		},
	})
	later, err := w.admin.CoreV1().Pods(w.name).UpdateEphemeralContainers(w.ctx, pod.Name, later, metav1.UpdateOptions{})
	must(w, err)
	later.Generation = pod.Generation // API servers of old do not count
	return later
}

// onlyFirst has a pod's container use the first volume alone.
func onlyFirst(p *corev1.Pod) {
	p.Spec.Containers[0].VolumeMounts = p.Spec.Containers[0].VolumeMounts[:1]
}

func names(mounts []Mount) []string {
	var out []string
	for _, m := range mounts {
		out = append(out, m.VolumeName)
	}
	slices.Sort(out)
	return out
}

// TestVolumeUsedOnlyByEphemeralContainer: the volume is mounted when the ephemeral container is added.
func TestVolumeUsedOnlyByEphemeralContainer(t *testing.T) {
	t.Run("while the pod runs", func(t *testing.T) {
		w := newWorld(t, noAttach)
		w.volume("used")
		w.volume("later")
		agent, _ := w.agent()
		pod := w.podWith("p", onlyFirst, "used", "later")
		agent.SetPod(pod)
		if got := names(w.mounted(agent, pod)); !slices.Equal(got, []string{"used"}) {
			t.Errorf("mounted is %q before the container came", got)
		}
		pod = w.useLater(pod, "later")
		agent.SetPod(pod)
		if got := names(w.mounted(agent, pod)); !slices.Equal(got, []string{"later", "used"}) {
			t.Errorf("mounted is %q after the container came", got)
		}
		agent.SetPod(pod)
		agent.RemovePod(pod.UID)
		w.unmounted(agent, pod)
		wait.Until(w, "all is undone", func() bool { return len(w.leftovers()) == 0 && len(agent.Pods()) == 0 })
		for _, volume := range []string{"used", "later"} {
			if diff := cmp.Diff([]string{"Stage", "Publish", "Unpublish", "Unstage"}, w.callsOf(volume)); diff != "" {
				t.Errorf("calls for %s (-want +got):\n%s", volume, diff)
			}
		}
	})
	t.Run("its claim is not there yet", func(t *testing.T) {
		w := newWorld(t, noAttach)
		w.volume("used")
		agent, _ := w.agent()
		pod := w.podWith("p", onlyFirst, "used", "later")
		agent.SetPod(pod)
		w.mounted(agent, pod)
		pod = w.useLater(pod, "later")
		agent.SetPod(pod)
		w.waitSays(agent, pod, "(ClaimNotReady)")
		w.callsAre("Stage used", "Publish used") // the pod runs, whatever becomes of the container
		w.volume("later")
		w.mounted(agent, pod)
		w.callsAre("Stage used", "Publish used", "Stage later", "Publish later")
	})
	t.Run("while the pod's claims are read", func(t *testing.T) {
		w := newWorld(t, noAttach)
		w.volume("used")
		w.volume("later")
		reached, release := make(chan struct{}, 100), make(chan struct{})
		w.nodeID.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				if strings.HasSuffix(r.URL.Path, "/persistentvolumeclaims/used") {
					reached <- struct{}{}
					<-release
				}
				return next.RoundTrip(r)
			})
		})
		agent, _ := w.agent()
		pod := w.podWith("p", onlyFirst, "used", "later")
		agent.SetPod(pod)
		wait.For(t, "the call to arrive", reached)
		pod = w.useLater(pod, "later")
		agent.SetPod(pod)
		close(release)
		if got := names(w.mounted(agent, pod)); !slices.Equal(got, []string{"later", "used"}) {
			t.Errorf("mounted is %q", got)
		}
	})
	t.Run("it uses what may not be used so", func(t *testing.T) {
		w := newWorld(t, noAttach)
		w.volume("used")
		w.volume("later", blockVolume)
		agent, _ := w.agent()
		pod := w.podWith("p", onlyFirst, "used", "later")
		agent.SetPod(pod)
		w.mounted(agent, pod)
		pod = w.useLater(pod, "later")
		agent.SetPod(pod)
		w.untilEvent(pod, "FailedMount", "has volumeMode Block, but is specified in volumeMounts")
		w.waitSays(agent, pod, "has volumeMode Block")
		w.callsAre("Stage used", "Publish used")
		agent.RemovePod(pod.UID)
		w.unmounted(agent, pod)
	})
}

// A claim that was created for a pod is expanded like any other.
func TestEphemeralVolumeClaimIsExpanded(t *testing.T) {
	w := newWorld(t, noAttach)
	w.driver.NodeServices = append(w.driver.NodeServices, csispec.NodeServiceCapability_RPC_EXPAND_VOLUME)
	pod := w.genericPod("p", false, "data")
	claims, volumes := w.admin.CoreV1().PersistentVolumeClaims(w.name), w.admin.CoreV1().PersistentVolumes()
	change := func(change func(*corev1.PersistentVolumeClaimStatus)) {
		claim, err := claims.Get(w.ctx, "p-data", metav1.GetOptions{})
		must(t, err)
		change(&claim.Status)
		_, err = claims.UpdateStatus(w.ctx, claim, metav1.UpdateOptions{})
		must(t, err)
	}
	change(func(s *corev1.PersistentVolumeClaimStatus) { s.Capacity = storage("1Gi") })
	agent, _ := w.agent(often)
	agent.SetPod(pod)
	w.mounted(agent, pod)
	pv, err := volumes.Get(w.ctx, w.name+"-p-data", metav1.GetOptions{})
	must(t, err)
	pv.Spec.Capacity = storage("2Gi")
	_, err = volumes.Update(w.ctx, pv, metav1.UpdateOptions{})
	must(t, err)
	change(func(s *corev1.PersistentVolumeClaimStatus) {
		s.AllocatedResources = storage("2Gi")
		setResizeStatus(s, corev1.PersistentVolumeClaimNodeResizePending)
	})
	w.untilEvent(pod, "FileSystemResizeSuccessful")
	if got := csidriver.LastRequest[*csispec.NodeExpandVolumeRequest](w.driver).CapacityRange.RequiredBytes; got != twoGi {
		t.Errorf("asked for %d bytes", got)
	}
}
