package nodeagent

import (
	"context"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/metrics"
	"belay.dev/belay/internal/testing/wait"
)

func measuredIn(registry prometheus.Registerer) func(*Config) {
	return func(c *Config) { c.Metrics, c.StatsPeriod = registry, -1 }
}

// wantSamples compares those that begin so.
func wantSamples(tb testing.TB, registry prometheus.Gatherer, prefix string, want map[string]float64) {
	tb.Helper()
	if diff := cmp.Diff(want, only(samples(tb, registry), prefix)); diff != "" {
		tb.Errorf("%s (-want +got):\n%s", prefix, diff)
	}
}

// A volume's lifecycle in kubelet's metrics: a stage that fails once, a second pod, a restart, the unmount.
func TestVolumeLifecycleInKubeletMetrics(t *testing.T) {
	w := newWorld(t)
	w.driver.SetBefore(func(method, _ string, attempt int) error {
		if method == "Stage" && attempt == 1 {
			return status.Error(codes.Unavailable, "not now")
		}
		return nil
	})
	registry := prometheus.NewRegistry()
	agent, stop := w.agent(measuredIn(registry))
	handle := w.volume("data")
	first, second := w.pod("first", "data"), w.pod("second", "data")
	w.bringUp(agent, first, handle)
	agent.SetPod(second)
	w.mounted(agent, second)

	plugin := "kubernetes.io/csi:" + w.driverName()
	wantSamples(t, registry, "storage_operation_duration_seconds", map[string]float64{
		"storage_operation_duration_seconds{migrated=false,operation_name=volume_mount,status=fail-unknown,volume_plugin=" + plugin + "}": 1,
		"storage_operation_duration_seconds{migrated=false,operation_name=volume_mount,status=success,volume_plugin=" + plugin + "}":      2,
	})
	wantSamples(t, registry, "volume_operation_total_seconds", map[string]float64{
		"volume_operation_total_seconds{operation_name=overall_volume_mount,plugin_name=" + plugin + "}": 2,
	})
	wantSamples(t, registry, "volume_manager_total_volumes", map[string]float64{
		"volume_manager_total_volumes{plugin_name=" + plugin + ",state=actual_state_of_world}":  2,
		"volume_manager_total_volumes{plugin_name=" + plugin + ",state=desired_state_of_world}": 2,
	})
	wantSamples(t, registry, "plugin_manager_total_plugins", map[string]float64{
		"plugin_manager_total_plugins{socket_path=" + w.driver.Address + ",state=actual_state_of_world}":  1,
		"plugin_manager_total_plugins{socket_path=" + w.driver.Address + ",state=desired_state_of_world}": 1,
	})
	call := func(method, code string) string {
		return "csi_operations_seconds{driver_name=" + w.driverName() + ",grpc_status_code=" + code + ",method_name=/csi.v1.Node/" + method + ",migrated=false}"
	}
	wantSamples(t, registry, "csi_operations_seconds", map[string]float64{
		call("NodeGetInfo", "OK"): 1, call("NodeGetCapabilities", "OK"): samples(t, registry)[call("NodeGetCapabilities", "OK")],
		call("NodeStageVolume", "Unavailable"): 1, call("NodeStageVolume", "OK"): 1, call("NodePublishVolume", "OK"): 2,
	})
	waited := only(samples(t, registry), "nodeagent_volume_blocked_seconds")
	for _, reason := range []string{"NotAttached", "BackingOff"} {
		if waited["nodeagent_volume_blocked_seconds{reason="+reason+"}"] == 0 {
			t.Errorf("no wait for %s was measured: %v", reason, waited)
		}
	}
	wantSamples(t, registry, "nodeagent_volumes_blocked", map[string]float64{})
	stop()

	// The agent's metrics went with it, and the next one's take their place.
	agent, _ = w.agent(measuredIn(registry))
	wantSamples(t, registry, "reconstruct_volume_operations", map[string]float64{
		"reconstruct_volume_operations_total{}": 3, "reconstruct_volume_operations_errors_total{}": 0,
	})
	agent.PodsSynced()
	w.untilNotInUse(handle)
	wantSamples(t, registry, "storage_operation_duration_seconds", map[string]float64{
		"storage_operation_duration_seconds{migrated=false,operation_name=volume_unmount,status=success,volume_plugin=" + plugin + "}": 2,
		"storage_operation_duration_seconds{migrated=false,operation_name=unmount_device,status=success,volume_plugin=" + plugin + "}": 1,
	})
}

