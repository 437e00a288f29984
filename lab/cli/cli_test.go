package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

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
	err = execute(t.Context(), root, args)
	if err != nil {
		code = exitCode(t.Context(), err)
	}
	return out.String(), code, err
}

func TestUsageErrors(t *testing.T) {
	t.Setenv("BELAY_CACHE", t.TempDir())
	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"unknown flag":                 {[]string{"up", "--no-such-flag"}, ExitUsage, "belay-lab up --help"},
		"argument too many":            {[]string{"down", "now"}, ExitUsage, `belay-lab down accepts no arguments, received "now"`},
		"no node named":                {[]string{"node", "poweroff"}, ExitUsage, "poweroff wants one name"},
		"no component to cut off":      {[]string{"partition"}, ExitUsage, "partition wants one name"},
		"no such lab to heal parts of": {[]string{"heal", "attacher"}, ExitNotRunning, "lab lab: it does not run"},
		"partition of no direction":    {[]string{"node", "partition", "n", "--direction", "up"}, ExitUsage, "--direction must be one of [both to-api from-api]"},
		"unknown command":              {[]string{"frob"}, ExitUsage, `unknown command "frob"`},
		"unknown command, with a flag": {[]string{"frob", "--name", "x"}, ExitUsage, `unknown command "frob"`},
		"unknown command of a group":   {[]string{"node", "frob"}, ExitUsage, `unknown command "frob" for "belay-lab node"`},
		"almost a command of a group":  {[]string{"node", "--name", "h", "powerof"}, ExitUsage, "did you mean poweroff"},
		"unknown fault command":        {[]string{"fault", "unset"}, ExitUsage, `unknown command "unset"`},
		"unknown bench":                {[]string{"bench", "everything"}, ExitUsage, `unknown command "everything"`},
		"argument of the demo":         {[]string{"demo", "now"}, ExitUsage, `belay-lab demo accepts no arguments, received "now"`},
		"two flags that exclude":       {[]string{"clean", "--name", "a", "--cache"}, ExitUsage, "none of the others can be"},
		"required flag":                {[]string{"labdisk", "fabric"}, ExitUsage, "required flag"},
		"flag value of a wrong type":   {[]string{"up", "--node-count", "many"}, ExitUsage, `--node-count is "many", but must be a whole number; see belay-lab up --help`},
		"log level below zero":         {[]string{"up", "--nodes", "belay", "-v", "-3"}, ExitUsage, "--verbosity is -3, but must be a log level: 0 or more"},
		"log level of the agents":      {[]string{"up", "--nodes", "belay", "--node-arg=--v=-1"}, ExitUsage, "--v is -1, but must be a log level: 0 or more"},
		"no name":                      {[]string{"up", "--name", ""}, ExitUsage, `--name is "", but must be 1 to 32 lower-case letters`},
		"no name of a lab to end":      {[]string{"down", "--name="}, ExitUsage, `--name is ""`},
		"no name of a lab to clean":    {[]string{"clean", "--name="}, ExitUsage, `--name is ""`},
		"name of another language":     {[]string{"up", "--name", "Müller"}, ExitUsage, `--name is "Müller", but`},
		"name that is too long":        {[]string{"up", "--name", strings.Repeat("a", 33)}, ExitUsage, "but must be 1 to 32"},
		"fewer nodes than none":        {[]string{"up", "--node-count", "-1"}, ExitUsage, "--node-count must be 1 to 20, not -1"},
		"no nodes":                     {[]string{"up", "--node-count", "0"}, ExitUsage, "--node-count must be 1 to 20, not 0"},
		"too many nodes":               {[]string{"up", "--node-count", "21"}, ExitUsage, "not 21"},
		"unknown kind of nodes":        {[]string{"up", "--nodes", "kwok"}, ExitUsage, `--nodes must be kubelet or belay, not "kwok"`},
		"unknown driver":               {[]string{"up", "--nodes", "belay", "--drivers", "ebs"}, ExitUsage, `--drivers must be of labdisk.belay.dev, labshare.belay.dev, lablocal.belay.dev, not "ebs"`},
		"name that is a path":          {[]string{"up", "--nodes", "belay", "--name", "../x"}, ExitUsage, "../x"},
		"name that is a path, no lab":  {[]string{"status", "--name", "../x"}, ExitUsage, "../x"},
		"unknown flag of the agent":    {[]string{"up", "--nodes", "belay", "--node-arg", "--frob"}, ExitUsage, "unknown flag: --frob"},
		"flag of no program":           {[]string{"up", "--nodes", "belay", "--upstream", "--controller-arg=--v=4"}, ExitUsage, "have no effect"},
		"unknown output":               {[]string{"status", "-o", "yaml"}, ExitUsage, `not "yaml"`},
		"unknown effect":               {[]string{"fault", "set", "explode"}, ExitUsage, "explode"},
		"no effect":                    {[]string{"fault", "set"}, ExitUsage, "needs one effect, delay, error, hang, lost-reply, limit, late, disorder"},
		"fault of no method":           {[]string{"fault", "set", "hang", "--method", "Attach"}, ExitUsage, `--method is "Attach", but must be one of GetPluginInfo`},
		"fault of no driver":           {[]string{"fault", "set", "hang", "--driver", "ebs"}, ExitUsage, `--driver is "ebs", but must be one of labdisk.belay.dev`},
		"fault that is none":           {[]string{"fault", "set", "error", "--code", "OK"}, ExitUsage, `--code is "OK", but must be one of Canceled`},
		"limit without a limit":        {[]string{"fault", "set", "limit"}, ExitUsage, "--limit is required for the effect limit"},
		"limit of another effect":      {[]string{"fault", "set", "hang", "--limit", "2"}, ExitUsage, "only the effect limit has a limit"},
		"effect without its value":     {[]string{"fault", "set", "delay"}, ExitUsage, "delay above zero"},
		"kind of nodes of the demo":    {[]string{"demo", "--nodes", "kwok"}, ExitUsage, `--nodes must be kubelet or belay, not "kwok"`},
		"demo of no rounds":            {[]string{"demo", "--rounds", "0"}, ExitUsage, "--rounds must be at least 1, not 0"},
		"bench of no rounds":           {[]string{"bench", "node", "--rounds", "0"}, ExitUsage, "--rounds must be at least 1, not 0"},
		"environment of two labs":      {[]string{"env", "a", "--name", "b"}, ExitUsage, "once"},
		"environment of no lab":        {[]string{"env", "a"}, ExitNotRunning, "lab a: it does not run"},
		"no such lab":                  {[]string{"status"}, ExitNotRunning, "lab lab: it does not run"},
		"a short image name":           {[]string{"image", "load", "--as", "x:v1", "x"}, ExitUsage, "a whole name with a tag other than latest"},
		"an image name without a tag":  {[]string{"image", "load", "--as", "lab.belay.dev/x", "x"}, ExitUsage, "a whole name with a tag other than latest"},
		"a bad image name":             {[]string{"image", "load", "--as", "UPPER CASE", "x"}, ExitUsage, "invalid reference format"},
		"no archive":                   {[]string{"image", "load"}, ExitUsage, "image load wants an archive"},
		"a controller that is none":    {[]string{"switch", "controller", "foo"}, ExitUsage, "wants one of upstream, belay, none"},
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

func TestCleanReportsNothingToClean(t *testing.T) {
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

func TestSupervisorMessagesReachUser(t *testing.T) {
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
			{Name: "etcd", PID: 11, Stopped: true}, {Name: "kube-apiserver", PID: 12, Restarts: 2, LastError: "signal: killed"},
			{Name: "attacher"}, {Name: "node-1", PID: 13}, {Name: "node-2"},
		},
		Children: map[string][]cluster.Child{"node-1": {{Name: "node-1/agent", State: cluster.ChildStopped, Restarts: 1}}},
		Off:      []string{"node-2"},
		BMCs:     map[string]string{"node-2": "127.0.0.1:6", "node-1": "127.0.0.1:5"}, Partitioned: map[string]cluster.Direction{"node-1": cluster.ToAPI},
		Logs:    map[string]string{"lab": "/l/lab.log", "etcd": "/l/etcd.log", "node-1/agent": "/n/log/agent.log"},
		Metrics: map[string]string{"etcd": "https://127.0.0.1:2/metrics"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `Lab lab: belay plane, belay nodes, strict storage (labdisk.belay.dev)
Server https://127.0.0.1:1, kubeconfig /k
Supervisor 7, log /l/lab.log
BMCs (IPMI, user admin, password belay-lab): node-1 127.0.0.1:5, node-2 127.0.0.1:6
Partitioned: node-1 to-api

COMPONENT       STATE    PID  RESTARTS  LAST EXIT       METRICS                      LOG
etcd            stopped  11   0         -               https://127.0.0.1:2/metrics  /l/etcd.log
kube-apiserver  running  12   2         signal: killed  -
attacher        down     -    0         -               -
node-1          running  13   0         -               -
node-1/agent    stopped  -    1         -               -                            /n/log/agent.log
node-2          off      -    0         -               -
`
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.TrimRight(line, " \n")+"\n")
	}
	if diff := cmp.Diff(want, strings.Join(lines, "")); diff != "" {
		t.Errorf("(-want +got): %s", diff)
	}
}

