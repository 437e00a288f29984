package kubectl

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/testing/golden"
)

var rewriteTimelines = flag.Bool("update-timelines", false, "rewrite the stored texts of timelines: read each before you commit it")

// TestTimelineText makes the text of each stored move again.
func TestTimelineText(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "timelines", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d stored moves (%v)", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			stored, err := golden.Read(file)
			if err != nil {
				t.Fatal(err)
			}
			moves, err := diagnosis.Timelines(stored.Snapshot, stored.Subject)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := (&plugin{IOStreams: genericiooptions.IOStreams{Out: &out}}).printTimeline(moves); err != nil {
				t.Fatal(err)
			}
			text := strings.TrimSuffix(file, ".json") + ".txt"
			if *rewriteTimelines {
				if err := os.WriteFile(text, out.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), out.String()); diff != "" {
				t.Errorf("text (-stored +now), rewrite it with -update-timelines if that is better:\n%s", diff)
			}
		})
	}
}

// TestAtLeastNothing: "at least" is followed by what the wait has lasted at least.
func TestAtLeastNothing(t *testing.T) {
	zero, few, middle, long, longer := 0.0, 4.0, 500.0, 4000.0, 12345.0
	for name, tc := range map[string]struct{ got, want string }{
		"so far":       {intervalText(&diagnosis.Interval{SoFar: &zero, AtLeast: &zero}), "unknown"},
		"range":        {intervalText(&diagnosis.Interval{AtLeast: &long, AtMost: &longer}), "unknown, ~1h6m40s to 3h25m45s"},
		"two units":    {intervalText(&diagnosis.Interval{AtLeast: &middle, AtMost: &long}), "unknown, ~500 s to 1h6m40s"},
		"one unit":     {intervalText(&diagnosis.Interval{AtLeast: &few, AtMost: &middle}), "unknown, ~4 to 500 s"},
		"at most":      {intervalText(&diagnosis.Interval{AtMost: &longer}), "unknown, at most 3h25m45s"},
		"least > most": {intervalText(&diagnosis.Interval{AtLeast: &longer, AtMost: &long}), "unknown"},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %q, want %q", name, tc.got, tc.want)
		}
	}
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	m := &diagnosis.Move{
		Volume: &diagnosis.Volume{PersistentVolume: "pv-1"}, Start: &now, End: &now, StartedBefore: true,
		Hops: []diagnosis.Hop{{Name: diagnosis.HopPodDeleted, State: diagnosis.HopWaiting, Seconds: &zero, AtLeast: true, After: diagnosis.HopScheduled, Why: "a pod there may still use the volume"}},
	}
	p := &page{}
	p.move(m)
	if text := p.text.String(); strings.Contains(text, ">1 s") || strings.Contains(text, "at least <1 s") {
		t.Errorf("a wait of less than a second:\n%s", text)
	}
}
