package telemetry

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"belay.dev/belay/internal/publication"
)

// shown are the values that are not 0, as text.
func shown(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if value := m.GetGauge().GetValue(); value != 0 {
				var labels []string
				for _, l := range m.GetLabel() {
					labels = append(labels, l.GetValue())
				}
				lines = append(lines, fmt.Sprintf("%s{%s} %g", strings.TrimPrefix(family.GetName(), "attacher_"), strings.Join(labels, ","), value))
			}
		}
	}
	return strings.Join(lines, "\n")
}

func TestAttacherWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		a := NewAttacher(registry)
		one, two := publication.Key{Volume: "one"}, publication.Key{Volume: "two"}
		busy := Waiting{Attachment: "va1", Reason: publication.DriverBusy}
		a.Waits(time.Now(), one, []Waiting{busy})
		if got := shown(t, registry); got != "" {
			t.Errorf("a standby shows\n%s", got)
		}
		a.CountCalls(func() Calls {
			return Calls{Limit: 7, Attaching: 3, Detaching: 2, Unanswered: 1, NodesHeld: 4, VolumesHeld: 5}
		})
		time.Sleep(2 * time.Second)
		a.Waits(time.Now(), one, []Waiting{busy}) // continues
		a.Waits(time.Now(), two, []Waiting{
			{Attachment: "va2", Detach: true, Reason: publication.CallInFlight},
			{Attachment: "va3", Reason: publication.OtherWriterAttached},
		})
		time.Sleep(time.Second)
		want := `attachment_blocked_longest_seconds{attach,DriverBusy} 3
attachment_blocked_longest_seconds{attach,OtherWriterAttached} 1
attachment_blocked_longest_seconds{detach,CallInFlight} 1
attachments_blocked{attach,DriverBusy} 1
attachments_blocked{attach,OtherWriterAttached} 1
attachments_blocked{detach,CallInFlight} 1
calls_hanging{} 1
calls_in_flight{attach} 3
calls_in_flight{detach} 2
calls_limit{} 7
held_back{node} 4
held_back{volume} 5`
		if got := shown(t, registry); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		// Another reason is another wait; what is settled waits no more.
		a.Waits(time.Now(), one, []Waiting{{Attachment: "va1", Reason: publication.BackingOff}})
		a.Waits(time.Now(), two, nil)
		got := shown(t, registry)
		if !strings.Contains(got, "attachments_blocked{attach,BackingOff} 1") || strings.Contains(got, "longest") || strings.Contains(got, "OtherWriter") {
			t.Errorf("after the change:\n%s", got)
		}
		if len(a.waits) != 1 {
			t.Errorf("%d keys are kept, want 1", len(a.waits))
		}
	})
}