func TestBlockVolumesHaveOperationsOfTheirOwn(t *testing.T) {
	w := newWorld(t, noAttach)
	registry := prometheus.NewRegistry()
	agent, _ := w.agent(measuredIn(registry))
	w.volume("raw", func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) })
	pod := w.podWith("p", func(pod *corev1.Pod) {
		c := &pod.Spec.Containers[0]
		c.VolumeMounts, c.VolumeDevices = nil, []corev1.VolumeDevice{{Name: "raw", DevicePath: "/dev/raw"}}
	}, "raw")
	w.bringUp(agent, pod)
	agent.RemovePod(pod.UID)
	w.unmounted(agent, pod)
	for _, operation := range []string{"map_volume", "unmap_volume"} {
		name := "storage_operation_duration_seconds{migrated=false,operation_name=" + operation + ",status=success,volume_plugin=kubernetes.io/csi:" + w.driverName() + "}"
		if got := samples(t, registry)[name]; got != 1 {
			t.Errorf("%s is %v, want 1", name, got)
		}
	}
}

// A caller that waits for an operation and then reads the metrics finds it counted.
func TestOperationIsCountedBeforeItsEndIsVisible(t *testing.T) {
	registry := prometheus.NewRegistry()
	config := idleConfig(t)
	config.Metrics = registry
	agent, err := New(config)
	must(t, err)
	t.Cleanup(func() { must(t, agent.close()) })
	key := nodevolume.PublishKey{PodUID: "p", SpecName: "pv"}
	v := agent.volumes.ensureVolume("v", "d", "h", false)
	made := nodevolume.Record{Kind: nodevolume.PublishKind, Driver: "d", Handle: "h", Path: "pods/p/volumes/x/pv/mount"}
	v.ensurePod(key).Record = made
	for step, test := range map[nodevolume.Step]struct {
		name, operation string
		phase           nodevolume.Phase
	}{
		nodevolume.Publish{Key: key}:   {stepSetUp, "volume_mount", nodevolume.Confirmed},
		nodevolume.Unpublish{Key: key}: {stepUnpublish, "volume_unmount", nodevolume.Absent},
	} {
		agent.volumes.reports.stepStarted(v, step)
		agent.volumes.mu.Lock()
		call := v.state.Begin(step, made, nil)
		agent.volumes.mu.Unlock()
		must(t, agent.volumes.end(v, call, callResult{phase: test.phase}))
		name := "storage_operation_duration_seconds{migrated=false,operation_name=" + test.operation + ",status=success,volume_plugin=kubernetes.io/csi:d}"
		for range 2 { // and once
			if got := samples(t, registry)[name]; got != 1 {
				t.Errorf("%s is %v, want 1", name, got)
			}
			agent.volumes.mu.Lock()
			agent.volumes.reports.stepEnded(v, key, test.name, nil)
			agent.volumes.mu.Unlock()
		}
	}
}

