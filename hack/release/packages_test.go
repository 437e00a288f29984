package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// machine is a root in a mount namespace of its own with a volume below kubelet's root. All programs run in that namespace, and the volume is looked for
// there: an unmount elsewhere would not be seen.
type machine struct {
	root      string
	namespace int // the process that keeps it
}

const (
	volume = "/var/lib/kubelet/pods/uid/volumes/data"
	calls  = "/systemctl.calls"
)

// boot makes the namespace of a root, and mounts the volume with a record in it.
func boot(t *testing.T, root string) machine {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: needs root")
	}
	folder := filepath.Join(root, volume)
	if err := os.MkdirAll(folder, 0o750); err != nil {
		t.Fatal(err)
	}
	const script = `mount -t tmpfs volume "$1"; echo kept >"$1/record"; echo ready; exec sleep infinity`
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--net", "sh", "-ec", script, "sh", folder)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the mount goes with its namespace
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("no volume: %q, %v", line, err)
	}
	return machine{root: root, namespace: cmd.Process.Pid}
}

// enter runs a program of this machine in the namespace.
func (m machine) enter(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "nsenter", append([]string{"--target", strconv.Itoa(m.namespace), "--mount", "--net", "--"}, args...)...)
	cmd.Env = emptyEnvironment
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// in runs a program of the root.
func (m machine) in(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return m.enter(t, append([]string{"unshare", "--pid", "--fork", "chroot", m.root}, args...)...)
}

func (m machine) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := m.in(t, args...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// lost is an error if the volume is not mounted with its content.
func (m machine) lost(t *testing.T) error {
	t.Helper()
	out, err := m.enter(t, "cat", filepath.Join(m.root, volume, "record"))
	if err != nil || out != "kept\n" {
		return fmt.Errorf("the volume is not mounted: %q, %w", out, err)
	}
	return nil
}

// called requires the calls of systemctl by the scripts of a package since the last check, and that the volume is there.
func (m machine) called(t *testing.T, after string, want ...string) {
	t.Helper()
	raw, err := os.ReadFile(m.root + calls)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(raw)); got != strings.Join(want, "\n") {
		t.Errorf("%s calls systemctl with\n%s\nwant\n%s", after, got, strings.Join(want, "\n"))
	}
	if err := os.RemoveAll(m.root + calls); err != nil {
		t.Fatal(err)
	}
	if err := m.lost(t); err != nil {
		t.Errorf("after %s: %v", after, err)
	}
}

// running makes the root look as if systemd runs in it, with a systemctl that records how it is called. It is in the place of the real one: rpm gives its
// scripts a PATH of its own.
func (m machine) running(t *testing.T) {
	t.Helper()
	m.must(t, "mv", "/usr/bin/systemctl", "/usr/bin/systemctl.real")
	m.must(t, "mkdir", "-p", "/run/systemd/system")
	stub := "#!/bin/sh\necho \"$*\" >>" + calls + "\n"
	if err := os.WriteFile(filepath.Join(m.root, "usr/bin/systemctl"), []byte(stub), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
}

// debian makes a machine with dpkg, rpm and systemd, and without Go.
func debian(t *testing.T) machine {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: needs root")
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Fatalf("install Debian's package mmdebstrap: %v", err)
	}
	root := filepath.Join(t.TempDir(), "root")
	cmd := exec.CommandContext(t.Context(), "mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", "--include=rpm,systemd",
		"--aptopt=APT::Install-Recommends false", "bookworm", root)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("mmdebstrap: %v\n%s", err, out)
	}
	m := boot(t, root)
	if out, err := m.in(t, "go", "version"); err == nil {
		t.Fatalf("the empty machine has Go: %s", out)
	}
	m.running(t)
	return m
}

// give copies a package into the root.
func (m machine) give(t *testing.T, dist, extension string) string {
	t.Helper()
	name := agent + "_linux_" + runtime.GOARCH + extension
	if err := writeFile(filepath.Join(m.root, name), func(out io.Writer) error { return copyFile(out, filepath.Join(dist, name)) }); err != nil {
		t.Fatal(err)
	}
	return "/" + name
}

const unitFile = "/usr/lib/systemd/system/belay-node.service"

