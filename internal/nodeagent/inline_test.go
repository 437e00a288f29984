package nodeagent

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

// modes are the kinds of volumes that the driver's CSIDriver lists.
func modes(list ...storagev1.VolumeLifecycleMode) func(*storagev1.CSIDriver) {
	return func(d *storagev1.CSIDriver) { d.Spec.VolumeLifecycleModes = list }
}

const (
	persistent = storagev1.VolumeLifecyclePersistent
	ephemeral  = storagev1.VolumeLifecycleEphemeral
)

// inlinePod creates a pod with inline volumes of the names.
func (w *world) inlinePod(name string, volumes ...string) *corev1.Pod {
	w.Helper()
	return w.podWith(name, w.addInline(nil, volumes...))
}

// addInline gives a pod inline volumes of the world's driver.
func (w *world) addInline(change func(*corev1.CSIVolumeSource), names ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, name := range names {
			source := &corev1.CSIVolumeSource{Driver: w.driverName(), VolumeAttributes: map[string]string{"flavor": name}}
			if change != nil {
				change(source)
			}
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{CSI: source}})
			p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
		}
	}
}

// inlineID is the handle that kubelet gives to an inline volume.
func inlineID(pod *corev1.Pod, volume string) string { return "csi-" + hash(string(pod.UID)+volume) }

// inlineTarget is where an inline volume is published.
func (w *world) inlineTarget(pod *corev1.Pod, volume string) string {
	return filepath.Join(w.root, "pods", string(pod.UID), "volumes/kubernetes.io~csi", volume, "mount")
}

// gone: the pods' volumes are unpublished and nothing of them is left.
func (w *world) gone(agent *Agent, pods ...*corev1.Pod) {
	w.Helper()
	for _, pod := range pods {
		agent.RemovePod(pod.UID)
	}
	for _, pod := range pods {
		w.unmounted(agent, pod)
	}
	w.untilForgotten(agent)
}

// TestCSIInlineVolumes is e2e csi_inline "should support CSIVolumeSource in Pod API" as a node sees it: the
// whole life of one, with a driver that attaches and stages its persistent volumes.
func TestCSIInlineVolumes(t *testing.T) {
	w := newWorld(t, modes(persistent, ephemeral), func(d *storagev1.CSIDriver) { d.Spec.PodInfoOnMount = new(true) })
	w.driver.NodeServices = append(w.driver.NodeServices, csispec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER, csispec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
	_, err := w.admin.CoreV1().Secrets(w.name).Create(w.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "key"}, StringData: map[string]string{"password": "hunter2"},
	}, metav1.CreateOptions{})
	must(t, err)
	agent, _ := w.agent()
	pod := w.podWith("p", func(p *corev1.Pod) {
		w.addInline(func(source *corev1.CSIVolumeSource) {
			source.FSType, source.ReadOnly = new("xfs"), new(true)
			source.NodePublishSecretRef = &corev1.LocalObjectReference{Name: "key"}
		}, "scratch")(p)
		p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(3000))}
		p.Spec.ServiceAccountName = "robot"
	})
	agent.SetPod(pod)
	target := w.inlineTarget(pod, "scratch")
	if diff := cmp.Diff([]Mount{{VolumeName: "scratch", Path: target, ReadOnly: true}}, placesOf(w.mounted(agent, pod))); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&csispec.NodePublishVolumeRequest{
		VolumeId: inlineID(pod, "scratch"), TargetPath: target, Readonly: true, Secrets: map[string]string{"password": "hunter2"},
		VolumeCapability: &csispec.VolumeCapability{
			AccessMode: &csispec.VolumeCapability_AccessMode{Mode: csispec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
			AccessType: &csispec.VolumeCapability_Mount{Mount: &csispec.VolumeCapability_MountVolume{FsType: "xfs", VolumeMountGroup: "3000"}},
		},
		VolumeContext: map[string]string{
			"flavor": "scratch", "csi.storage.k8s.io/pod.name": "p", "csi.storage.k8s.io/pod.namespace": w.name, "csi.storage.k8s.io/pod.uid": string(pod.UID),
			"csi.storage.k8s.io/serviceAccount.name": "robot", "csi.storage.k8s.io/ephemeral": "true",
		},
	}, csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver), protocmp.Transform()); diff != "" {
		t.Errorf("NodePublishVolume (-want +got):\n%s", diff)
	}
	wantData(t, filepath.Join(filepath.Dir(target), volumeData), map[string]string{
		"attachmentID": "csi-" + hash(inlineID(pod, "scratch")+w.driverName()+w.name), "driverName": w.driverName(), "nodeName": w.name,
		"specVolID": "scratch", "volumeHandle": inlineID(pod, "scratch"), "volumeLifecycleMode": "Ephemeral",
	})
	w.wantInlineRecord(pod, "scratch")
	w.gone(agent, pod)
	if diff := cmp.Diff([]string{"Publish " + inlineID(pod, "scratch"), "Unpublish " + inlineID(pod, "scratch")}, w.driver.Made()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if node := w.node(); len(node.Status.VolumesInUse) > 0 {
		t.Errorf("in use: %v", node.Status.VolumesInUse)
	}
}

