package nodeagent

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

// TestUpstreamVolumesOfPods are the populator's and the volume manager's tests, and those of
// the e2e suites that are about what pods ask for.
func TestUpstreamVolumesOfPods(t *testing.T) {
	t.Run("TestInitialPendingVolumesForPodAndGetVolumesInUse", func(t *testing.T) {
		w := newWorld(t)
		handle := w.volume("data")
		claims := w.admin.CoreV1().PersistentVolumeClaims(w.name)
		phase := func(phase corev1.PersistentVolumeClaimPhase) {
			claim, err := claims.Get(w.ctx, "data", metav1.GetOptions{})
			must(t, err)
			claim.Status.Phase = phase
			_, err = claims.UpdateStatus(w.ctx, claim, metav1.UpdateOptions{})
			must(t, err)
		}
		phase(corev1.ClaimPending)
		write := make(chan struct{}) // of the list of volumes in use
		w.nodeID.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPatch && r.URL.Path == "/api/v1/nodes/"+w.name+"/status" {
					select {
					case <-write:
					case <-r.Context().Done():
					}
				}
				return next.RoundTrip(r)
			})
		})
		agent, _ := w.agent()
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		wait.Until(w, "the claim is seen to be pending", func() bool {
			agent.pods.mu.Lock()
			defer agent.pods.mu.Unlock()
			return agent.pods.known[pod.UID].problem != nil
		})
		w.attach(handle) // as an earlier pod's volume may still be
		phase(corev1.ClaimBound)
		w.waitSays(agent, pod, string(nodevolume.NotReportedInUse))
		w.callsAre()
		close(write)
		w.mounted(agent, pod)
		w.untilInUse(handle)
	})
	t.Run("TestGetMountedVolumesForPodAndGetVolumesInUse", func(t *testing.T) {
		// It stays in use until it is unstaged, whatever else is written to the list.
		w := newWorld(t)
		l := w.live()
		calls, goOn := make(chan string, 10), make(chan struct{})
		w.driver.SetBefore(func(method, _ string, _ int) error {
			calls <- method
			select {
			case <-goOn:
			case <-w.ctx.Done():
			}
			return nil
		})
		l.agent.RemovePod(l.pod.UID)
		for _, want := range []string{"Unpublish", "Unstage"} {
			if got := wait.For(w, "the next call", calls); got != want {
				t.Errorf("%s, want %s", got, want)
			}
			w.writesListFor(l.agent, strings.ToLower(want))
			if got := w.detach(l.handle); !errors.Is(got, errStillInUse) {
				t.Fatalf("detach at %s: %v, want %v", want, got, errStillInUse)
			}
			goOn <- struct{}{}
		}
		w.untilNotInUse(l.handle)
	})
	t.Run("TestEphemeralVolumeOwnerCheck", func(t *testing.T) {
		w := newWorld(t, noAttach)
		w.volume("p-data") // the name of the claim that would be made for the pod
		agent, _ := w.agent()
		pod := w.podWith("p", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
				VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
				}},
			}}}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		})
		agent.SetPod(pod)
		w.waitSays(agent, pod, "was not created for pod p (pod is not its owner)")
		claims := w.admin.CoreV1().PersistentVolumeClaims(w.name)
		claim, err := claims.Get(w.ctx, "p-data", metav1.GetOptions{})
		must(t, err)
		claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))}
		_, err = claims.Update(w.ctx, claim, metav1.UpdateOptions{})
		must(t, err)
		w.mounted(agent, pod)
	})
	t.Run("should fail to use a volume in a pod with mismatched mode", func(t *testing.T) {
		for name, test := range map[string]struct {
			pv     volumeOptions
			pod    func(*corev1.Pod)
			refuse string
		}{
			"TestCreateVolumeSpec_Invalid_Block_VolumeMounts": {blockVolume, nil, "has volumeMode Block, but is specified in volumeMounts"},
			"TestCreateVolumeSpec_Invalid_File_VolumeDevices": {func(*corev1.PersistentVolume) {}, device, "has volumeMode Filesystem, but is specified in volumeDevices"},
		} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, noAttach)
				w.volume("data", test.pv)
				agent, _ := w.agent()
				pod := w.podWith("p", test.pod, "data")
				agent.SetPod(pod)
				w.untilEvent(pod, "FailedMount", test.refuse)
				w.callsAre()
			})
		}
	})
	t.Run("should not mount / map unused volumes in a pod", func(t *testing.T) {
		w := newWorld(t, noAttach)
		w.volume("used")
		w.volume("unused")
		w.volume("init")
		agent, _ := w.agent()
		pod := w.podWith("p", func(p *corev1.Pod) {
			mounts := p.Spec.Containers[0].VolumeMounts
			p.Spec.Containers[0].VolumeMounts = mounts[:1]
			p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "none", VolumeMounts: mounts[2:]}}
		}, "used", "unused", "init")
		agent.SetPod(pod)
		mounts := w.mounted(agent, pod)
		if len(mounts) != 2 || mounts[0].VolumeName != "used" || mounts[1].VolumeName != "init" {
			t.Errorf("mounted are %+v", mounts)
		}
		if calls := w.driver.Made(); slices.Contains(calls, "Stage unused") {
			t.Errorf("calls %v", calls)
		}
	})
}

// another names a second world of the same test.
type another struct{ testing.TB }

func (a another) Name() string { return a.TB.Name() + "-another" }

// TestUpstreamMultivolume is the e2e suite about one volume of several pods.
func TestUpstreamMultivolume(t *testing.T) {
	t.Run("should concurrently access the single read-only volume from pods on the same node", func(t *testing.T) {
		w := newWorld(t, noAttach)
		w.volume("data", accessModes(corev1.ReadOnlyMany))
		agent, _ := w.agent()
		readOnly := func(p *corev1.Pod) { p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true }
		pods := []*corev1.Pod{w.podWith("first", readOnly, "data"), w.podWith("second", readOnly, "data")}
		for _, pod := range pods {
			agent.SetPod(pod)
			if mounts := w.mounted(agent, pod); !mounts[0].ReadOnly || !csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver).Readonly {
				t.Errorf("pod %s may write: %+v", pod.Name, mounts)
			}
		}
		w.callsAre("Stage data", "Publish data")
	})
	t.Run("should concurrently access the single volume from pods on different node", func(t *testing.T) {
		here, there := newWorld(t, noAttach), newWorld(another{t})
		here.volume("data", accessModes(corev1.ReadWriteMany))
		same := there.startDriver(here.driverName())
		first, _ := here.agent()
		second, _ := there.agent(func(c *Config) { c.MountPoints = same.MountPoints })
		pod, other := here.pod("here", "data"), here.podWith("there", func(p *corev1.Pod) { p.Spec.NodeName = there.name }, "data")
		first.SetPod(pod)
		second.SetPod(other)
		here.mounted(first, pod)
		there.mounted(second, other)
		if calls := same.Made(); len(calls) != 2 {
			t.Errorf("calls on the other node %v, want a stage and a publish", calls)
		}
	})
}
