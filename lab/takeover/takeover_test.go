package takeover

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

const (
	// watchFor is how long each new controller is watched after it has proved that it acts. Upstream's verifies all
	// attached volumes once a minute.
	watchFor = 65 * time.Second
	// longestGap between two records of a pod, which writes two a second. The pods know
	// nothing of the controllers; the rest is for a loaded machine.
	longestGap = 10 * time.Second
	// perVolume bounds the time that upstream's plane and two kubelets take for one.
	perVolume = 3 * time.Second
)

// TestTakeOverAndBack is the promise to operators who change the controller on a live cluster.
func TestTakeOverAndBack(t *testing.T) {
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: the take-over of a live lab belongs to the long tests")
	}
	if kind, because := cluster.DefaultNodeKind(); kind != cluster.NodeKindKubelet {
		t.Skip("NOT RUN: " + because)
	}
	pods := labtest.Number(t, "BELAY_TAKEOVER_PODS", 20)
	volumes := labtest.Number(t, "BELAY_TAKEOVER_VOLUMES", 10)
	ctx := t.Context()
	scene := labtest.Open(t, cluster.Options{
		Name: "takeover", Nodes: 2, NodeKind: cluster.NodeKindKubelet, Plane: cluster.PlaneBelay, Drivers: []string{labdisk.DriverDisk},
	})
	if err := scene.Cluster.SwitchController(ctx, cluster.PlaneUpstream); err != nil {
		t.Fatal(err)
	}
	nodes := []string{"node-1", "node-2"}
	within := 2*time.Minute + time.Duration(pods*volumes)*perVolume
	began := time.Now()
	crowd, err := scene.NewCrowd(ctx, scenario.CrowdOptions{Name: "crowd", Pods: pods, VolumesPerPod: volumes, Nodes: nodes}, within)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d volumes of %d pods attached and mounted through upstream's controller after %.0f s",
		len(crowd.Handles), pods, time.Since(began).Seconds())
	for turn, to := range []string{cluster.PlaneBelay, cluster.PlaneUpstream} {
		if !t.Run("to "+to, func(t *testing.T) { handOver(t, scene, crowd, to, turn) }) {
			return
		}
	}
	if found, err := scene.Violations(ctx); err != nil || len(found) > 0 {
		t.Errorf("the storage counted forbidden writes: %+v (%v)", found, err)
	}
	if err := crowd.Remove(ctx, within); err != nil {
		t.Error(err)
	}
}

// handOver changes the controller and looks for anything that it did to the crowd.
func handOver(t *testing.T, scene *scenario.Scene, crowd *scenario.Crowd, to string, turn int) {
	t.Helper()
	ctx := t.Context()
	before, err := crowd.Objects(ctx)
	if err != nil {
		t.Fatal(err)
	}
	seen := watch(t, scene, crowd)
	start := time.Now()
	if err := scene.Cluster.SwitchController(ctx, to); err != nil {
		t.Fatal(err)
	}
	// A volume that is attached and detached shows that the new controller acts.
	probe, err := scene.NewCrowd(ctx, scenario.CrowdOptions{
		Name: fmt.Sprintf("probe-%d", turn), Pods: 1, VolumesPerPod: 1, Nodes: []string{"node-1"},
	}, 2*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the new controller attached a volume %.1f s after the handoff began", time.Since(start).Seconds())
	if err := probe.Remove(ctx, 2*time.Minute); err != nil {
		t.Fatal(err)
	}
	select {
	case <-time.After(watchFor):
	case <-ctx.Done():
		t.Fatal(context.Cause(ctx))
	}
	for _, line := range seen.lines() {
		t.Error(line)
	}
	checkCalls(t, scene, crowd, start)
	checkPods(t, crowd, before, start)
}

// checkCalls: no call of the driver, of the controller's or of a node's side, was
// about a volume of the crowd, except for kubelet's questions.
func checkCalls(t *testing.T, scene *scenario.Scene, crowd *scenario.Crowd, since time.Time) {
	t.Helper()
	calls, err := scene.Cluster.Fabric().Calls(t.Context(), since)
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]int{}
	for _, c := range calls {
		if !crowd.Handles[c.Volume] {
			continue
		}
		counted[c.Method]++
		if strings.Contains(c.Method, "Publish") || strings.Contains(c.Method, "Unpublish") || strings.Contains(c.Method, "tage") {
			t.Errorf("call %s of %s on %s at %s", c.Method, c.Volume, c.Node, c.Start.Format(time.StampMilli))
		}
	}
	t.Logf("calls about the crowd's %d volumes: %v", len(crowd.Handles), counted)
}

