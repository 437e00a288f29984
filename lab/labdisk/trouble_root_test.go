package labdisk

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A node may lose its power at any moment of a stage or unstage: nothing of it is left, and the next node can continue.
// BELAY_SEED replays a run.
func TestRootPowerCutAtAnyMoment(t *testing.T) {
	needRoot(t)
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BELAY_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("BELAY_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := startStorage(t)
	d := s.ext4()
	for round := range 8 {
		a := s.startNode(fmt.Sprintf("n%d", round))
		published, err := d.attach(a)
		if err != nil {
			t.Fatal(err)
		}
		inside := processesIn(t, a)
		var life sync.WaitGroup
		life.Go(func() { // fails when the power goes
			for d.stage(a, published) == nil && d.publish(a, published) == nil && d.write(a, "x", "data") == nil {
				d.tryTakeDown(a)
			}
		})
		time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
		a.powerOff()
		eventually(t, "end of all processes of the node", func() error { return anyAlive(inside) })
		eventually(t, "end of the loop devices", func() error {
			if _, err := ReleaseLoops(a.dir); err != nil {
				return err
			}
			if l := s.loops(); len(l) > 0 {
				return errors.New(strings.Join(l, ", "))
			}
			return nil
		})
		life.Wait()
		a.awaitEndOfIO()
		d.detach(a)
	}
	b := s.startNode("last")
	d.bringUp(b)
	d.mustWrite(b, "y", "works")
	d.takeDown(b)
	s.wantNoViolations()
}

func TestRootDeadAdapterIsReplaced(t *testing.T) {
	s, a := oneNode(t)
	d := s.ext4()
	share := s.create(DriverShare, "pvc-2", 1<<20, mountCapability(manyWriters, ""))
	raw := s.create(DriverDisk, "pvc-3", 8<<20, blockCapability())
	d.bringUp(a)
	share.bringUp(a)
	raw.bringUp(a)
	d.mustWrite(a, "x", "before")
	pid := 0
	for _, p := range pidsOf(t, "labdisk\x00adapter\x00--fabric\x00"+s.socket()) {
		pid = p
	}
	if pid == 0 {
		t.Fatal("found no adapter")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := d.write(a, "y", "no"); err == nil {
		t.Error("a write went through a dead adapter")
	}
	for _, each := range []*disk{d, share, raw} {
		each.takeDown(a)
		each.bringUp(a)
	}
	d.mustRead(a, "x", "before")
	share.mustWrite(a, "x", "works")
	for _, each := range []*disk{d, share, raw} {
		each.takeDown(a)
	}
	s.wantNoLoops()
}

// pidsOf lists the processes whose command line holds the text.
func pidsOf(t *testing.T, text string) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), text) {
			pid, err := strconv.Atoi(strings.Split(f, "/")[2])
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// Nodes ask the kernel for a free loop device at the same time, and get the same.
func TestRootManyStagesAtOnce(t *testing.T) {
	needRoot(t)
	s := startStorage(t)
	nodes := []*machine{s.startNode("n1"), s.startNode("n2")}
	var all sync.WaitGroup
	for i := range 12 {
		d := s.create(DriverDisk, fmt.Sprintf("pvc-%d", i), 16<<20, blockCapability())
		m := nodes[i%2]
		published, err := d.attach(m)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			if err := d.stage(m, published); err != nil {
				t.Error(err)
			}
			d.tryTakeDown(m)
		})
	}
	all.Wait()
	s.wantNoLoops()
}

// Between the listing of a loop device and its freeing it may have become another's.
func TestRootForeignLoopDeviceIsLeftAlone(t *testing.T) {
	needRoot(t)
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := bindLoop(image, false, false)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	ours := func(l loop) bool { return under(filepath.Dir(image), l.backing) }
	defer func() {
		if err := (loop{device: f.Name()}).clear(ours); err != nil {
			t.Error(err)
		}
	}()
	listed := loop{device: f.Name(), backing: "/labs/a/volume"}
	if err := listed.clear(func(l loop) bool { return under("/labs/a", l.backing) }); err != nil {
		t.Fatal(err)
	}
	now := loop{device: f.Name()}
	if err := now.readBacking(); err != nil || !ours(now) {
		t.Errorf("the device is bound to %q now, %v", now.backing, err)
	}
}

func TestRootMissingPrerequisites(t *testing.T) {
	needRoot(t)
	t.Run("no mkfs.xfs", func(t *testing.T) {
		tools := t.TempDir()
		for _, tool := range []string{"unshare", "nsenter", "sleep", "mount", "umount", "blkid"} {
			path, err := exec.LookPath(tool)
			if err == nil {
				err = os.Symlink(path, filepath.Join(tools, tool))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("PATH", tools)
		s := startStorage(t)
		a := s.startNode("n1")
		d := s.create(DriverDisk, "pvc-1", 320<<20, mountCapability(writer, "xfs"))
		published, err := d.attach(a)
		if err == nil {
			err = d.stage(a, published)
		}
		if err == nil || !strings.Contains(err.Error(), "apt-get install xfsprogs") {
			t.Errorf("stage: %v, want what to install", err)
		}
	})
	t.Run("no loop devices", func(t *testing.T) {
		s := startStorage(t)
		a := s.startNode("n1")
		if out, err := a.run("mount", "--bind", "/dev/null", "/dev/loop-control").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		d := s.ext4()
		published, err := d.attach(a)
		if err == nil {
			err = d.stage(a, published)
		}
		if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "losetup -a") {
			t.Errorf("stage: %v, want ResourceExhausted that says what to do", err)
		}
	})
	t.Run("no FUSE", func(t *testing.T) {
		s := startStorage(t)
		command := []string{"--mount", "--propagation", "private", "sh", "-c", `mount -t tmpfs none "$1" && mount --bind "$1" /dev && shift && exec "$@"`,
			"sh", t.TempDir(), os.Args[0], "labdisk", "node", "--fabric", s.socket(), "--node-id", "n1", "--root-dir", s.dir + "/n1", "--fuse-dir", s.dir + "/fuse"}
		out, err := exec.Command("unshare", command...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "modprobe fuse") {
			t.Errorf("start: %v, %s, want what to do", err, out)
		}
	})
	t.Run("full disk", func(t *testing.T) {
		dir := t.TempDir()
		if err := unix.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		b := &bench{t: t, dir: dir}
		b.open(false)
		if err := b.register(Node{Name: "n1"}); err != nil {
			t.Fatal(err)
		}
		v := b.newDisk(DriverDisk, "pvc-1")
		junk := make([]byte, 1<<20)
		if err := os.WriteFile(filepath.Join(dir, "junk"), junk, 0o600); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("fill the disk: %v", err)
		}
		_, err := b.attach(wantedAttachment{Driver: DriverDisk, Volume: v, Node: "n1"})
		if !errors.Is(err, errDiskFull) || !strings.Contains(err.Error(), dir) {
			t.Errorf("attach: %v, want %v that names %s", err, errDiskFull, dir)
		}
		_, err = (&controller{driver: DriverDisk, fabric: b.fabric}).size(nil)
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("create: %v, want ResourceExhausted", err)
		}
	})
}