// A volume is counted as waiting while it waits.
func TestWaitingVolumesAreCounted(t *testing.T) {
	w := newWorld(t)
	registry := prometheus.NewRegistry()
	agent, _ := w.agent(measuredIn(registry))
	w.driver.Registered()
	handle := w.volume("data")
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.untilInUse(handle)
	w.waitSays(agent, pod, "NotAttached")
	wantSamples(t, registry, "nodeagent_volumes_blocked", map[string]float64{"nodeagent_volumes_blocked{reason=NotAttached}": 1})
	name := "nodeagent_volume_blocked_longest_seconds{reason=NotAttached}"
	if longest := samples(t, registry)[name]; longest <= 0 || longest > 60 {
		t.Errorf("the longest wait is %v s", longest)
	}
	w.attach(handle)
	w.mounted(agent, pod)
	wantSamples(t, registry, "nodeagent_volumes_blocked", map[string]float64{})
	if waits := samples(t, registry)["nodeagent_volume_blocked_seconds{reason=NotAttached}"]; waits != 1 {
		t.Errorf("%v waits were measured, want 1", waits)
	}
}

// A driver that hangs, and then refuses, is visible: in the age of its call, and in how long the volume has waited in
// all.
func TestHangingDriverIsCounted(t *testing.T) {
	for method, operation := range map[string]string{"Stage": "mount", "Unpublish": "unmount", "Unstage": "unmount"} {
		t.Run(method, func(t *testing.T) {
			w := newWorld(t, noAttach)
			answers := make(chan error)
			defer close(answers)
			w.driver.Before = func(called, _ string, _ int) error {
				if called == method {
					return <-answers
				}
				return nil
			}
			registry := prometheus.NewRegistry()
			agent, _ := w.agent(measuredIn(registry))
			w.volume("data")
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			if operation == "unmount" {
				w.mounted(agent, pod)
				agent.RemovePod(pod.UID)
			}
			pending := func() float64 {
				return samples(t, registry)["nodeagent_volume_pending_longest_seconds{operation="+operation+"}"]
			}
			inFlight := func() bool { return samples(t, registry)["nodeagent_volumes_blocked{reason=CallInFlight}"] == 1 }
			// The call that hangs may come after others, which are counted for a moment.
			wait.Until(w, "the call that hangs is counted", func() bool { return slices.Contains(w.driver.Made(), method+" data") && inFlight() })
			var age, waited float64
			wait.Until(w, "it grows old", func() bool {
				now := samples(t, registry)
				age, waited = now["nodeagent_volume_blocked_longest_seconds{reason=CallInFlight}"], now["nodeagent_volume_pending_longest_seconds{operation="+operation+"}"]
				return age > 0
			})
			if waited < age {
				t.Errorf("the call is %v s old and the volume waits for %v s", age, waited)
			}
			made := w.driver.Count(method, "data")
			answers <- status.Error(codes.Internal, "no")
			wait.Until(w, "it is made again", func() bool { return w.driver.Count(method, "data") > made && inFlight() })
			if again := pending(); again <= waited {
				t.Errorf("the wait was %v s long and is %v s after a failure", waited, again)
			}
			wait.Until(w, "it waits no longer", func() bool {
				select {
				case answers <- nil:
				default:
				}
				return pending() == 0
			})
			wantSamples(t, registry, "nodeagent_volume_pending", map[string]float64{
				"nodeagent_volume_pending_longest_seconds{operation=mount}":   0,
				"nodeagent_volume_pending_longest_seconds{operation=unmount}": 0,
			})
		})
	}
}

// A volume is released when the last pod that wants it goes, also if that was before the agent started.
func TestVolumeIsReleasedByItsLastPod(t *testing.T) {
	registry := prometheus.NewRegistry()
	config := idleConfig(t)
	config.Metrics = registry
	agent, err := New(config)
	must(t, err)
	t.Cleanup(func() { must(t, agent.close()) })
	wants := func(uid types.UID) *volumeToMount {
		return &volumeToMount{pod: podIdentity{UID: uid}, driver: "d", handle: "h", specName: "pv"}
	}
	pods := []types.UID{"first", "second"}
	for _, uid := range pods {
		agent.SetPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}})
		agent.volumes.addVolumes(uid, []*volumeToMount{wants(uid)})
	}
	v := agent.volumes.all[wants("first").name()]
	for n, uid := range pods {
		agent.RemovePod(uid)
		if last := n == len(pods)-1; v.releasedAt.IsZero() == last {
			t.Errorf("%d of %d pods have gone: released at %v", n+1, len(pods), v.releasedAt)
		}
	}
	was := v.releasedAt
	agent.volumes.released("second", []string{v.name})
	if v.releasedAt != was {
		t.Error("the wait began again")
	}
	agent.SetPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "third"}})
	agent.volumes.addVolumes("third", []*volumeToMount{wants("third")})
	if !v.releasedAt.IsZero() {
		t.Error("it is wanted again and still released")
	}
}

