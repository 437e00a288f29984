package nodeagent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

const (
	canStats     = csispec.NodeServiceCapability_RPC_GET_VOLUME_STATS
	canCondition = csispec.NodeServiceCapability_RPC_VOLUME_CONDITION
	canStage     = csispec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
)

func abnormal(r *csispec.NodeGetVolumeStatsResponse, message string) *csispec.NodeGetVolumeStatsResponse {
	r.VolumeCondition = &csispec.VolumeCondition{Abnormal: message != "", Message: message}
	return r
}

// answerStats makes the driver answer NodeGetVolumeStats, and sends each requested volume on the channel.
func (w *world) answerStats(reply func(volume string) (*csispec.NodeGetVolumeStatsResponse, error)) (asked chan string) {
	asked = make(chan string)
	w.driver.Lock()
	defer w.driver.Unlock()
	w.driver.Stats = func(ctx context.Context, r *csispec.NodeGetVolumeStatsRequest) (*csispec.NodeGetVolumeStatsResponse, error) {
		name := strings.TrimPrefix(r.VolumeId, w.driver.HandlePrefix)
		select {
		case asked <- name:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return reply(name)
	}
	return asked
}

// untilAsked waits for a number of calls about a volume. When a call starts, the answer to the previous one has been
// processed: there is one call at a time for a volume.
func (w *world) untilAsked(asked <-chan string, volume string, times int) {
	w.Helper()
	for times > 0 {
		select {
		case name := <-asked:
			if name == volume {
				times--
			}
		case <-w.ctx.Done():
			w.Fatalf("the driver was not asked about volume %s", volume)
		}
	}
}

// samples are a registry's gauges and counters, and the counts of its histograms, by name and labels.
func samples(tb testing.TB, registry prometheus.Gatherer) map[string]float64 {
	tb.Helper()
	families, err := registry.Gather()
	must(tb, err)
	out := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.Metric {
			var labels []string
			for _, l := range metric.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := family.GetName() + "{" + strings.Join(labels, ",") + "}"
			switch {
			case metric.Gauge != nil:
				out[name] = metric.Gauge.GetValue()
			case metric.Counter != nil:
				out[name] = metric.Counter.GetValue()
			case metric.Histogram != nil:
				out[name] = float64(metric.Histogram.GetSampleCount())
			}
		}
	}
	return out
}

// only keeps the samples whose names begin so.
func only(all map[string]float64, prefix string) map[string]float64 {
	maps.DeleteFunc(all, func(name string, _ float64) bool { return !strings.HasPrefix(name, prefix) })
	return all
}

func frequently(registry prometheus.Registerer) func(*Config) {
	return func(c *Config) { c.StatsPeriod, c.Metrics = time.Millisecond, registry }
}

