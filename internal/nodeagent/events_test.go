package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/testing/wait"
)

// TestLongWaitEmitsEvents: no call failed, and still the pod makes no progress. The event names the condition and since
// when the pod waits.
func TestLongWaitEmitsEvents(t *testing.T) {
	tests := map[string]struct {
		change func(*storagev1.CSIDriver)
		wait   func(w *world, agent *Agent) *corev1.Pod
		words  []string
		atOnce bool
	}{
		"attached by nobody": {nil, func(w *world, agent *Agent) *corev1.Pod {
			handle := w.volume("data")
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			w.untilInUse(handle)
			return pod
		}, []string{"FailedMount: MountVolume.WaitForAttach failed", "waiting since ", "Volume not attached according to node status", "(NotAttached)"}, false},
		"no driver": {noAttach, func(w *world, agent *Agent) *corev1.Pod {
			w.driver.Stop()
			w.volume("data")
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			return pod
		}, []string{"FailedMount: MountVolume.MountDevice failed", "waiting since ", "the driver is not registered on this node: driver name ", " not found in the list of registered CSI drivers (DriverNotRegistered)"}, false},
		"another pod has it for itself": {noAttach, func(w *world, agent *Agent) *corev1.Pod {
			w.volume("data", func(pv *corev1.PersistentVolume) {
				pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
			})
			first, second := w.pod("first", "data"), w.pod("second", "data")
			agent.SetPod(first)
			w.mounted(agent, first)
			agent.SetPod(second)
			return second
		}, []string{
			`FailedMount: MountVolume.SetUp failed for volume "`, `-data" : volume uses the ReadWriteOncePod access mode and is already in use by another pod (`, `/first); waiting since `, `(OtherPodMounted)`,
		}, true},
		"another pod has the block volume for itself": {noAttach, func(w *world, agent *Agent) *corev1.Pod {
			w.volume("data", blockVolume, accessModes(corev1.ReadWriteOncePod))
			first, second := w.podWith("first", asDevice, "data"), w.podWith("second", asDevice, "data")
			agent.SetPod(first)
			w.mounted(agent, first)
			agent.SetPod(second)
			return second
		}, []string{
			`FailedMapVolume: MapVolume.SetUpDevice failed for volume "`, `-data" : volume uses the ReadWriteOncePod access mode and is already in use by another pod (`, `/first); waiting since `, `(OtherPodMounted)`,
		}, true},
		"no claim": {noAttach, func(w *world, agent *Agent) *corev1.Pod {
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			return pod
		}, []string{"FailedMount: Unable to attach or mount volumes", "waiting since ", "not found", "(ClaimNotReady)"}, false},
		"the driver is gone before the unpublish": {noAttach, func(w *world, agent *Agent) *corev1.Pod {
			w.volume("data")
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			w.mounted(agent, pod)
			w.goneDriver(agent)
			agent.RemovePod(pod.UID)
			return pod
		}, []string{"FailedUnmount: UnmountVolume.TearDown for volume ", "has been waiting since", "the driver is not registered on this node", "(DriverNotRegistered)"}, false},
		"the driver is gone before the unstage": {nil, func(w *world, agent *Agent) *corev1.Pod {
			handle := w.volume("data")
			pod := w.pod("p", "data")
			w.bringUp(agent, pod, handle)
			w.driver.Intercept(func(call string, _ any, do func() (any, error)) (any, error) {
				if call == "NodeUnstageVolume" {
					return nil, status.Error(codes.Internal, "no luck")
				}
				return do()
			})
			agent.RemovePod(pod.UID)
			w.untilEvent(pod, "UnmountDevice failed")
			w.goneDriver(agent)
			return pod
		}, []string{"FailedUnmount: UnmountDevice for volume ", "has been waiting since", "the driver is not registered on this node", "(DriverNotRegistered)"}, false},
	}
	since := regexp.MustCompile(` since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ(: | \()`)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var options []func(*storagev1.CSIDriver)
			if test.change != nil {
				options = append(options, test.change)
			}
			w := newWorld(t, options...)
			agent, _ := w.agent(func(c *Config) {
				c.waitEventDelay, c.claimEventDelay = 500*time.Millisecond, 500*time.Millisecond
				if test.atOnce {
					c.waitEventDelay = time.Hour
				}
			})
			w.driver.Registered()
			pod := test.wait(w, agent)
			w.untilEvent(pod, append(test.words, " since 20")...)
			events, err := w.admin.CoreV1().Events(w.name).List(w.ctx, metav1.ListOptions{})
			must(t, err)
			for _, e := range events.Items {
				if e.InvolvedObject.UID == pod.UID && e.Count > 3 {
					t.Errorf("%d events: %s", e.Count, e.Message)
				}
				if regexp.MustCompile(`waiting`).MatchString(e.Message) && !since.MatchString(e.Message) {
					t.Errorf("no time in %q", e.Message)
				}
			}
		})
	}
}