// checkPods: the same pods, not restarted, whose records flowed on.
func checkPods(t *testing.T, crowd *scenario.Crowd, before []corev1.Pod, since time.Time) {
	t.Helper()
	after, err := crowd.Objects(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if old, now := uids(before), uids(after); !maps.Equal(old, now) {
		t.Errorf("the pods are others: before %v, now %v", old, now)
	}
	var records int64
	var gap time.Duration
	for _, pod := range after {
		for _, c := range pod.Status.ContainerStatuses {
			if c.RestartCount > 0 || !c.Ready {
				t.Errorf("container of %s: restarted %d times, ready %v", pod.Name, c.RestartCount, c.Ready)
			}
		}
		flow, err := crowd.Flow(t.Context(), pod.Name, since)
		if err != nil {
			t.Errorf("records of %s: %v", pod.Name, err)
		}
		if flow.LongestGap > longestGap || flow.Records == 0 {
			t.Errorf("%s: %d records, longest gap %v", pod.Name, flow.Records, flow.LongestGap)
		}
		records, gap = records+flow.Records, max(gap, flow.LongestGap)
	}
	t.Logf("%d pods wrote %d records on; longest gap %v", len(after), records, gap)
}

func uids(pods []corev1.Pod) map[string]types.UID {
	all := map[string]types.UID{}
	for _, pod := range pods {
		all[pod.Name] = pod.UID
	}
	return all
}

// witness watches what a handoff must not touch.
type witness struct {
	crowd *scenario.Crowd
	mu    sync.Mutex
	seen  []string
}

func (w *witness) lines() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

func (w *witness) tell(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.seen) < 50 {
		w.seen = append(w.seen, time.Now().Format(time.StampMilli)+" "+fmt.Sprintf(format, args...))
	}
}

// watch records every VolumeAttachment that is deleted or no longer attached, and every report that loses a volume of
// the crowd, at whatever moment.
func watch(t *testing.T, scene *scenario.Scene, crowd *scenario.Crowd) *witness {
	t.Helper()
	w := &witness{crowd: crowd}
	factory := informers.NewSharedInformerFactory(scene.Client, 0)
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() { stop(); factory.Shutdown() })
	var mu sync.Mutex
	first := map[types.UID]bool{}
	_, err := factory.Storage().V1().VolumeAttachments().Informer().AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, initial bool) {
			mu.Lock()
			defer mu.Unlock()
			if initial { // what comes later is the probe's
				first[object.(*storagev1.VolumeAttachment).UID] = true
			}
		},
		UpdateFunc: func(_, object any) {
			va := object.(*storagev1.VolumeAttachment)
			mu.Lock()
			defer mu.Unlock()
			if first[va.UID] && (va.DeletionTimestamp != nil || !va.Status.Attached) {
				w.tell("VolumeAttachment %s: attached %v, deleting %v", va.Name, va.Status.Attached, va.DeletionTimestamp != nil)
			}
		},
		DeleteFunc: func(object any) {
			mu.Lock()
			defer mu.Unlock()
			if va, ok := object.(*storagev1.VolumeAttachment); ok && first[va.UID] {
				w.tell("VolumeAttachment %s was deleted", va.Name)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, object any) { w.compare(old.(*corev1.Node), object.(*corev1.Node)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return w
}

func (w *witness) compare(old, now *corev1.Node) {
	reported := map[corev1.UniqueVolumeName]bool{}
	for _, v := range now.Status.VolumesAttached {
		reported[v.Name] = true
	}
	for _, v := range old.Status.VolumesAttached {
		if _, handle, ok := kube.ParseUniqueVolumeName(string(v.Name)); ok && w.crowd.Handles[handle] && !reported[v.Name] {
			w.tell("the report of %s on %s was withdrawn", handle, now.Name)
		}
	}
}
