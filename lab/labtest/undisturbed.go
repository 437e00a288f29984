package labtest

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/scenario"
)

// longestGap between two records of a pod, which writes two a second. The pods know nothing of the controllers; the rest is for a loaded
// machine.
const longestGap = 10 * time.Second

// Undisturbed watches a crowd whose volumes are all attached and mounted. The function that it returns fails the test if anything has been
// done to them since: a detach, a report that was withdrawn, a call of the driver, or a pod that is another one, was restarted or did not write.
func Undisturbed(t *testing.T, scene *scenario.Scene, crowd *scenario.Crowd) (check func()) {
	t.Helper()
	before, err := crowd.Objects(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := witnessOf(t, scene, crowd)
	start := time.Now()
	return func() {
		t.Helper()
		for _, line := range seen.lines() {
			t.Error(line)
		}
		checkCalls(t, scene, crowd, start)
		checkPods(t, crowd, before, start)
	}
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

// witnessOf records every VolumeAttachment of the crowd that is deleted or no longer attached, and every report that loses a volume of
// the crowd, at whatever moment.
func witnessOf(t *testing.T, scene *scenario.Scene, crowd *scenario.Crowd) *witness {
	t.Helper()
	w := &witness{crowd: crowd}
	factory := informers.NewSharedInformerFactory(scene.Client, 0)
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() { stop(); factory.Shutdown() })
	volumes, err := scene.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, v := range volumes.Items {
		if v.Spec.CSI != nil && crowd.Handles[v.Spec.CSI.VolumeHandle] {
			names[v.Name] = true
		}
	}
	if len(names) == 0 || len(names) != len(crowd.Handles) {
		t.Fatalf("%d PersistentVolumes of %d volumes to watch", len(names), len(crowd.Handles))
	}
	ours := func(va *storagev1.VolumeAttachment) bool {
		return va.Spec.Source.PersistentVolumeName != nil && names[*va.Spec.Source.PersistentVolumeName]
	}
	_, err = factory.Storage().V1().VolumeAttachments().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, object any) {
			va := object.(*storagev1.VolumeAttachment)
			if ours(va) && (va.DeletionTimestamp != nil || !va.Status.Attached) {
				w.tell("VolumeAttachment %s: attached %v, deleting %v", va.Name, va.Status.Attached, va.DeletionTimestamp != nil)
			}
		},
		DeleteFunc: func(object any) {
			if va, ok := object.(*storagev1.VolumeAttachment); ok && ours(va) {
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