// installed requires that the program runs, and that its unit is valid and not enabled.
func (m machine) installed(t *testing.T) {
	t.Helper()
	if out := m.must(t, "belay-node", "--version"); !strings.Contains(out, printed()) {
		t.Errorf("belay-node --version prints %q, want %q in it", out, printed())
	}
	if out, err := m.in(t, "systemd-analyze", "verify", unitFile); err != nil || strings.Contains(out, "belay-node") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	// Offline, as there is no systemd to ask.
	if out, err := m.in(t, "env", "SYSTEMD_OFFLINE=1", "systemctl.real", "is-enabled", "belay-node"); err == nil || strings.TrimSpace(out) != "disabled" {
		t.Errorf("the service is %s (%v) after the installation, want disabled", out, err)
	}
}

func (m machine) removed(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(m.root, unitFile)); err == nil {
		t.Error("the removal leaves the unit")
	}
}

// How the scripts call systemctl.
const (
	reload  = "daemon-reload"
	restart = "try-restart belay-node.service"
	disable = "disable --now belay-node.service"
)

// TestPackages installs, upgrades and removes the packages on a Debian without Go. Nothing starts by itself, an upgrade restarts what runs and stops nothing
// else, and mounts stay.
func TestPackages(t *testing.T) {
	dist := released(t)
	m := debian(t)

	deb := m.give(t, dist, ".deb")
	m.must(t, "dpkg", "-i", deb)
	m.called(t, "the installation of the deb", reload, restart)
	m.installed(t)
	if out := m.must(t, "dpkg", "--verify", agent); out != "" {
		t.Errorf("dpkg --verify: %s", out)
	}
	m.must(t, "dpkg", "-i", deb)
	m.called(t, "the upgrade of the deb", reload, reload, restart)
	m.must(t, "dpkg", "--remove", agent)
	m.called(t, "the removal of the deb", disable, reload)
	m.must(t, "dpkg", "--purge", agent)
	m.called(t, "the purge of the deb", reload)
	m.removed(t)

	rpm := m.give(t, dist, ".rpm")
	if out := m.must(t, "rpm", "-qpl", rpm); !strings.Contains(out, "/usr/bin/belay-node\n") || !strings.Contains(out, unitFile) {
		t.Errorf("rpm -qpl lists %s", out)
	}
	install := []string{"rpm", "--nodeps", "-U", "--force", rpm} // rpm knows nothing of Debian's packages
	m.must(t, install...)
	m.called(t, "the installation of the rpm", reload, restart)
	m.installed(t)
	m.must(t, install...)
	m.called(t, "the upgrade of the rpm", reload, restart, reload)
	m.must(t, "rpm", "-e", agent)
	m.called(t, "the removal of the rpm", disable, reload)
	m.removed(t)

	m.plant(t)
	if m.lost(t) == nil {
		t.Error("the script of a package unmounted the volume, and this test does not see it")
	}
}

// plant installs a package whose script unmounts the volume.
func (m machine) plant(t *testing.T) {
	t.Helper()
	control := "Package: planted\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.example>\nDescription: unmounts\n"
	for name, content := range map[string]string{"control": control, "postinst": "#!/bin/sh\nset -e\numount " + volume + "\n"} {
		path := filepath.Join(m.root, "planted/DEBIAN", name)
		if err := writeFile(path, func(out io.Writer) error { _, err := io.WriteString(out, content); return err }); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o755); err != nil { //nolint:gosec // a script
			t.Fatal(err)
		}
	}
	m.must(t, "dpkg-deb", "--build", "/planted", "/planted.deb")
	m.must(t, "dpkg", "-i", "/planted.deb")
}

// TestUnmountsAreSeen: what a program unmounts as the scripts of packages run is found by the check of TestPackages, and another namespace's mounts do not
// hide it.
func TestUnmountsAreSeen(t *testing.T) {
	m := boot(t, t.TempDir())
	if err := m.lost(t); err != nil {
		t.Fatal(err)
	}
	if out, err := m.enter(t, "unshare", "--pid", "--fork", "umount", filepath.Join(m.root, volume)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if m.lost(t) == nil {
		t.Error("the volume was unmounted, and the check finds it")
	}
}