// goneDriver stops the driver and waits until the agent knows.
func (w *world) goneDriver(agent *Agent) {
	w.driver.Stop()
	wait.Until(w, "the driver is gone", func() bool {
		client, _ := agent.plugins.Registered(w.driverName())
		return client == nil
	})
}

func TestEventDedup(t *testing.T) {
	var last eventDedup
	begin := time.Unix(0, 0)
	var got []string
	for minute := range 50 {
		text := "first"
		if minute == 3 {
			text = "second"
		}
		if last.isNew(text, begin.Add(time.Duration(minute)*time.Minute)) {
			got = append(got, fmt.Sprintf("%d %s", minute, text))
		}
	}
	if want := "[0 first 3 second 4 first 24 first 44 first]"; fmt.Sprint(got) != want {
		t.Errorf("new at %v, want %s", got, want)
	}
}

// TestRepeatedFailureIsReportedOnce: with the time of the first failure in a row, so that the text stays the same.
func TestRepeatedFailureIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := record.NewFakeRecorder(20)
		pods := newPodManager(Config{}, nil, nil, newSchedule(), nil, podHandlers{})
		defer pods.queue.ShutDown()
		pods.known["p"] = newPod()
		volumes := newVolumeManager(surroundings{config: Config{NodeName: "n"}, events: events, volumes: newVolumeSet(), pods: pods})
		defer volumes.shutDown()
		v, key := &volume{name: "v"}, nodevolume.PublishKey{PodUID: "p", SpecName: "pv"}
		v.state.Stage.Record.Pod.Name, v.ensurePod(key).Record.Pod.Name = "p", "p"
		stage, publish, unpublish := nodevolume.StageVolume{For: key}, nodevolume.Publish{Key: key}, nodevolume.Unpublish{Key: key}
		step := func(step nodevolume.Step, problem string) {
			volumes.finishStep(t.Context(), v, step, errors.New(problem))
			time.Sleep(time.Minute)
		}
		unstage := func(problem string) {
			volumes.mu.Lock()
			defer volumes.mu.Unlock()
			v.state.Failed(nodevolume.Unstage{}, time.Now(), 0, false)
			volumes.reports.unstageFailed(v, errors.New(problem))
		}
		for range 3 {
			step(stage, "no pool")
		}
		step(stage, "no disk")   // since minute 0 as well
		step(publish, "no path") // minute 4
		volumes.finishStep(t.Context(), v, publish, nil)
		step(publish, "no path") // minute 5
		volumes.finishStep(t.Context(), v, publish, nil)
		step(unpublish, "busy") // minute 6
		unstage("held")         // minute 7
		time.Sleep(time.Minute)
		unstage("held")
		unstage("still held")
		close(events.Events)
		var got []string
		for event := range events.Events {
			got = append(got, event)
		}
		begun := time.Now().Truncate(24 * time.Hour)
		failed := func(step string, minute int) explain.NodeStep {
			return explain.NodeStep{Step: step, Volume: "pv", Since: begun.Add(time.Duration(minute) * time.Minute)}
		}
		forth := func(step string, minute int, problem string) string {
			reason, text := failed(step, minute).Failed(problem)
			return "Warning " + reason + " " + text
		}
		back := func(step string, minute int, problem string) string {
			return "Warning FailedUnmount " + failed(step, minute).StaysInUse("n", problem)
		}
		want := []string{
			forth(stepMountDevice, 0, "no pool"), forth(stepMountDevice, 0, "no disk"), forth(stepSetUp, 4, "no path"), forth(stepSetUp, 5, "no path"),
			// Failures to unmount emit an event on the Node as well.
			back(stepUnpublish, 6, "busy"), back(stepUnpublish, 6, "busy"),
			back(stepUnstage, 7, "held"), back(stepUnstage, 7, "held"), back(stepUnstage, 7, "still held"), back(stepUnstage, 7, "still held"),
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// TestExpansionFailureIsReportedToEachPod: once, and not if the agent stops during the attempt.
func TestExpansionFailureIsReportedToEachPod(t *testing.T) {
	events := record.NewFakeRecorder(20)
	pods := newPodManager(Config{}, nil, nil, newSchedule(), nil, podHandlers{})
	defer pods.queue.ShutDown()
	volumes := newVolumeManager(surroundings{events: events, volumes: newVolumeSet(), pods: pods})
	defer volumes.shutDown()
	v := &volume{name: "v"}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	fails := func(ctx context.Context, pod types.UID) int {
		key := nodevolume.PublishKey{PodUID: string(pod), SpecName: "pv"}
		v.ensurePod(key).toMount = &volumeToMount{specName: "pv", pod: podIdentity{UID: pod, Name: string(pod)}}
		volumes.growth.expansionFailed(ctx, &expansion{v: v, key: key, waits: true}, errors.New("too large"))
		return len(events.Events)
	}
	got := []int{fails(stopped, "a"), fails(t.Context(), "a"), fails(t.Context(), "a"), fails(t.Context(), "b"), fails(t.Context(), "b")}
	if diff := cmp.Diff([]int{0, 1, 1, 2, 2}, got); diff != "" {
		t.Errorf("events so far (-want +got):\n%s", diff)
	}
	if v.state.Growth.Failure.Count != 4 {
		t.Errorf("%d failures, want 4", v.state.Growth.Failure.Count)
	}
}

// TestVolumeNotAllowedOnThisNode: nothing is called, and the pod gets kubelet's message, with one reason for both kinds
// of volumes.
func TestVolumeNotAllowedOnThisNode(t *testing.T) {
	stages := []csispec.NodeServiceCapability_RPC_Type{stageCapability}
	elsewhere := func(pv *corev1.PersistentVolume) {
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"z"}}},
		}}}}
	}
	tests := map[string]struct {
		caps  []csispec.NodeServiceCapability_RPC_Type
		pv    []volumeOptions
		pod   func(*corev1.Pod)
		says  string
		call  string
		calls []string
	}{
		"staged":         {stages, nil, nil, "MountVolume", "stage", []string{"Stage data", "Publish data"}},
		"published only": {nil, nil, nil, "MountVolume", "publish", []string{"Publish data"}},
		"a block volume": {stages, []volumeOptions{blockVolume}, asDevice, "MapVolume", "stage", []string{"Stage data", "Publish data"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, noAttach)
			w.driver.NodeServices = test.caps
			if test.caps == nil { // and there is no topology: a Node without labels is one that is known
				w.driver.NodeInfo = &csispec.NodeGetInfoResponse{NodeId: "n"}
			}
			w.volume("data", append(test.pv, elsewhere)...)
			agent, _ := w.agent()
			pod := w.podWith("p", test.pod, "data")
			agent.SetPod(pod)
			w.untilEvent(pod, "FailedMount: "+test.says+`.NodeAffinity check failed for volume "`+w.name+`-data" : no matching NodeSelectorTerms (`+test.call+" failing since 20")
			w.callsAre()
			w.changeNode(func(node *corev1.Node) { metav1.SetMetaDataLabel(&node.ObjectMeta, "zone", "z") })
			w.mounted(agent, pod)
			w.callsAre(test.calls...)
		})
	}
}

