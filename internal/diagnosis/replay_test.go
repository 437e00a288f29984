package diagnosis_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kubectl"
	"belay.dev/belay/internal/testing/golden"
)

var rewrite = flag.Bool("update", false, "rewrite the stored texts of the stuck situations: read each before you commit it")

// texts has what was printed of each situation in a lab, by plane.
const texts = "../../lab/explained/testdata"

// TestStuckSituations makes the text of each stuck situation of the lab again, from what was read there. Package lab/explained
// stores both, and checks in a lab that the situation still is like that.
func TestStuckSituations(t *testing.T) {
	files, err := filepath.Glob(texts + "/*/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d stored texts (%v)", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(file, texts+"/"), ".txt")
		t.Run(name, func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			stored, err := golden.Read(filepath.Join("testdata", name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			e, err := diagnosis.Explain(stored.Snapshot, stored.Subject)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			if err := kubectl.Text(&out, e); err != nil {
				t.Fatal(err)
			}
			got := golden.Normalize(out.String())
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("text (-stored +now), rewrite it with -update if that is better:\n%s", diff)
			}
		})
	}
}
