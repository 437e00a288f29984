package nodeagent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/testing/wait"
)

// TestInlineVolumeSurvivesRestarts: at whatever moment the agent dies, the next one publishes what is wanted and
// unpublishes what is not, from its records alone.
func TestInlineVolumeSurvivesRestarts(t *testing.T) {
	tests := map[string]struct {
		method string
		done   bool // the driver did its work before the agent died
		wanted bool // the pod is wanted after the restart
	}{
		"publish not begun, pod wanted": {"Publish", false, true},
		"publish not begun, pod gone":   {"Publish", false, false},
		"published unheard, pod wanted": {"Publish", true, true},
		"published unheard, pod gone":   {"Publish", true, false},
		"unpublish not begun":           {"Unpublish", false, false},
		"unpublished unheard":           {"Unpublish", true, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, modes(ephemeral))
			reached, dead := w.stopsIn(test.method, test.done)
			agent, stop := w.agent()
			pod := w.inlinePod("p", "scratch")
			agent.SetPod(pod)
			if test.method == "Unpublish" {
				w.mounted(agent, pod)
				agent.RemovePod(pod.UID)
			}
			wait.For(t, "the call to arrive", reached)
			stop()
			close(dead)
			agent, _ = w.agent()
			if test.wanted {
				agent.SetPod(pod)
			}
			agent.PodsSynced()
			if test.wanted {
				w.mounted(agent, pod)
			}
			w.gone(agent, pod)
			if slices.ContainsFunc(w.driver.Made(), func(call string) bool { return strings.Contains(call, "tage ") }) {
				t.Errorf("an inline volume was staged: %v", w.driver.Made())
			}
		})
	}
}

// TestRestartLeavesInlineVolumeAlone: a confirmed and mounted volume is not published again.
func TestRestartLeavesInlineVolumeAlone(t *testing.T) {
	w := newWorld(t, modes(ephemeral))
	agent, stop := w.agent()
	pod := w.inlinePod("p", "scratch")
	agent.SetPod(pod)
	before := w.mounted(agent, pod)
	stop()
	agent, _ = w.agent()
	agent.SetPod(pod)
	if diff := cmp.Diff(before, w.mounted(agent, pod)); diff != "" {
		t.Errorf("mounts after the restart (-before +after):\n%s", diff)
	}
	w.gone(agent, pod)
	if calls := w.driver.Made(); len(calls) != 2 {
		t.Errorf("calls %v", calls)
	}
}

// TestTornInlineVolumeRecord: vol_data.json identifies the volume.
func TestTornInlineVolumeRecord(t *testing.T) {
	for name, damage := range map[string]string{"empty": "", "cut off": `{"version":1,"kind":"pu`} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, modes(ephemeral))
			agent, stop := w.agent()
			pod := w.inlinePod("p", "scratch")
			agent.SetPod(pod)
			w.mounted(agent, pod)
			stop()
			files, err := filepath.Glob(filepath.Join(w.root, recordsDir, "*.json"))
			must(t, err)
			for _, file := range files {
				must(t, os.WriteFile(file, []byte(damage), 0o600))
			}
			agent, _ = w.agent()
			agent.PodsSynced()
			w.gone(agent, pod)
			if diff := cmp.Diff([]string{"Publish " + inlineID(pod, "scratch"), "Unpublish " + inlineID(pod, "scratch")}, w.driver.Made()); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if got := w.node().Status.VolumesInUse; len(got) > 0 {
				t.Errorf("in use: %v", got)
			}
		})
	}
}

// TestInlineVolumeIsUnpublishedWithoutAPI: neither the CSIDriver nor the Node is read for it.
func TestInlineVolumeIsUnpublishedWithoutAPI(t *testing.T) {
	w := newWorld(t, modes(ephemeral))
	agent, stop := w.agent()
	pod := w.inlinePod("p", "scratch")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	stop()
	w.nodeID = &rest.Config{Host: "https://127.0.0.1:1"} // no server listens
	agent, _ = w.agent()
	w.gone(agent, pod)
}
