package attacher

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"belay.dev/belay/internal/testing/process"
	"belay.dev/belay/internal/testing/wait"
)

// confinedVariable makes the test binary become the program that its arguments name, confined like the container of
// deploy/belay-attacher: every mount read-only, only the rights of the user that the variable names, no environment.
const confinedVariable = "BELAY_TEST_CONFINED"

// becomeConfined runs in a mount namespace of its own and returns only if it fails.
func becomeConfined(user string, argv []string) int {
	id, err := strconv.Atoi(user)
	steps := []func() error{
		func() error { return err },
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error {
			return unix.MountSetattr(-1, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		},
		func() error { return os.Chdir("/") },
		func() error { return syscall.Setgroups(nil) },
		func() error { return syscall.Setgid(id) },
		func() error { return syscall.Setuid(id) },
		func() error { return syscall.Exec(argv[0], argv, nil) },
	}
	for i, step := range steps {
		if err := step(); err != nil {
			fmt.Fprintln(os.Stderr, "confine: step", i, err)
			break
		}
	}
	return 3
}

// The shipped Deployment's securityContext is sufficient: as that user, without any writable file system, and without
// HOME or any other variable, the program attaches and detaches, and writes no byte to a disk.
func TestRunsUnprivilegedWithReadOnlyFileSystems(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it changes the user and makes mounts read-only in a namespace of its own")
	}
	w := newWorld(t)
	pod := podSpec(t, "../../deploy/belay-attacher/deployment.yaml")
	c, asUser := container(t, pod), pod.SecurityContext
	if own := c.SecurityContext; !*own.ReadOnlyRootFilesystem || *own.AllowPrivilegeEscalation || own.Capabilities.Drop[0] != "ALL" || !*asUser.RunAsNonRoot {
		t.Fatalf("the shipped container is not confined: %v", own)
	}
	user := int(*asUser.RunAsUser)
	// The driver beside it runs as the same user, so that its socket is that user's.
	dir := filepath.Dir(w.driver.Address)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	content, err := os.ReadFile(shippedKubeconfig(t))
	err = errors.Join(err, os.WriteFile(kubeconfig, content, 0o400), os.Chown(kubeconfig, user, user),
		os.Chown(dir, user, user), os.Chown(w.driver.Address, user, user))
	must(t, err)
	w.node("node1")
	w.secret("s1", map[string][]byte{"key": []byte("value")})
	w.volume("pv1", withSecret(w, "s1"))
	executable, err := os.Executable()
	must(t, err)
	address := process.FreeAddress()
	cmd := exec.Command(executable, append([]string{programPath(t)}, containerArgs(c, w.driver.Address, address)...)...)
	cmd.Args = append(cmd.Args, "--kubeconfig", kubeconfig, "--leader-election-namespace", shippedNamespace)
	cmd.Args = append(cmd.Args, patientTimes...)
	cmd.Env = []string{confinedVariable + "=" + strconv.Itoa(user)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	p := process.Start(t, cmd)
	proc := fmt.Sprintf("/proc/%d/", cmd.Process.Pid)
	wait.Until(t, "the process has become the program", func() bool {
		name, _ := os.Readlink(proc + "exe")
		return name == programPath(t)
	})
	written := writtenBytes(t, proc) // by what it was before: also to read a file may count, for its time of access

	attachAndDetach(w, "pv1")
	scrape(t, address, "/metrics", "csi_sidecar_operations_seconds_count")
	scrape(t, address, c.LivenessProbe.HTTPGet.Path)
	for _, want := range []struct{ file, line string }{
		{"status", fmt.Sprintf("Uid:\t%d\t%d\t%d\t%d", user, user, user, user)},
		{"status", "CapEff:\t0000000000000000"},
		{"io", written},
		{"environ", ""},
	} {
		content, err := os.ReadFile(proc + want.file)
		if err != nil || !strings.Contains("\n"+string(content)+"\n", "\n"+want.line+"\n") {
			t.Errorf("%s%s: want %q, have %s (%v)", proc, want.file, want.line, content, err)
		}
	}
	for _, line := range writableMounts(t, proc) {
		t.Errorf("writable: %s", line)
	}
	if code := p.Stop(syscall.SIGTERM); code != 1 { // as csi-attacher ends when it leaves the lease
		t.Errorf("ended with %d", code)
	}
}

// writtenBytes is the line of /proc/pid/io that tells how much a process has caused to be written to disks.
func writtenBytes(t *testing.T, proc string) string {
	t.Helper()
	content, err := os.ReadFile(proc + "io")
	must(t, err)
	for line := range strings.Lines(string(content)) {
		if strings.HasPrefix(line, "write_bytes: ") {
			return strings.TrimSpace(line)
		}
	}
	t.Fatalf("no count of the bytes written in %s", content)
	return ""
}

// writableMounts lists what a process could write to.
func writableMounts(t *testing.T, proc string) []string {
	t.Helper()
	file, err := os.Open(proc + "mountinfo")
	must(t, err)
	defer func() { _ = file.Close() }()
	var found []string
	mounts := 0
	for lines := bufio.NewScanner(file); lines.Scan(); mounts++ {
		// 36 35 98:0 /root /mountpoint ro,noatime ...
		if fields := strings.Fields(lines.Text()); !strings.HasPrefix(fields[5], "ro") {
			found = append(found, lines.Text())
		}
	}
	if mounts == 0 {
		t.Fatal("no mounts")
	}
	return found
}