func TestTwoAgentsInOneRegistryNeedLabels(t *testing.T) {
	registry := prometheus.NewRegistry()
	config := func(r prometheus.Registerer) Config {
		c := idleConfig(t)
		c.Metrics = r
		return c
	}
	first, err := New(config(registry))
	must(t, err)
	if second, err := New(config(registry)); err == nil {
		t.Errorf("two agents share metrics: %v", second.close())
	}
	must(t, first.close())
	again, err := New(config(registry))
	must(t, err)
	must(t, again.close())
	registry = prometheus.NewRegistry()
	for _, node := range []string{"a", "b"} {
		agent, err := New(config(prometheus.WrapRegistererWith(prometheus.Labels{"node": node}, registry)))
		must(t, err)
		t.Cleanup(func() { must(t, agent.close()) })
	}
	samples(t, registry) // would find contradictions
}

// The metrics of a live agent and docs/metrics/node.md list each other, with type and labels.
func TestMetricsAreDocumented(t *testing.T) {
	content, err := os.ReadFile("../../docs/metrics/node.md")
	must(t, err)
	section, libraries, named := strings.Cut(string(content), "\n## Metrics of the libraries\n")
	if !named || libraries == "" {
		t.Fatal("docs/metrics/node.md has no section about the metrics of the libraries at its end")
	}
	if diff := cmp.Diff(metrics.Tables(section), liveMetrics(t)); diff != "" {
		t.Errorf("metrics (-documented +live):\n%s", diff)
	}
}

// liveMetrics are the metrics of an agent that has mounted one volume and waits with another.
func liveMetrics(t *testing.T) map[string]string {
	t.Helper()
	w := newWorld(t)
	w.driver.NodeServices = append(w.driver.NodeServices, canStats, canCondition)
	asked := w.answerStats(func(string) (*csispec.NodeGetVolumeStatsResponse, error) {
		return abnormal(csidriver.HalfFull(), ""), nil
	})
	registry := prometheus.NewRegistry()
	agent, _ := w.agent(frequently(registry))
	handle := w.volume("data")
	w.bringUp(agent, w.pod("p", "data"), handle)
	w.untilAsked(asked, "data", 2)
	waits := w.pod("waits", "later")
	w.volume("later")
	agent.SetPod(waits)
	w.untilInUse("h-" + w.name + "-later")
	w.waitSays(agent, waits, "NotAttached")
	families, err := registry.Gather()
	must(t, err)
	live := map[string]string{}
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "nodeagent_") != strings.HasPrefix(family.GetHelp(), "[ALPHA] ") {
			t.Errorf("%s has the help %q", family.GetName(), family.GetHelp())
		}
		labels := map[string]bool{}
		for _, metric := range family.Metric {
			for _, l := range metric.Label {
				labels[l.GetName()] = true
			}
		}
		live[family.GetName()] = strings.TrimSpace(typeWords[family.GetType()] + " " + strings.Join(slices.Sorted(maps.Keys(labels)), ","))
	}
	return live
}

var typeWords = map[dto.MetricType]string{
	dto.MetricType_COUNTER: "counter", dto.MetricType_GAUGE: "gauge", dto.MetricType_HISTOGRAM: "histogram",
}

