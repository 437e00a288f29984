package labdisk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const manyWriters = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER

func TestRootShareIsWrittenByTwoNodesAtOnce(t *testing.T) {
	s, a, b := twoNodes(t)
	d := s.create(DriverShare, "pvc-1", 1<<20, mountCapability(manyWriters, ""))
	d.bringUp(a)
	d.bringUp(b)
	d.mustWrite(a, "x", "from n1")
	d.mustRead(b, "x", "from n1")
	const lines = 100
	var both sync.WaitGroup
	for _, m := range []*machine{a, b} {
		both.Go(func() {
			f, err := os.OpenFile(filepath.Join(m.see(d.target(m)), "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err != nil {
				t.Error(err)
				return
			}
			for i := range lines {
				_, writeErr := fmt.Fprintf(f, "%s %03d\n", m.name, i)
				err = errors.Join(err, writeErr)
			}
			if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	log, err := os.ReadFile(filepath.Join(a.see(d.target(a)), "log"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(log), "\n"); n != 2*lines || len(log) != 2*lines*len("n1 000\n") {
		t.Errorf("the log that both appended to has %d lines, %d bytes, want %d whole lines", n, len(log), 2*lines)
	}

	open, err := os.OpenFile(filepath.Join(a.see(d.target(a)), "x"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	d.detach(a)
	if _, err := open.WriteString("after"); !errors.Is(err, syscall.EIO) {
		t.Errorf("write after unpublish: %v, want EIO", err)
	}
	_ = open.Close()
	d.mustRead(b, "x", "from n1")
	d.mustWrite(b, "y", "n2 goes on")
	if v := s.violations(); len(v) == 0 || v[0].Node != "n1" || !v[0].Refused {
		t.Errorf("violations %+v, want refused writes of n1", v)
	}
	d.takeDown(a)
	d.bringUp(a) // attached again
	d.mustRead(a, "y", "n2 goes on")
	d.takeDown(a)
	d.takeDown(b)
}

func TestRootShareIsAFileSystem(t *testing.T) {
	s, a := oneNode(t)
	for _, driver := range []string{DriverShare, DriverLocal} {
		t.Run(driver, func(t *testing.T) {
			d := s.create(driver, "pvc-1", 1<<20, mountCapability(manyWriters, ""))
			if driver == DriverShare {
				d.bringUp(a)
			} else if err := d.publish(a, nil); err != nil {
				t.Fatal(err)
			}
			script := `set -e; cd "$0"
				mkdir -p one/two; echo data > one/two/file; mv one/two/file one/moved; rmdir one/two
				ln -s moved one/link; test "$(cat one/link)" = data; ln one/moved one/hard
				test "$(stat -c %h one/moved)" = 2; chmod 640 one/moved; test "$(stat -c %a one/hard)" = 640
				chown 7:8 one/moved; test "$(stat -c %u:%g one/moved)" = 7:8
				truncate -s 3 one/moved; test "$(cat one/hard)" = dat; touch -d 2020-01-01T00:00:00Z one/moved
				test "$(stat -c %Y one/moved)" = 1577836800
				exec 9> gone; rm gone; echo unlinked >&9; exec 9>&-
				rm -r one; test -z "$(ls -A)"
				dd if=/dev/urandom of=big bs=1M count=3 conv=fsync 2>/dev/null; cp big copy; cmp big copy; df . >/dev/null`
			if out, err := a.run("sh", "-c", script, d.target(a)).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			d.takeDown(a)
		})
	}
}

func TestRootLocalNeedsNoAttach(t *testing.T) {
	s, a, b := twoNodes(t)
	d := s.create(DriverLocal, "pvc-1", 1<<20, mountCapability(manyWriters, ""))
	if _, err := d.attach(a); status.Code(err) != codes.Unimplemented {
		t.Errorf("attach: %v, want Unimplemented", err)
	}
	for _, m := range []*machine{a, b} {
		if err := d.publish(m, nil); err != nil {
			t.Fatal(err)
		}
	}
	d.mustWrite(a, "x", "from n1")
	d.mustRead(b, "x", "from n1")
	s.wantNoViolations()
	d.takeDown(a)
	d.takeDown(b)
}

func TestRootInlineVolumesAreTheirPodsOwn(t *testing.T) {
	s, a := oneNode(t)
	inline := func(handle string) *disk {
		return &disk{t: t, s: s, driver: DriverLocal, handle: handle, capability: mountCapability(manyWriters, "")}
	}
	publish := func(d *disk, ephemeral string) error {
		_, err := a.csi(d.driver).NodePublishVolume(a.on, &csi.NodePublishVolumeRequest{VolumeId: d.handle, TargetPath: d.target(a),
			VolumeCapability: d.capability, VolumeContext: map[string]string{inlineKey: ephemeral}})
		return err
	}
	one, other := inline("csi-one"), inline("csi-other")
	for _, d := range []*disk{one, other} {
		if err := publish(d, "true"); err != nil {
			t.Fatal(err)
		}
	}
	one.mustWrite(a, "x", "from the first pod")
	if err := publish(one, "true"); err != nil { // again, as an agent does that lost the reply
		t.Fatal(err)
	}
	one.mustRead(a, "x", "from the first pod")
	if _, err := os.Stat(filepath.Join(a.see(other.target(a)), "x")); !os.IsNotExist(err) {
		t.Errorf("the second pod sees the first one's file: %v", err)
	}
	one.takeDown(a)
	if _, err := os.Lstat(a.see(one.target(a))); !os.IsNotExist(err) {
		t.Errorf("the target is there after the unpublish: %v", err)
	}
	if err := publish(one, "false"); status.Code(err) != codes.NotFound {
		t.Errorf("publish of a handle that the fabric does not know: %v, want NotFound", err)
	}
	other.takeDown(a)
	s.wantNoViolations()
}

func TestRootShareSurvivesFabricRestart(t *testing.T) {
	s, a := oneNode(t)
	d := s.create(DriverShare, "pvc-1", 1<<20, mountCapability(manyWriters, ""))
	d.bringUp(a)
	f, err := os.OpenFile(filepath.Join(a.see(d.target(a)), "x"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString("before ")
	s.kill()
	s.start()
	_, again := f.WriteString("after")
	if err := errors.Join(err, again, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	d.mustRead(a, "x", "before after")
	d.takeDown(a)
}

func TestRootReadOnlyPublish(t *testing.T) {
	s, a := oneNode(t)
	d := s.ext4()
	published, err := d.attach(a)
	if err == nil {
		err = d.stage(a, published)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = a.csi(d.driver).NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{VolumeId: d.handle, Readonly: true,
		StagingTargetPath: d.staging(a), TargetPath: d.target(a), VolumeCapability: d.capability, PublishContext: published})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.write(a, "x", "no"); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write to a read-only publish: %v, want EROFS", err)
	}
	if err := d.publish(a, published); status.Code(err) != codes.AlreadyExists {
		t.Errorf("publish at the same target, not read-only: %v, want AlreadyExists", err)
	}
	d.takeDown(a)
}

func TestRootReadOnlyAttachment(t *testing.T) {
	s, a, b := twoNodes(t)
	d := s.ext4()
	d.bringUp(a)
	d.mustWrite(a, "x", "shared from now on")
	d.takeDown(a)
	d.detach(a)
	d.capability = mountCapability(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, "ext4")
	for _, m := range []*machine{a, b} {
		d.bringUp(m)
		d.mustRead(m, "x", "shared from now on")
		if err := d.write(m, "y", "no"); !errors.Is(err, syscall.EROFS) {
			t.Errorf("write on %s: %v, want EROFS", m.name, err)
		}
	}
	d.takeDown(a)
	d.takeDown(b)
	s.wantNoViolations()
}

func TestRootSingleWriterHasOneTarget(t *testing.T) {
	s, a := oneNode(t)
	d := s.create(DriverDisk, "pvc-1", 64<<20, mountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, "ext4"))
	d.bringUp(a)
	_, err := a.csi(d.driver).NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{VolumeId: d.handle,
		StagingTargetPath: d.staging(a), TargetPath: d.target(a) + "-2", VolumeCapability: d.capability})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("second target of a single writer: %v, want FailedPrecondition", err)
	}
	_, err = a.csi(d.driver).NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: d.handle, StagingTargetPath: d.staging(a)})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("unstage while it is published: %v, want FailedPrecondition", err)
	}
	d.takeDown(a)
	d.takeDown(a) // and again: nothing is there
}

func TestRootStageNeedsAttach(t *testing.T) {
	s, a := oneNode(t)
	d := s.ext4()
	if err := d.stage(a, map[string]string{EpochKey: "1"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("stage before attach: %v, want FailedPrecondition", err)
	}
	if _, err := d.attach(a); err != nil {
		t.Fatal(err)
	}
	if err := d.stage(a, nil); status.Code(err) != codes.InvalidArgument {
		t.Errorf("stage without publish_context: %v, want InvalidArgument", err)
	}
	d.handle = "nothing"
	if err := d.stage(a, nil); status.Code(err) != codes.NotFound {
		t.Errorf("stage of an unknown volume: %v, want NotFound", err)
	}
}