func TestExportLinesAreQuotedForShell(t *testing.T) {
	got := exportLines(cluster.Status{Kubeconfig: "/my cache/kubeconfig", Kubectl: "/bin/v1/kubectl"}, "")
	if want := "export KUBECONFIG='/my cache/kubeconfig'\nexport PATH=/bin/v1:$PATH\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Groups of commands print their help, which is no failure.
func TestCommandGroupPrintsHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"node"}, {"fault"}, {"bench"}} {
		out, code, err := run(t, args...)
		if err != nil || code != ExitOK || !strings.Contains(out, "Available Commands:") {
			t.Errorf("%v: exit code %d (%v), output %q", args, code, err, out)
		}
	}
}

// Another user's lab runs, although this user cannot ask it.
func TestLabOfAnotherUserIsNotReportedAsDown(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	cache, err := os.MkdirTemp("/tmp", "belay-cli") //nolint:usetesting // another user must reach it, and a socket lies below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(cache) })
	dir := filepath.Join(cache, "labs", "theirs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "control.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	t.Setenv("BELAY_CACHE", cache)
	// Capabilities and identity belong to threads: this one is not used again.
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			t.Errorf("becoming another user: %v", errno)
			return
		}
		_, code, err := run(t, "status", "--name", "theirs")
		if code != ExitFailed || err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("exit code %d (%v), want %d and that permission was denied", code, err, ExitFailed)
		}
		_, code, err = run(t, "status", "--name", "nobodys")
		if code != ExitNotRunning || err == nil {
			t.Errorf("exit code %d (%v), want %d", code, err, ExitNotRunning)
		}
	}()
	<-done
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