// wantInlineRecord: one record, of a publish, that a restart can tell from others.
func (w *world) wantInlineRecord(pod *corev1.Pod, volume string) {
	w.Helper()
	files, err := filepath.Glob(filepath.Join(w.root, recordsDir, "*.json"))
	must(w, err)
	if len(files) != 1 {
		w.Fatalf("records: %v", files)
	}
	raw, err := os.ReadFile(files[0])
	must(w, err)
	got, err := nodevolume.DecodeRecord(raw)
	must(w, err)
	if got.InUse || !got.Inline || got.Kind != nodevolume.PublishKind || got.Version != nodevolume.RecordVersion || got.SpecName != volume ||
		got.Handle != inlineID(pod, volume) || got.Pod.UID != string(pod.UID) {
		w.Errorf("record %+v", got)
	}
}

// TestUpstreamEphemeral is the test suite ephemeral, for volumes of both kinds: inline ones, and generic ones whose
// claims were created for the pod.
func TestUpstreamEphemeral(t *testing.T) {
	kinds := map[string]func(w *world, pod string, readOnly bool, volumes ...string) *corev1.Pod{
		"CSI Ephemeral-volume": func(w *world, pod string, readOnly bool, volumes ...string) *corev1.Pod {
			return w.podWith(pod, w.addInline(func(source *corev1.CSIVolumeSource) { source.ReadOnly = &readOnly }, volumes...))
		},
		"Generic Ephemeral-volume": func(w *world, pod string, readOnly bool, volumes ...string) *corev1.Pod {
			return w.genericPod(pod, readOnly, volumes...)
		},
	}
	for kind, make := range kinds {
		t.Run(kind, func(t *testing.T) {
			for name, readOnly := range map[string]bool{
				"should create read-only inline ephemeral volume": true, "should create read/write inline ephemeral volume": false,
			} {
				t.Run(name, func(t *testing.T) {
					w := newWorld(t, noAttach, modes(persistent, ephemeral))
					agent, _ := w.agent()
					pod := make(w, "p", readOnly, "data")
					agent.SetPod(pod)
					mounts := w.mounted(agent, pod)
					generic := kind == "Generic Ephemeral-volume" // has no read-only; the container's mount may be
					asked := csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver)
					if want := readOnly && !generic; asked.Readonly != want || mounts[0].ReadOnly != want {
						t.Errorf("driver asked read-only %v, mount %+v", asked.Readonly, mounts[0])
					}
					agent.RemovePod(pod.UID)
					w.unmounted(agent, pod)
				})
			}
			t.Run("should support two pods which have the same volume definition", func(t *testing.T) {
				w := newWorld(t, noAttach, modes(persistent, ephemeral))
				agent, _ := w.agent()
				first, second := make(w, "first", false, "data"), make(w, "second", false, "data")
				agent.SetPod(first)
				agent.SetPod(second)
				one, other := w.mounted(agent, first), w.mounted(agent, second)
				if one[0].Path == other[0].Path {
					t.Errorf("both pods are mounted at %s", one[0].Path)
				}
				published := w.calledWith("Publish ")
				if len(published) != 2 || published[0] == published[1] {
					t.Errorf("two pods have volumes %v", published)
				}
				agent.RemovePod(first.UID)
				w.unmounted(agent, first)
				if still := w.mounted(agent, second); still[0].Path != other[0].Path {
					t.Errorf("the second pod's mount became %+v", still)
				}
				w.gone(agent, second)
				if diff := cmp.Diff(published, w.calledWith("Unpublish ")); diff != "" {
					t.Errorf("unpublished (-published +unpublished):\n%s", diff)
				}
			})
			t.Run("should support multiple inline ephemeral volumes", func(t *testing.T) {
				w := newWorld(t, noAttach, modes(persistent, ephemeral))
				agent, _ := w.agent()
				pod := make(w, "p", false, "one", "two", "three")
				agent.SetPod(pod)
				var names []string
				for _, m := range w.mounted(agent, pod) {
					names = append(names, m.VolumeName)
				}
				if diff := cmp.Diff([]string{"one", "two", "three"}, names); diff != "" {
					t.Errorf("mounts (-want +got):\n%s", diff)
				}
				w.gone(agent, pod)
			})
		})
	}
}

