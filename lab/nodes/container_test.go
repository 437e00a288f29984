package nodes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// shell is a spec that runs a shell script in a container.
func shell(script string, mounts ...bind) containerSpec {
	return containerSpec{Command: []string{"sh", "-c", script}, Env: []string{defaultPath, "COLOUR=blue"}, WorkDir: "/", Mounts: mounts}
}

// as says as whom it runs.
func as(uid, gid int64, groups ...int64) containerSpec {
	spec := shell(`echo "$(id -u) $(id -g): $(id -G)"`)
	spec.Groups = groups
	if uid != 0 {
		spec.UID, spec.GID = &uid, &gid
	}
	return spec
}

// startContainerIn runs a container in a directory of the test.
func startContainerIn(t *testing.T, dir string, spec containerSpec) *container {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a container needs root: run this test as root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := prepareContainer(self, dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.start(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.kill()
		awaitDone(t, c)
	})
	return c
}

func awaitDone(t *testing.T, c *container) {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(testPatience):
		t.Fatal("container did not end")
	}
}

// output is the text of a container's log, without times.
func output(t *testing.T, dir string) []string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, logFile))
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, line := range lines(string(raw)) {
		_, rest, _ := strings.Cut(line, " ")
		texts = append(texts, rest)
	}
	return texts
}

// awaitOutput waits until a container has written some output.
func awaitOutput(t *testing.T, dir, want string) {
	t.Helper()
	within(testPatience, func() bool {
		raw, _ := os.ReadFile(filepath.Join(dir, logFile))
		return strings.Contains(string(raw), want)
	})
	if all := strings.Join(output(t, dir), "\n"); !strings.Contains(all, want) {
		t.Fatalf("container did not say %q, but:\n%s", want, all)
	}
}

func TestContainer(t *testing.T) {
	tests := map[string]struct {
		spec     containerSpec
		exitCode int
		output   []string
	}{
		"output of both streams and environment": {
			spec: shell(`echo "sky is $COLOUR"; echo trouble >&2`), output: []string{"stderr F trouble", "stdout F sky is blue"}},
		"last line has no newline": {spec: shell("printf half"), output: []string{"stdout F half"}},
		"exit code":                {spec: shell("exit 7"), exitCode: 7},
		"ended by a signal":        {spec: shell("kill -9 $$; sh -c 'kill -9 $PPID'; echo $$"), output: []string{"stdout F 1"}},
		"a program that is not there": {
			spec: containerSpec{Command: []string{"no-such-program"}, Env: []string{defaultPath}}, exitCode: exitStartError},
		"a /dev of its own without the disks of the machine": {
			spec: shell("ls /dev | tr '\\n' ' '"), output: []string{"stdout F fd full null random stderr stdin stdout tty urandom zero"}},
		"another user with more groups":           {spec: as(1001, 1002, 3001, 3002), output: []string{"stdout F 1001 1002: 1002 3001 3002"}},
		"root with one more group":                {spec: as(0, 0, 3001), output: []string{"stdout F 0 0: 0 3001"}},
		"nothing is left of background processes": {spec: shell("sleep 1000 & echo started"), output: []string{"stdout F started"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c := startContainerIn(t, dir, test.spec)
			awaitDone(t, c)
			if code := c.outcome().ExitCode; code != test.exitCode {
				t.Errorf("exit code %d, want %d: %+v", code, test.exitCode, c.outcome())
			}
			got := output(t, dir)
			slices.Sort(got) // the streams have no order between them
			if diff := cmp.Diff(test.output, got); diff != "" {
				t.Errorf("output -want +got\n%s", diff)
			}
		})
	}
}

