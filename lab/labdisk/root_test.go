package labdisk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const writer = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER

// needTool skips when a program is not installed.
func needTool(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("SKIPPED: %s is not installed", name)
	}
}

func TestRootDiskMovesWithItsData(t *testing.T) {
	for fsType, size := range map[string]int64{"ext4": 64 << 20, "xfs": 320 << 20} {
		t.Run(fsType, func(t *testing.T) {
			needTool(t, "mkfs."+fsType)
			s, a, b := twoNodes(t)
			d := s.create(DriverDisk, "pvc-1", size, mountCapability(writer, fsType))
			d.bringUp(a)
			d.mustWrite(a, "x", "from the first node")
			if _, err := d.attach(b); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "n1") {
				t.Errorf("attach to a second node: %v, want FailedPrecondition that names n1", err)
			}
			d.takeDown(a)
			if l := s.loops(); len(l) > 0 {
				t.Errorf("loop devices left after unstage: %v", l)
			}
			d.detach(a)
			d.bringUp(b)
			d.mustRead(b, "x", "from the first node")
			d.takeDown(b)
			d.detach(b)
			s.wantNoViolations()
		})
	}
}

func TestRootPowerCut(t *testing.T) {
	s, a, b := twoNodes(t)
	d := s.create(DriverDisk, "pvc-1", 128<<20, mountCapability(writer, "ext4"))
	raw := s.create(DriverDisk, "pvc-2", 16<<20, blockCapability())
	d.bringUp(a)
	raw.bringUp(a)
	d.mustWrite(a, "synced", "survives")
	storm := a.run("sh", "-c", "while :; do dd if=/dev/zero of=$0/noise bs=64k count=256 conv=fsync 2>/dev/null; done", d.target(a))
	if err := storm.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // let it write
	inside := processesIn(t, a)
	a.powerOff()
	_ = storm.Wait()

	eventually(t, "end of all processes of the node", func() error { return anyAlive(inside) })
	if _, err := ReleaseLoops(filepath.Join(s.dir, "n1")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "end of the loop devices", func() error {
		if l := s.loops(); len(l) > 0 {
			return errors.New(strings.Join(l, ", "))
		}
		return nil
	})
	a.awaitEndOfIO()
	d.detach(a)
	if dump, err := exec.Command("dumpe2fs", "-h", filepath.Join(s.dir, "f", "volumes", d.handle)).CombinedOutput(); err == nil &&
		!strings.Contains(string(dump), "needs_recovery") {
		t.Errorf("the disk of a node that lost its power says that it was unmounted:\n%s", dump)
	}
	d.bringUp(b)
	d.mustRead(b, "synced", "survives")
	d.mustWrite(b, "more", "goes on")
	s.wantNoViolations()
	d.takeDown(b)
}

// processesIn lists the processes that share the node's mount namespace.
func processesIn(t *testing.T, m *machine) []string {
	t.Helper()
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", m.pid))
	if err != nil {
		t.Fatal(err)
	}
	links, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	var pids []string
	for _, l := range links {
		if ns, err := os.Readlink(l); err == nil && ns == namespace {
			pids = append(pids, strings.Split(l, "/")[2])
		}
	}
	if len(pids) < 2 {
		t.Fatalf("only %v are in the namespace of %s", pids, m.name)
	}
	return pids
}

// anyAlive names a process that still exists and is no zombie.
func anyAlive(pids []string) error {
	for _, p := range pids {
		stat, err := os.ReadFile("/proc/" + p + "/stat")
		if err != nil {
			continue
		}
		if after := stat[strings.LastIndex(string(stat), ")")+2:]; after[0] != 'Z' {
			return errors.New("alive: " + string(stat))
		}
	}
	return nil
}

func TestRootUnpublishCutsAtOnce(t *testing.T) {
	s, a, b := twoNodes(t)
	d := s.ext4()
	d.bringUp(a)
	d.mustWrite(a, "x", "before")
	d.detach(a) // by force: it is still mounted
	if err := d.write(a, "y", "after"); !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.EROFS) {
		t.Errorf("write after unpublish: %v, want an I/O error", err)
	}
	v := s.violations()
	if len(v) == 0 || !v[0].Refused || v[0].Node != "n1" || v[0].Reason != NotHolder {
		t.Errorf("violations %+v, want refused writes of n1", v)
	}
	d.bringUp(b)
	d.mustRead(b, "x", "before")
	if _, err := os.Stat(filepath.Join(b.see(d.target(b)), "y")); err == nil {
		t.Error("a write from after the unpublish is on the disk")
	}
	d.takeDown(a)
	d.takeDown(b)
	s.wantNoLoops()
	// The node that lost the disk may have it back.
	d.detach(b)
	d.bringUp(a)
	d.mustRead(a, "x", "before")
	d.takeDown(a)
}