// calledWith are the volumes of all calls of a kind, sorted.
func (w *world) calledWith(method string) []string {
	var ids []string
	for _, call := range w.driver.Made() {
		if id, ok := strings.CutPrefix(call, method); ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// genericPod creates a pod with generic ephemeral volumes, and plays who makes their claims.
func (w *world) genericPod(name string, readOnly bool, volumes ...string) *corev1.Pod {
	w.Helper()
	pod := w.podWith(name, func(p *corev1.Pod) {
		for _, volume := range volumes {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
				Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
					Spec: corev1.PersistentVolumeClaimSpec{
						AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
						Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
					},
				}},
			}})
			p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts,
				corev1.VolumeMount{Name: volume, MountPath: "/" + volume, ReadOnly: readOnly})
		}
	})
	for _, volume := range volumes {
		w.volume(name + "-" + volume)
		claims := w.admin.CoreV1().PersistentVolumeClaims(w.name)
		claim, err := claims.Get(w.ctx, name+"-"+volume, metav1.GetOptions{})
		must(w, err)
		claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))}
		_, err = claims.Update(w.ctx, claim, metav1.UpdateOptions{})
		must(w, err)
	}
	return pod
}

// TestUpstreamAttachOfEphemeral is what of e2e csi_attach_volume concerns volumes that live as long as their pod.
func TestUpstreamAttachOfEphemeral(t *testing.T) {
	t.Run("should require VolumeAttach for ephemermal volume and drivers with attachment", func(t *testing.T) {
		w := newWorld(t, modes(persistent, ephemeral))
		agent, _ := w.agent()
		pod := w.genericPod("p", false, "data")
		handle := "h-" + w.name + "-p-data"
		agent.SetPod(pod)
		w.waitSays(agent, pod, string(nodevolume.NotAttached))
		w.untilInUse(handle)
		w.attach(handle)
		w.mounted(agent, pod)
		agent.RemovePod(pod.UID)
		w.untilNotInUse(handle)
	})
}

// TestVolumeLifecycleModes: an inline volume goes to drivers that say they have such, and to no others.
func TestVolumeLifecycleModes(t *testing.T) {
	t.Run("driver of persistent volumes only", func(t *testing.T) {
		w := newWorld(t)
		w.csiDriver(noAttach, modes(persistent))
		w.refusesInline(`volume mode "Ephemeral" not supported by driver ` + w.driverName() + ` (only supports ["Persistent"])`)
	})
	t.Run("no CSIDriver object, and then one", func(t *testing.T) {
		w := newWorld(t)
		agent, pod := w.refusesInline(`volume mode "Ephemeral" not supported by driver ` + w.driverName() + ` (no CSIDriver object)`)
		w.csiDriver(modes(ephemeral))
		w.mounted(agent, pod)
		w.gone(agent, pod)
	})
	t.Run("driver of inline volumes only", func(t *testing.T) {
		w := newWorld(t, noAttach, modes(ephemeral))
		w.volume("data")
		agent, _ := w.agent()
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		w.untilEvent(pod, "FailedMount", `MountVolume.SetUp failed for volume "`+w.name+`-data" :`,
			`volume mode "Persistent" not supported by driver `+w.driverName()+` (only supports ["Ephemeral"])`)
		if calls := w.driver.Made(); slices.Contains(calls, "Publish data") {
			t.Errorf("calls %v", calls)
		}
	})
	t.Run("block volume: nobody asks", func(t *testing.T) {
		w := newWorld(t, noAttach, modes(ephemeral))
		w.volume("disk", func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) })
		agent, _ := w.agent()
		pod := w.podWith("p", func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts = nil
			p.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "disk", DevicePath: "/dev/xvda"}}
		}, "disk")
		agent.SetPod(pod)
		w.mounted(agent, pod)
	})
	t.Run("driver of both, both in one pod", func(t *testing.T) {
		w := newWorld(t, modes(persistent, ephemeral))
		handle := w.volume("data")
		agent, _ := w.agent()
		pod := w.podWith("p", w.addInline(nil, "scratch"), "data")
		agent.SetPod(pod)
		wait.Until(w, "the inline volume is there while the other one waits for its attach", func() bool {
			return slices.Contains(w.driver.Made(), "Publish "+inlineID(pod, "scratch"))
		})
		w.untilInUse(handle)
		w.attach(handle)
		w.mounted(agent, pod)
		if diff := cmp.Diff([]corev1.UniqueVolumeName{w.unique(handle)}, w.node().Status.VolumesInUse); diff != "" {
			t.Errorf("in use (-want +got):\n%s", diff)
		}
		agent.RemovePod(pod.UID)
		w.untilNotInUse(handle)
		w.gone(agent, pod)
	})
}