func TestContainerSeesOnlyItsVolumes(t *testing.T) {
	dir, volume, elsewhere := t.TempDir(), t.TempDir(), t.TempDir()
	if os.Geteuid() != 0 {
		t.Skip("a container needs root: run this test as root")
	}
	if err := unix.Mount("tmpfs", elsewhere, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(elsewhere, 0) }()
	script := fmt.Sprintf(`
		echo written > /data/file && echo "data can be written"
		echo no 2>/dev/null > /fixed/file || echo "read-only is read-only"
		touch /a-file-in-the-root && echo "the root can be written"
		grep -q %s /proc/self/mountinfo || echo "other mounts are gone"
		[ -e %s/file ] || echo "the folder of the volume is not seen twice"`, elsewhere, dir)
	c := startContainerIn(t, dir, shell(script,
		bind{Source: volume, Target: "/data"}, bind{Source: volume, Target: "/fixed", ReadOnly: true}))
	awaitDone(t, c)
	want := []string{
		"stdout F data can be written", "stdout F read-only is read-only", "stdout F the root can be written",
		"stdout F other mounts are gone", "stdout F the folder of the volume is not seen twice",
	}
	got := output(t, dir)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if _, err := os.Stat("/a-file-in-the-root"); err == nil {
		t.Error("the container wrote into the machine's root")
	}
	if raw, _ := os.ReadFile(filepath.Join(volume, "file")); string(raw) != "written\n" {
		t.Errorf("the volume holds %q", raw)
	}
}

func TestContainerOutlivesItsAgent(t *testing.T) {
	dir := t.TempDir()
	first := startContainerIn(t, dir, shell(`trap 'echo asked; exit 3' TERM; echo up; while :; do sleep 0.02; done`))
	awaitOutput(t, dir, "up")

	c, found, err := adoptContainer(dir)
	if err != nil || !found || !c.running() {
		t.Fatalf("a second agent sees found %v, running %v, %v", found, found && c.running(), err)
	}
	if c.started.PID != first.started.PID || !c.started.At.Equal(first.started.At) {
		t.Errorf("second agent sees %+v, first %+v", c.started, first.started)
	}
	c.terminate()
	awaitDone(t, c)
	if end := c.outcome(); end.ExitCode != 3 {
		t.Errorf("ended %+v, want exit code 3", end)
	}
	awaitDone(t, first)

	late, found, err := adoptContainer(dir)
	if err != nil || !found || late.running() || late.outcome().ExitCode != 3 {
		t.Errorf("an agent after the end sees %+v, found %v, %v", late, found, err)
	}
}

func TestContainerThatIgnoresSIGTERMIsKilled(t *testing.T) {
	dir := t.TempDir()
	c := startContainerIn(t, dir, shell(`trap '' TERM; echo up; while :; do sleep 0.02; done`))
	awaitOutput(t, dir, "up")
	c.terminate()
	c.kill()
	awaitDone(t, c)
	if end := c.outcome(); end.Signal != int(unix.SIGKILL) || end.ExitCode != 137 {
		t.Errorf("ended %+v, want SIGKILL", end)
	}
}

func TestContainerDiesWithItsKeeper(t *testing.T) {
	dir := t.TempDir()
	c := startContainerIn(t, dir, shell(`echo up; sleep 1000`))
	awaitOutput(t, dir, "up")
	command := c.started.PID
	if err := c.process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitDone(t, c)
	within(testPatience, func() bool { return unix.Kill(command, 0) != nil })
	if unix.Kill(command, 0) == nil {
		t.Error("the command outlived container-exec")
	}
	if end := c.outcome(); end.ExitCode != 137 || end.Problem == "" {
		t.Errorf("ended %+v", end)
	}
}

func TestDiscardedContainerLeavesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a container needs root: run this test as root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "container")
	p, err := prepareContainer(self, dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, found, err := adoptContainer(dir); found || err != nil {
		t.Errorf("a container that was only prepared is found: %v, %v", found, err)
	}
	p.discard()
	if _, err := os.Stat(dir); err == nil {
		t.Error("its directory stays")
	}
}

func TestContainerGetsADevice(t *testing.T) {
	if _, err := os.Stat("/dev/loop0"); err != nil {
		t.Skip("no loop device to show to a container")
	}
	dir := t.TempDir()
	c := startContainerIn(t, dir, shell(`[ -b /dev/disk ] && stat -c '%t:%T' /dev/disk`, bind{Source: "/dev/loop0", Target: "/dev/disk", Device: true}))
	awaitDone(t, c)
	if diff := cmp.Diff([]string{"stdout F 7:0"}, output(t, dir)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
