package field

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

var update = flag.Bool("update", false, "rewrite the stored answers: read the difference before you commit it")

// shared is the cluster with all situations, which the tests share; nil until one needs it.
var shared *Rig

var open = sync.OnceValue(func() error {
	situations, err := Load()
	if err != nil {
		return err
	}
	progress := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	shared, err = Open(context.Background(), Options{Name: "field", Progress: progress}, situations)
	return err
})

func TestMain(m *testing.M) {
	status := m.Run()
	if shared != nil {
		dir := shared.lab.Dir()
		if err := shared.Close(context.Background()); err != nil {
			fmt.Println(err)
			status = 1
		}
		if left := scenario.LeftOnMachine(dir); len(left) > 0 {
			fmt.Printf("the lab left on the machine:\n%s\n", strings.Join(left, "\n"))
			status = 1
		}
	}
	os.Exit(status)
}

func rig(t *testing.T) (r *Rig, plugin string) {
	t.Helper()
	labtest.Needs(t)
	plugin, err := cluster.Program("kubectl-belay")
	if err != nil {
		t.Fatal(err)
	}
	if err := open(); err != nil {
		t.Fatal(err)
	}
	return shared, plugin
}

// overall are the questions about the whole cluster. Their answers are stored under that name.
const overall = "_cluster"

// TestAnswers compares what the plugin says with what is stored.
func TestAnswers(t *testing.T) {
	r, plugin := rig(t)
	situations, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range situations {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			compare(t, r, plugin, s.Name, s.heading(), s.Questions())
		})
	}
	t.Run(overall, func(t *testing.T) {
		t.Parallel()
		compare(t, r, plugin, overall, "", [][]string{{"stuck", "-A"}, {"orphans"}, {"check"}})
	})
}

func compare(t *testing.T, r *Rig, plugin, name, text string, questions [][]string) {
	t.Helper()
	for _, width := range widths {
		text += fmt.Sprintf("\n== %d columns\n", width)
		answers, err := r.AskAll(t.Context(), plugin, width, questions)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range answers {
			text += "\n" + a.String()
		}
	}
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	stored, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(stored) {
		t.Errorf("the answers differ (-stored +printed); go test ./field -update stores them:\n%s", cmp.Diff(string(stored), text))
	}
}