// refusesInline: the pod's inline volume is not published, for the reason.
func (w *world) refusesInline(why string) (*Agent, *corev1.Pod) {
	w.Helper()
	agent, _ := w.agent()
	pod := w.inlinePod("p", "scratch")
	agent.SetPod(pod)
	w.untilEvent(pod, "FailedMount", `MountVolume.SetUp failed for volume "scratch" :`, why)
	w.waitSays(agent, pod, why)
	if calls := w.driver.Made(); len(calls) > 0 {
		w.Errorf("calls %v", calls)
	}
	return agent, pod
}

// TestInlineVolumeWaitsForItsSecret: the reference is to the pod's own namespace, and the Secret may be created later.
func TestInlineVolumeWaitsForItsSecret(t *testing.T) {
	w := newWorld(t, modes(ephemeral))
	agent, _ := w.agent()
	pod := w.podWith("p", w.addInline(func(source *corev1.CSIVolumeSource) {
		source.NodePublishSecretRef = &corev1.LocalObjectReference{Name: "key"}
	}, "scratch"))
	agent.SetPod(pod)
	w.untilEvent(pod, "FailedMount", `MountVolume.SetUp failed for volume "scratch" :`, w.name+"/key")
	if calls := w.driver.Made(); len(calls) > 0 {
		t.Errorf("calls %v", calls)
	}
	_, err := w.admin.CoreV1().Secrets(w.name).Create(w.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "key"}, StringData: map[string]string{"password": "hunter2"},
	}, metav1.CreateOptions{})
	must(t, err)
	w.mounted(agent, pod)
	if got := csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver).Secrets["password"]; got != "hunter2" {
		t.Error("published without its secret")
	}
}

// TestInlineVolumeNamedLikePersistentVolume: both would be published at the same path.
func TestInlineVolumeNamedLikePersistentVolume(t *testing.T) {
	w := newWorld(t, noAttach, modes(persistent, ephemeral))
	w.volume("data")
	agent, _ := w.agent()
	pod := w.podWith("p", w.addInline(nil, w.name+"-data"), "data")
	agent.SetPod(pod)
	w.untilEvent(pod, "FailedMount", `volumes "data" and "`+w.name+`-data" would be published at the same path`)
	agent.volumes.mu.Lock()
	defer agent.volumes.mu.Unlock()
	if len(agent.volumes.all) > 0 {
		t.Errorf("volumes of the pod are worked on: %v", slices.Collect(maps.Keys(agent.volumes.all)))
	}
}

