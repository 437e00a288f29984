package kubectl

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
