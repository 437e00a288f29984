package telemetry

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"belay.dev/belay/internal/attachment"
)

var disk = Volume{Key: attachment.VolumeKey{Driver: "disk.test", Handle: "h"}}

// life is a volume at one node that a test moves from state to state.
type life struct {
	*testing.T
	metrics  *Controller
	registry *prometheus.Registry

	wanted   bool
	va       *attachment.Attachment
	reported bool
}

func newLife(t *testing.T) *life {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	return &life{T: t, metrics: NewController(registry), registry: registry}
}

// decided waits and then tells the metrics how things are.
func (l *life) decided(after time.Duration, reasons ...attachment.Reason) {
	l.Helper()
	<-time.After(after)
	var d attachment.Desired
	if l.wanted {
		d.Wants = []attachment.Want{{Node: "n"}}
	}
	o := attachment.Observed{Nodes: map[attachment.NodeName]attachment.Node{"n": {Reported: l.reported}}}
	if l.va != nil {
		o.Attachments = []attachment.Attachment{*l.va}
	}
	decision := attachment.Decision{}
	for _, reason := range reasons {
		decision.Steps = append(decision.Steps, attachment.Wait{Node: "n", Reason: reason})
	}
	l.metrics.Decided(time.Now(), disk, d, o, decision)
}

// samples gives "name{labels}" of each sample, of a histogram its count and sum in seconds. Histograms that observed nothing
// are left out: see TestSeriesStartAtZero.
func (l *life) samples(prefix string) map[string]sample {
	l.Helper()
	families, err := l.registry.Gather()
	if err != nil {
		l.Fatal(err)
	}
	found := map[string]sample{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName() + labels(m)
			if !strings.HasPrefix(name, prefix) {
				continue
			}
			switch {
			case m.Histogram != nil && m.Histogram.GetSampleCount() == 0:
			case m.Histogram != nil:
				found[name] = sample{float64(m.Histogram.GetSampleCount()), m.Histogram.GetSampleSum()}
			case m.Gauge != nil:
				found[name] = sample{value: m.Gauge.GetValue()}
			default:
				found[name] = sample{value: m.Counter.GetValue()}
			}
		}
	}
	return found
}

type sample struct{ count, value float64 }

func labels(m *dto.Metric) string {
	var all []string
	for _, label := range m.GetLabel() {
		all = append(all, label.GetName()+"="+label.GetValue())
	}
	slices.Sort(all)
	return "{" + strings.Join(all, ",") + "}"
}

func (l *life) want(prefix string, want map[string]sample) {
	l.Helper()
	if diff := cmp.Diff(want, l.samples(prefix), cmp.AllowUnexported(sample{})); diff != "" {
		l.Errorf("%s (-want +got):\n%s", prefix, diff)
	}
}

// A whole life, one second more for each step: every phase and every operation is
// measured once, and afterwards nothing is remembered.
func TestPhasesOfAnAttachment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLife(t)
		l.wanted = true
		l.decided(0, attachment.OtherWriterAttached)
		l.va = &attachment.Attachment{Node: "n", Computed: true}
		l.decided(1*time.Second, attachment.Attaching)
		l.va.AttachError = "no space"
		l.decided(2*time.Second, attachment.AttachFailed)
		l.decided(1*time.Second, attachment.AttachFailed) // the same error counts once
		l.va.AttachError, l.va.Confirmed = "", attachment.Yes
		l.decided(1 * time.Second)
		l.reported = true
		l.decided(3 * time.Second)
		l.wanted = false
		l.decided(100*time.Second, attachment.StillInUse)
		l.reported = false
		l.decided(5 * time.Second)
		l.va.Deleting = true
		l.decided(6*time.Second, attachment.Detaching)
		l.va = nil
		l.decided(7 * time.Second)

		l.want("volumeattachment_phase_seconds", map[string]sample{
			"volumeattachment_phase_seconds{phase=create}":  {1, 1},
			"volumeattachment_phase_seconds{phase=attach}":  {1, 4},
			"volumeattachment_phase_seconds{phase=report}":  {1, 3},
			"volumeattachment_phase_seconds{phase=release}": {1, 5},
			"volumeattachment_phase_seconds{phase=delete}":  {1, 6},
			"volumeattachment_phase_seconds{phase=detach}":  {1, 7},
		})
		const operation = "storage_operation_duration_seconds{migrated=false,operation_name=volume_"
		l.want("storage_operation", map[string]sample{
			operation + "attach,status=success,volume_plugin=kubernetes.io/csi:disk.test}":      {1, 4},
			operation + "attach,status=fail-unknown,volume_plugin=kubernetes.io/csi:disk.test}": {1, 2},
			operation + "detach,status=success,volume_plugin=kubernetes.io/csi:disk.test}":      {1, 7},
		})
		l.want("volume_blocked_seconds", map[string]sample{
			"volume_blocked_seconds{reason=OtherWriterAttached}": {1, 1},
			"volume_blocked_seconds{reason=Attaching}":           {1, 2},
			"volume_blocked_seconds{reason=AttachFailed}":        {1, 2},
			"volume_blocked_seconds{reason=StillInUse}":          {1, 5},
			"volume_blocked_seconds{reason=Detaching}":           {1, 7},
		})
		if n := len(l.metrics.waits.volumes); n != 0 {
			t.Errorf("%d volumes are remembered after their life", n)
		}
	})
}