// TestInlineVolumeUnknownToItsDriver: only this node has it, so nothing is left to unpublish (k/k#90752). For a
// persistent volume the same answer may mean that the driver lost its state.
func TestInlineVolumeUnknownToItsDriver(t *testing.T) {
	unknown := func(method, _ string, attempt int) error {
		if method == "Unpublish" && attempt <= 2 {
			return status.Error(codes.NotFound, "no such volume")
		}
		return nil
	}
	t.Run("inline", func(t *testing.T) {
		w := newWorld(t, modes(ephemeral))
		agent, _ := w.agent()
		pod := w.inlinePod("p", "scratch")
		agent.SetPod(pod)
		w.mounted(agent, pod)
		w.driver.LoseMounts()
		w.driver.SetBefore(unknown)
		w.gone(agent, pod)
		if calls := w.driver.Made(); len(calls) != 2 {
			t.Errorf("calls %v", calls)
		}
	})
	t.Run("inline, and it is mounted still", func(t *testing.T) {
		w := newWorld(t, modes(ephemeral))
		agent, _ := w.agent()
		pod := w.inlinePod("p", "scratch")
		agent.SetPod(pod)
		w.mounted(agent, pod)
		w.driver.SetBefore(unknown)
		agent.RemovePod(pod.UID)
		w.untilEvent(pod, "FailedUnmount", `"scratch"`, "mounted")
		w.gone(agent, pod) // at the third call
		if calls := w.driver.Made(); len(calls) != 4 {
			t.Errorf("calls %v", calls)
		}
	})
	t.Run("persistent", func(t *testing.T) {
		w := newWorld(t)
		l := w.live()
		w.driver.LoseMounts()
		w.driver.SetBefore(unknown)
		l.agent.RemovePod(l.pod.UID)
		w.untilEvent(l.pod, "FailedUnmount", "no such volume", "stays in use")
		if got := w.detach(l.handle); !errors.Is(got, errStillInUse) {
			t.Errorf("detach: %v, want %v", got, errStillInUse)
		}
		w.untilNotInUse(l.handle)
		if diff := cmp.Diff([]string{"Stage data", "Publish data", "Unpublish data", "Unpublish data", "Unpublish data", "Unstage data"}, w.driver.Made()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

// TestInlineVolumeWaitReason: the first step of an inline volume is the publish, and kubelet's events report that.
func TestInlineVolumeWaitReason(t *testing.T) {
	events := record.NewFakeRecorder(1)
	pods := newPodManager(Config{}, nil, nil, newSchedule(), nil, podHandlers{})
	defer pods.queue.ShutDown()
	reports := &reports{events: events, pods: pods}
	v := &volume{state: nodevolume.VolumeState{Inline: true}}
	p := v.ensurePod(nodevolume.PublishKey{PodUID: "u", SpecName: "scratch"})
	p.toMount = &volumeToMount{inline: true, specName: "scratch"}
	reports.emitLongWait(v, nodevolume.Wait{Key: p.Key, Reason: nodevolume.DriverNotRegistered}, time.Now())
	if got := <-events.Events; !strings.HasPrefix(got, `Warning FailedMount MountVolume.SetUp failed for volume "scratch" :`) {
		t.Errorf("the event says: %s", got)
	}
}

// TestInlineWorkloadInformation is what e2e csi_workload asks of inline volumes, and of updates while pods come and go.
func TestInlineWorkloadInformation(t *testing.T) {
	podInfo := func(is bool) func(*storagev1.CSIDriver) {
		return func(d *storagev1.CSIDriver) { d.Spec.PodInfoOnMount = &is }
	}
	tests := map[string][]bool{ // podInfoOnMount, one pod after the other
		"contain ephemeral=true when using inline volume":     {true},
		"should not be passed when podInfoOnMount=false":      {false},
		"should not be passed when update from true to false": {true, false},
		"should be passed when update from false to true":     {false, true},
	}
	for name, values := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, modes(ephemeral), podInfo(values[0]))
			agent, _ := w.agent()
			var pods []*corev1.Pod
			for i, passed := range values {
				if i > 0 {
					w.updateCSIDriver(agent, podInfo(passed))
				}
				pod := w.inlinePod(fmt.Sprintf("p-%d", i), "scratch")
				agent.SetPod(pod)
				w.mounted(agent, pod)
				want := map[string]string{"flavor": "scratch"}
				if passed {
					want = map[string]string{
						"flavor": "scratch", "csi.storage.k8s.io/pod.name": pod.Name, "csi.storage.k8s.io/pod.namespace": w.name,
						"csi.storage.k8s.io/pod.uid": string(pod.UID), "csi.storage.k8s.io/serviceAccount.name": "", "csi.storage.k8s.io/ephemeral": "true",
					}
				}
				wantContext(t, "publish", want, csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver).VolumeContext)
				pods = append(pods, pod)
			}
			w.gone(agent, pods...)
		})
	}
}
