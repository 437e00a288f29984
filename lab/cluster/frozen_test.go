package cluster_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labtest"
)

// TestNothingIsLeftOfAFrozenNode: the kernel ends no process of a frozen node, neither when its lab goes down nor when the lab was killed.
func TestNothingIsLeftOfAFrozenNode(t *testing.T) {
	labtest.Needs(t)
	cache, err := cluster.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	const name = "hl-frozen"
	dir := filepath.Join(cache, "labs", name)
	for how, end := range map[string]func(*testing.T, *cluster.Remote, *exec.Cmd){
		"down": func(t *testing.T, lab *cluster.Remote, holder *exec.Cmd) {
			t.Helper()
			if err := lab.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			_ = holder.Wait()
			if removed, err := cluster.Clean(t.Context(), name); err != nil || len(removed) > 0 {
				t.Errorf("after the end there was something to clean: %v (%v)", removed, err)
			}
			assertNothingLeft(t, dir)
		},
		"killed": func(t *testing.T, _ *cluster.Remote, holder *exec.Cmd) {
			t.Helper()
			if err := holder.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = holder.Wait()
			cleanKilled(t, name, dir)
		},
	} {
		t.Run(how, func(t *testing.T) {
			holder := exec.Command(filepath.Join(os.Getenv("BELAY_BIN"), "belay-lab"), "supervise",
				"--options", `{"name":"`+name+`","nodes":1,"nodeKind":"belay"}`)
			reader, writer, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			holder.ExtraFiles = []*os.File{writer}
			err = holder.Start()
			_ = writer.Close()
			if err != nil {
				t.Fatal(err)
			}
			progress := bufio.NewScanner(reader)
			for progress.Scan() && !strings.Contains(progress.Text(), `"ready":true`) {
				t.Log(progress.Text())
			}
			_ = reader.Close()
			lab, err := cluster.Find(name)
			if err != nil {
				t.Fatal(err)
			}
			status, err := lab.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := lab.Freeze(t.Context(), "node-1"); err != nil {
				t.Error(err)
			}
			if log, err := os.ReadFile(status.Logs["lab"]); err != nil || !strings.Contains(string(log), "a client asks: freeze node-1") {
				t.Errorf("the log of the lab does not show what was done to it, %v:\n%s", err, log)
			}
			end(t, lab, holder)
		})
	}
}