// A pod that goes before its volume was attached is no success.
// An alert with increase() sees the first event only if its series was there before.
func TestSeriesStartAtZero(t *testing.T) {
	families, err := newLife(t).registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			found[family.GetName()+labels(m)] = m.Counter.GetValue() + m.Histogram.GetSampleSum()
		}
	}
	want := []string{"attachdetach_foreign_writes_total{resource=nodes/status}", "attach_detach_controller_attachdetach_controller_forced_detaches{reason=timeout}"}
	for _, phase := range []string{"create", "attach", "report", "release", "delete", "detach"} {
		want = append(want, "volumeattachment_phase_seconds{phase="+phase+"}")
	}
	for _, reason := range attachment.Reasons() {
		if reason != attachment.Settled {
			want = append(want, "volume_blocked_seconds{reason="+string(reason)+"}")
		}
	}
	for _, series := range want {
		if value, ok := found[series]; !ok || value != 0 {
			t.Errorf("%s: there is %v, value %v, want 0", series, ok, value)
		}
	}
}

func TestAbandonedAttachIsNoSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLife(t)
		l.wanted, l.va = true, &attachment.Attachment{Node: "n", Computed: true}
		l.decided(0)
		l.wanted = false
		l.decided(time.Second)
		l.want("storage_operation", map[string]sample{})
	})
}

// What waits now is seen before the wait ends.
func TestWaitingNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLife(t)
		l.wanted = true
		l.decided(0, attachment.OtherWriterAttached)
		<-time.After(time.Minute)
		l.want("volume", map[string]sample{
			"volumes_blocked{reason=OtherWriterAttached}":                {value: 1},
			"volume_blocked_longest_seconds{reason=OtherWriterAttached}": {value: 60},
		})
	})
}

// A volume that rests is not remembered, whatever is decided on it.
func TestSettledVolumesCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLife(t)
		l.wanted, l.reported = true, true
		l.va = &attachment.Attachment{Node: "n", Computed: true, Confirmed: attachment.Yes}
		l.decided(0)
		l.decided(time.Second)
		if n := len(l.metrics.waits.volumes); n != 0 {
			t.Errorf("%d volumes at rest are remembered", n)
		}
	})
}

func TestUpstreamsNames(t *testing.T) {
	l := newLife(t)
	l.metrics.Forced(attachment.UnmountTimeout{})
	l.metrics.CountVolumes(func() Census {
		return Census{
			Desired: map[string]int{"disk.test": 3},
			Actual:  map[string]int{"disk.test": 2, "kubernetes.io/fc": 1},
			InUse:   map[attachment.NodeName]map[string]int{"n": {"disk.test": 4}},
		}
	})
	l.want("attachdetach_controller_total_volumes", map[string]sample{
		"attachdetach_controller_total_volumes{plugin_name=kubernetes.io/csi:disk.test,state=desired_state_of_world}": {value: 3},
		"attachdetach_controller_total_volumes{plugin_name=kubernetes.io/csi:disk.test,state=actual_state_of_world}":  {value: 2},
		"attachdetach_controller_total_volumes{plugin_name=kubernetes.io/fc,state=actual_state_of_world}":             {value: 1},
	})
	l.want("storage_count", map[string]sample{
		"storage_count_attachable_volumes_in_use{node=n,volume_plugin=kubernetes.io/csi:disk.test}": {value: 4},
	})
	const forced = "attach_detach_controller_attachdetach_controller_forced_detaches"
	l.want(forced, map[string]sample{
		forced + "{reason=timeout}": {value: 1}, forced + "{reason=out-of-service}": {}, forced + "{reason=deleted-node}": {}, forced + "{reason=fenced}": {},
		forced + "{reason=storage-fenced}": {},
	})
}

// The age of the lease is there only while it is held.
func TestLeaseAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLife(t)
		l.want("attachdetach_lease", map[string]sample{})
		l.metrics.LeaseRenewed(time.Now())
		<-time.After(3 * time.Second)
		l.want("attachdetach_lease", map[string]sample{"attachdetach_lease_age_seconds{}": {value: 3}})
		l.metrics.LeaseRenewed(time.Time{})
		l.want("attachdetach_lease", map[string]sample{})
	})
}

// Where metrics are off, nothing has to ask for them.
func TestNilCountsNothing(*testing.T) {
	var none *Controller
	none.Decided(time.Now(), disk, attachment.Desired{}, attachment.Observed{}, attachment.Decision{})
	none.Forced(attachment.UnmountTimeout{})
	none.Refused(disk, time.Second)
	none.Write("nodes", "PATCH", 200)
	none.Foreign("nodes")
	none.Halted()
	none.CountVolumes(nil)
	none.LeaseRenewed(time.Now())
}
