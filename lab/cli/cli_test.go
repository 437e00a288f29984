package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/proc"
)

// run executes the command line in an empty cache folder.
func run(t *testing.T, args ...string) (stdout string, code int, err error) {
	t.Helper()
	root := New("test")
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err = root.ExecuteContext(t.Context())
	if err != nil {
		code = exitCode(t.Context(), err)
	}
	return out.String(), code, err
}

func TestWrongCommandLinesAreToldAsSuch(t *testing.T) {
	t.Setenv("BELAY_CACHE", t.TempDir())
	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"unknown flag":                 {[]string{"up", "--no-such-flag"}, ExitUsage, "belay-lab up --help"},
		"argument too many":            {[]string{"down", "now"}, ExitUsage, "now"},
		"no node named":                {[]string{"node", "poweroff"}, ExitUsage, "poweroff wants one name"},
		"no such lab":                  {[]string{"status"}, ExitNotRunning, "lab lab: it does not run"},
		"no such lab to kill parts of": {[]string{"kill", "etcd", "--name", "other"}, ExitNotRunning, "lab other: it does not run"},
		"no such lab to end":           {[]string{"down"}, ExitNotRunning, "it does not run"},
	} {
		t.Run(name, func(t *testing.T) {
			_, code, err := run(t, test.args...)
			if code != test.code || err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("exit code %d (%v), want %d and %q", code, err, test.code, test.says)
			}
		})
	}
}

func TestCleanWithoutAnythingSaysSo(t *testing.T) {
	t.Setenv("BELAY_CACHE", t.TempDir())
	for _, args := range [][]string{{"clean"}, {"clean", "--name", "other"}} {
		out, code, err := run(t, args...)
		if diff := cmp.Diff("nothing to clean\n", out); diff != "" || code != ExitOK || err != nil {
			t.Errorf("%v: exit code %d (%v), output (-want +got): %s", args, code, err, diff)
		}
	}
}

func TestInterruptionHasItsOwnExitCode(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := exitCode(ctx, fmt.Errorf("waiting: %w", ctx.Err())); got != ExitInterrupted {
		t.Errorf("got %d, want %d", got, ExitInterrupted)
	}
	if got := exitCode(t.Context(), errors.New("disk full")); got != ExitFailed {
		t.Errorf("got %d, want %d", got, ExitFailed)
	}
}

func TestSupervisorsWordsReachTheUser(t *testing.T) {
	for name, test := range map[string]struct {
		lines    string
		ready    bool
		failure  string
		progress []string
	}{
		"ready":          {`{"progress":"a"}` + "\n" + `{"progress":"b"}` + "\n" + `{"ready":true}` + "\n", true, "", []string{"a", "b"}},
		"failed":         {`{"progress":"a"}` + "\n" + `{"error":"no FUSE"}` + "\n", false, "no FUSE", []string{"a"}},
		"ended silently": {`{"progress":"a"}` + "\n", false, "", []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			ready, failure := follow(strings.NewReader(test.lines), func(format string, args ...any) {
				got = append(got, fmt.Sprintf(format, args...))
			})
			if diff := cmp.Diff(test.progress, got); diff != "" || ready != test.ready || failure != test.failure {
				t.Errorf("ready %v, failure %q, progress (-want +got): %s", ready, failure, diff)
			}
		})
	}
}

func TestStatusTable(t *testing.T) {
	var out bytes.Buffer
	err := printStatus(&out, cluster.Status{
		Name: "lab", Plane: "belay", NodeKind: "belay", Drivers: []string{"labdisk.belay.dev"}, Server: "https://127.0.0.1:1", Kubeconfig: "/k", HolderPID: 7,
		Components: []proc.State{
			{Name: "etcd", PID: 11}, {Name: "kube-apiserver", PID: 12, Restarts: 2, LastError: "signal: killed"}, {Name: "node-1"}, {Name: "node-2"},
		},
		Off:  []string{"node-2"},
		Logs: map[string]string{"etcd": "/l/etcd.log", "node-1": "/n/log/agent.log"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `Lab lab: belay plane, belay nodes, strict storage (labdisk.belay.dev)
Server https://127.0.0.1:1, kubeconfig /k, supervisor 7

COMPONENT       STATE    PID  RESTARTS  LAST EXIT       LOG
etcd            running  11   0                         /l/etcd.log
kube-apiserver  running  12   2         signal: killed
node-1          down     -    0                         /n/log/agent.log
node-2          off      -    0
`
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.TrimRight(line, " \n")+"\n")
	}
	if diff := cmp.Diff(want, strings.Join(lines, "")); diff != "" {
		t.Errorf("(-want +got): %s", diff)
	}
}

// Every visible command explains itself.
func TestEveryCommandHasHelp(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(command *cobra.Command) {
		if !command.Hidden && command.Short == "" {
			t.Errorf("%s says nothing about itself", command.CommandPath())
		}
		for _, child := range command.Commands() {
			walk(child)
		}
	}
	walk(New("test"))
}