// The cases of upstream's e2e test csi_node_volume_health, and that of its driver without usage.
func TestCSINodeVolumeHealth(t *testing.T) {
	for name, c := range map[string]struct {
		has    []csispec.NodeServiceCapability_RPC_Type
		reply  *csispec.NodeGetVolumeStatsResponse
		usage  bool // shown
		health *float64
		event  string
	}{
		"return normal volume stats": {
			has: []csispec.NodeServiceCapability_RPC_Type{canStats, canCondition}, reply: abnormal(csidriver.HalfFull(), ""), usage: true, health: new(0.0),
		},
		"return normal volume stats without volume condition": {
			has: []csispec.NodeServiceCapability_RPC_Type{canStats}, reply: abnormal(csidriver.HalfFull(), "never asked for"), usage: true,
		},
		"return normal volume stats with abnormal volume condition": {
			has: []csispec.NodeServiceCapability_RPC_Type{canStats, canCondition}, reply: abnormal(csidriver.HalfFull(), "the target path does not exist"),
			usage: true, health: new(1.0), event: "VolumeConditionAbnormal: Volume data: the target path does not exist",
		},
		"health alone": {
			has:    []csispec.NodeServiceCapability_RPC_Type{canStats, canCondition},
			reply:  abnormal(&csispec.NodeGetVolumeStatsResponse{}, "bad blocks"),
			health: new(1.0), event: "VolumeConditionAbnormal: Volume data: bad blocks",
		},
		"neither usage nor health": {has: []csispec.NodeServiceCapability_RPC_Type{canStats}, reply: &csispec.NodeGetVolumeStatsResponse{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, noAttach)
			w.driver.NodeServices = append(c.has, canStage)
			asked := w.answerStats(func(string) (*csispec.NodeGetVolumeStatsResponse, error) { return c.reply, nil })
			w.volume("data")
			registry := prometheus.NewRegistry()
			agent, _ := w.agent(frequently(registry))
			pod := w.pod("p", "data")
			w.bringUp(agent, pod)
			w.untilAsked(asked, "data", 2)

			request := csidriver.LastRequest[*csispec.NodeGetVolumeStatsRequest](w.driver)
			path := w.root + "/pods/" + string(pod.UID) + "/volumes/kubernetes.io~csi/" + w.name + "-data/mount"
			if request.VolumePath != path || request.StagingTargetPath != "" {
				t.Errorf("asked about %q and %q, want %q", request.VolumePath, request.StagingTargetPath, path)
			}
			labels := "{namespace=" + w.name + ",persistentvolumeclaim=data}"
			want := map[string]float64{}
			for metric, value := range map[string]float64{
				"capacity_bytes": 100, "available_bytes": 60, "used_bytes": 40, "inodes": 10, "inodes_free": 7, "inodes_used": 3,
			} {
				switch {
				case c.usage:
					want["kubelet_volume_stats_"+metric+labels] = value
				case c.health != nil:
					want["kubelet_volume_stats_"+metric+labels] = 0 // as kubelet has it
				}
			}
			if c.health != nil {
				want["kubelet_volume_stats_health_status_abnormal"+labels] = *c.health
			}
			if diff := cmp.Diff(want, only(samples(t, registry), "kubelet_volume_stats_")); diff != "" {
				t.Errorf("metrics (-want +got):\n%s", diff)
			}
			if c.event != "" {
				w.untilEvent(pod, c.event)
				w.untilAsked(asked, "data", 3)
				if n := w.events(pod, "VolumeConditionAbnormal"); n != 1 {
					t.Errorf("%d events for one condition of the volume", n)
				}
			}
		})
	}
}

// events counts a pod's events with a reason.
func (w *world) events(pod *corev1.Pod, reason string) int {
	w.Helper()
	list, err := w.admin.CoreV1().Events(w.name).List(w.ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.uid": string(pod.UID), "reason": reason}.String(),
	})
	must(w, err)
	told := 0
	for _, e := range list.Items {
		told += int(max(e.Count, 1))
	}
	return told
}

func TestStatsInKubeletsForm(t *testing.T) {
	w := newWorld(t, noAttach)
	w.driver.NodeServices = append(w.driver.NodeServices, canStats, canCondition)
	asked := w.answerStats(func(string) (*csispec.NodeGetVolumeStatsResponse, error) {
		return abnormal(csidriver.HalfFull(), "scratched"), nil
	})
	w.volume("data")
	agent, _ := w.agent(frequently(nil))
	pod := w.pod("p", "data")
	w.bringUp(agent, pod)
	w.untilAsked(asked, "data", 2)
	want := []stats.VolumeStats{{
		Name: "data", PVCRef: &stats.PVCReference{Name: "data", Namespace: w.name}, VolumeHealthStats: &stats.VolumeHealthStats{Abnormal: true},
		FsStats: stats.FsStats{
			CapacityBytes: new(uint64(100)), AvailableBytes: new(uint64(60)), UsedBytes: new(uint64(40)),
			Inodes: new(uint64(10)), InodesFree: new(uint64(7)), InodesUsed: new(uint64(3)),
		},
	}}
	got := agent.VolumeStats(pod.UID)
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(stats.FsStats{}, "Time")); diff != "" {
		t.Fatalf("stats (-want +got):\n%s", diff)
	}
	if age := time.Since(got[0].Time.Time); age < 0 || age > time.Minute {
		t.Errorf("the stats are %s old", age)
	}
	if other := agent.VolumeStats("nobody"); other != nil {
		t.Errorf("stats of a pod that is not here: %v", other)
	}
}