func TestRootReattachedDiskIsStagedAgain(t *testing.T) {
	s, a := oneNode(t)
	d := s.ext4()
	published, err := d.attach(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.stage(a, published); err != nil {
		t.Fatal(err)
	}
	d.detach(a)
	again, err := d.attach(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.stage(a, published); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("stage with the publish_context of the ended attachment: %v, want FailedPrecondition", err)
	}
	if err := d.stage(a, again); err != nil {
		t.Fatal(err)
	}
	if err := d.publish(a, again); err != nil {
		t.Fatal(err)
	}
	d.mustWrite(a, "x", "works")
	d.takeDown(a)
}

func TestRootRawBlock(t *testing.T) {
	s, a, b := twoNodes(t)
	d := s.create(DriverDisk, "pvc-1", 8<<20, blockCapability())
	d.bringUp(a)
	device, err := os.OpenFile(a.see(d.target(a)), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := device.WriteAt([]byte("raw bytes"), 4096); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(device.Sync(), device.Close()); err != nil {
		t.Fatal(err)
	}
	d.takeDown(a)
	s.wantNoLoops()
	d.detach(a)
	d.bringUp(b)
	if device, err = os.Open(b.see(d.target(b))); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 9)
	_, err = device.ReadAt(got, 4096)
	if err = errors.Join(err, device.Close()); err != nil || string(got) != "raw bytes" {
		t.Errorf("read %q, %v", got, err)
	}
	d.takeDown(b)
}

func TestRootDriverRestartLeavesDisksAlone(t *testing.T) {
	s, a := oneNode(t)
	d := s.ext4()
	raw := s.create(DriverDisk, "pvc-2", 8<<20, blockCapability())
	d.bringUp(a)
	raw.bringUp(a)
	if err := syscall.Kill(a.driverPID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = a.driver.Wait()
	d.mustWrite(a, "x", "no driver needed")
	a.startDriver()
	d.mustRead(a, "x", "no driver needed")
	d.takeDown(a)
	raw.takeDown(a)
	s.wantNoLoops()
}

func TestRootFabricRestartUnderIO(t *testing.T) {
	needRoot(t)
	s := startStorage(t)
	a := s.startNode("n1", "--io-patience=3m") // more than a start of the fabric takes on a busy machine
	d := s.ext4()
	d.bringUp(a)
	done, stop := make(chan error, 1), make(chan struct{})
	var writes atomic.Int64
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := d.write(a, "x", strings.Repeat("y", 100_000+i)); err != nil {
				done <- err
				return
			}
			writes.Add(1)
		}
	}()
	for range 3 {
		time.Sleep(30 * time.Millisecond)
		s.kill()
		s.start()
		before := writes.Load()
		eventually(t, "write that ends after the restart", func() error { // one write is not to meet all restarts
			select {
			case err := <-done:
				t.Fatalf("write while the fabric was killed and came back: %v", err)
			default:
			}
			if writes.Load() == before {
				return errors.New("it hangs")
			}
			return nil
		})
	}
	close(stop)
	if err := <-done; err != nil {
		t.Errorf("write while the fabric was killed and came back: %v", err)
	}
	d.takeDown(a)
	s.wantNoViolations()
}

func TestRootAdapterHasThePatienceOfItsDriver(t *testing.T) {
	needRoot(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	// What is no "ready" becomes the error: here the adapter's own arguments.
	says := []string{"sh", "-c", fmt.Sprintf(`echo "$@" >&%d`, adapterReadyFD), "sh"}
	err = spawnAdapter(says, NodeOptions{FuseDir: filepath.Join(t.TempDir(), "fuse"), IOPatience: 3 * time.Minute}, null)
	if err == nil || !strings.Contains(err.Error(), "--io-patience 3m0s") {
		t.Errorf("it was started with %v", err)
	}
}

func TestRootCutNode(t *testing.T) {
	s, a := oneNode(t)
	d := s.ext4()
	d.bringUp(a)
	d.mustWrite(a, "x", "before")
	if err := s.client.Cut(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	if err := d.write(a, "x", "while it is cut"); err == nil {
		t.Error("a write of a cut node was taken")
	}
	if v := s.violations(); len(v) == 0 || v[0].Reason != NodeCut {
		t.Errorf("violations %+v, want NodeCut", v)
	}
	a.powerOff()
	a = s.startNode("n1")
	d.bringUp(a) // a new incarnation
	d.mustWrite(a, "x", "back")
	d.takeDown(a)
}

func TestRootPermissiveRecordsTwoWriters(t *testing.T) {
	s, a, b := twoNodes(t, "--permissive")
	d := s.create(DriverDisk, "pvc-1", 8<<20, blockCapability())
	d.bringUp(a)
	if v := s.violations(); len(v) > 0 {
		t.Errorf("violations of the only holder: %+v", v)
	}
	d.bringUp(b)
	for _, m := range []*machine{a, b} {
		f, err := os.OpenFile(m.see(d.target(m)), os.O_RDWR|syscall.O_SYNC, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt([]byte(m.name), 0)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Errorf("write from %s: %v", m.name, err)
		}
	}
	reasons := map[string]string{}
	for _, v := range s.violations() {
		if v.Refused {
			t.Errorf("a permissive storage refused %+v", v)
		}
		reasons[v.Node] = v.Reason
	}
	if reasons["n1"] != SeveralHolders || reasons["n2"] != SeveralHolders {
		t.Errorf("violations %v, want one of each node", reasons)
	}
	d.takeDown(a)
	d.takeDown(b)
}