// TestBlockVolumeEmitsOneEvent when it is mapped, and none when its publish is renewed.
func TestBlockVolumeEmitsOneEvent(t *testing.T) {
	dir := t.TempDir()
	root, err := mount.OpenRoot(dir, func() ([]string, error) { return nil, nil })
	must(t, err)
	defer root.Close()
	events := record.NewFakeRecorder(20)
	volumes := newVolumeManager(surroundings{root: root, events: events, volumes: newVolumeSet()})
	defer volumes.shutDown()
	c := driverCall{toMount: &volumeToMount{block: true, specName: "pv", pod: podIdentity{UID: "uid"}}}
	r := nodevolume.Record{SpecName: "pv", Path: "device", Pod: nodevolume.RecordPod{UID: "uid"}}
	must(t, volumes.finishPublish(t.Context(), c, r))
	r.Confirmed = true
	must(t, volumes.finishPublish(t.Context(), c, r))
	if len(events.Events) != 1 {
		t.Fatalf("%d events, want one", len(events.Events))
	}
	want := "Normal SuccessfulMountVolume " + explain.Mapped("pv", dir+"/pods/uid/volumeDevices/kubernetes.io~csi")
	if got := <-events.Events; got != want {
		t.Errorf("event %s, want %s", got, want)
	}
}