// A driver that hangs in one volume's stats delays neither those of another volume nor the unmount of this one, and is
// not called again before it has answered.
func TestHangingStatsCallBlocksNothing(t *testing.T) {
	w := newWorld(t, noAttach)
	w.driver.NodeServices = append(w.driver.NodeServices, canStats)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	asked := w.answerStats(func(volume string) (*csispec.NodeGetVolumeStatsResponse, error) {
		if volume == "hangs" {
			<-release
		}
		return csidriver.HalfFull(), nil
	})
	w.volume("hangs")
	w.volume("works")
	registry := prometheus.NewRegistry()
	agent, stop := w.agent(frequently(registry))
	stuck, other := w.pod("stuck", "hangs"), w.pod("other", "works")
	w.bringUp(agent, stuck)
	w.untilAsked(asked, "hangs", 1)
	w.bringUp(agent, other)
	w.untilAsked(asked, "works", 20)
	if n := w.driver.Count("Stats", "hangs"); n != 1 {
		t.Errorf("%d calls for the volume that hangs, want 1", n)
	}
	shown := only(samples(t, registry), "kubelet_volume_stats_used_bytes")
	if want := map[string]float64{"kubelet_volume_stats_used_bytes{namespace=" + w.name + ",persistentvolumeclaim=works}": 40}; !maps.Equal(shown, want) {
		t.Errorf("used bytes %v, want %v", shown, want)
	}
	go func() { // continues with the one that works
		for range asked {
		}
	}()
	agent.RemovePod(stuck.UID)
	w.unmounted(agent, stuck)
	stop() // ends although the call hangs
}

// Stats that are not known any more are not exported, as with kubelet, and the driver is not called for a volume that
// was unmounted.
func TestUnknownStatsAreNotExported(t *testing.T) {
	w := newWorld(t, noAttach)
	w.driver.NodeServices = append(w.driver.NodeServices, canStats)
	var fails atomic.Bool
	asked := w.answerStats(func(string) (*csispec.NodeGetVolumeStatsResponse, error) {
		if fails.Load() {
			return nil, errors.New("I/O error")
		}
		return csidriver.HalfFull(), nil
	})
	w.volume("data")
	agent, _ := w.agent(frequently(nil))
	pod := w.pod("p", "data")
	w.bringUp(agent, pod)
	w.untilAsked(asked, "data", 2)
	if len(agent.VolumeStats(pod.UID)) != 1 {
		t.Fatal("no stats")
	}
	fails.Store(true)
	w.untilAsked(asked, "data", 2)
	if old := agent.VolumeStats(pod.UID); old != nil {
		t.Errorf("stats although the driver does not know: %v", old)
	}
	go func() {
		for range asked {
		}
	}()
	agent.RemovePod(pod.UID)
	w.unmounted(agent, pod)
	made := w.driver.Made()
	last := slices.IndexFunc(made, func(call string) bool { return call == "Unpublish data" })
	if i := slices.Index(made[last:], "Stats data"); i > 0 && slices.Index(made[last+i+1:], "Stats data") >= 0 {
		t.Errorf("asked about a volume that went: %v", made[last:])
	}
}

// TestInlineVolumeWithoutStatsPath is queried once, and again when another version of the driver may support it.
func TestInlineVolumeWithoutStatsPath(t *testing.T) {
	w := newWorld(t, noAttach, modes(ephemeral))
	w.driver.NodeServices = append(w.driver.NodeServices, canStats)
	w.driver.Stats = func(context.Context, *csispec.NodeGetVolumeStatsRequest) (*csispec.NodeGetVolumeStatsResponse, error) {
		return nil, status.Error(codes.NotFound, "no such path")
	}
	connected := make(chan struct{}, 10)
	agent, _ := w.agent(frequently(nil), func(c *Config) { c.reconnected = func(string) { connected <- struct{}{} } })
	w.driver.Registered()
	wait.For(w, "the first connection", connected) // after which the volume is queried as after an upgrade
	pod := w.inlinePod("p", "scratch")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	asked := func() int { return w.driver.Count("Stats", inlineID(pod, "scratch")) }
	wait.Until(w, "asked", func() bool { return asked() > 0 })
	time.Sleep(500 * time.Millisecond) // periods enough
	if n := asked(); n != 1 {
		t.Errorf("asked %d times, want once", n)
	}
	w.upgrade(w.driver.NodeServices, nil)
	wait.Until(w, "asked again", func() bool { return asked() > 1 })
}

func TestDriverWithoutStatsIsNotCalled(t *testing.T) {
	w := newWorld(t, noAttach)
	w.volume("data")
	agent, _ := w.agent(frequently(nil))
	pod := w.pod("p", "data")
	w.bringUp(agent, pod)
	// The call that is planned for the volume becomes due, and there is no volume left to query.
	agent.volumes.tasks.gatherStats(w.ctx, w.driverName())
	name := string(w.unique("h-" + w.name + "-data"))
	agent.volumes.tasks.gatherStats(w.ctx, name)
	if n := w.driver.Count("Stats", "data"); n != 0 || agent.VolumeStats(pod.UID) != nil {
		t.Errorf("asked %d times", n)
	}
}