// A change of ownership for fsGroup is part of the mount operation, and also measured by itself.
func TestFSGroupChangeIsMeasured(t *testing.T) {
	w := newWorld(t, noAttach)
	registry := prometheus.NewRegistry()
	agent, _ := w.agent(measuredIn(registry), func(c *Config) {
		c.changeGroup = func(*mount.Root, context.Context, string, *mount.GroupChange) error { return nil }
	})
	w.volume("data")
	pod := w.podWith("p", func(pod *corev1.Pod) { pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(7))} }, "data")
	w.bringUp(agent, pod)
	plugin := "kubernetes.io/csi:" + w.driverName()
	wantSamples(t, registry, "storage_operation_duration_seconds", map[string]float64{
		"storage_operation_duration_seconds{migrated=false,operation_name=volume_apply_access_control,status=success,volume_plugin=" + plugin + "}": 1,
		"storage_operation_duration_seconds{migrated=false,operation_name=volume_mount,status=success,volume_plugin=" + plugin + "}":                1,
	})
}

// A call for an in-tree volume is labelled as migrated, like kubelet's.
func TestMigratedCallsHaveTheirLabel(t *testing.T) {
	w := newWorld(t)
	calls := make(chan csi.Call, 2)
	client, err := csi.DialNode(w.driver.Address, func(c csi.Call) { calls <- c })
	must(t, err)
	t.Cleanup(func() { client.Close() })
	for _, migrated := range []bool{true, false} {
		_, err := client.Info(csi.WithMigrated(w.ctx, migrated))
		must(t, err)
		if c := <-calls; c.Migrated != migrated || c.Method != "/csi.v1.Node/NodeGetInfo" || c.Err != nil || c.Took <= 0 {
			t.Errorf("got %+v", c)
		}
	}
}

// An expansion is an operation of its own, and does not lengthen the unstage.
func TestExpansionIsMeasured(t *testing.T) {
	w := expandable(t)
	w.driver.NodeServices = append(w.driver.NodeServices, canStage)
	w.grow("2Gi", legacy)
	registry := prometheus.NewRegistry()
	agent, _ := w.agent(measuredIn(registry))
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	agent.volumes.mu.Lock()
	for name, v := range agent.volumes.all {
		if len(v.measured.began) > 0 {
			t.Errorf("volume %s rests, and something is being measured: %v", name, v.measured.began)
		}
	}
	agent.volumes.mu.Unlock()
	name := "storage_operation_duration_seconds{migrated=false,operation_name=volume_fs_resize,status=success,volume_plugin=kubernetes.io/csi:" + w.driverName() + "}"
	if got := samples(t, registry)[name]; got != 1 {
		t.Errorf("%s is %v, want 1", name, got)
	}
}

// BenchmarkCensus is what a scrape of a node with a thousand mounted volumes costs, all with stats.
func BenchmarkCensus(b *testing.B) {
	registry := prometheus.NewRegistry()
	dir := b.TempDir()
	agent, err := New(Config{NodeName: "n", Root: dir, RESTConfig: &rest.Config{Host: "https://127.0.0.1:1"}, BootID: "b", Metrics: registry})
	must(b, err)
	b.Cleanup(func() { must(b, agent.close()) })
	for n := range 1000 {
		name := strconv.Itoa(n)
		v := agent.volumes.ensureVolume(name, "d", name, false)
		p := v.ensurePod(nodevolume.PublishKey{PodUID: name, SpecName: name})
		p.toMount = &volumeToMount{pod: podIdentity{Namespace: "default"}, claim: claimRef{name: name}}
		p.Phase = nodevolume.Confirmed
		p.stats = &publishedStats{VolumeStats: csi.VolumeStats{Bytes: &csi.Usage{Total: 1}, Inodes: &csi.Usage{Total: 1}, Condition: &csi.Condition{}}}
	}
	for b.Loop() {
		if _, err := registry.Gather(); err != nil {
			b.Fatal(err)
		}
	}
}
