package labdisk

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// bytesAt is the size of the file system, or of the device, at the target on the node.
func (d *disk) bytesAt(m *machine) int64 {
	d.t.Helper()
	stats, err := m.csi(d.driver).NodeGetVolumeStats(m.on, &csi.NodeGetVolumeStatsRequest{VolumeId: d.handle, VolumePath: d.target(m)})
	if err != nil {
		d.t.Fatal(err)
	}
	if d.capability.GetBlock() == nil {
		return stats.GetUsage()[0].GetTotal()
	}
	out, err := m.run("blockdev", "--getsize64", d.target(m)).Output()
	if err != nil {
		d.t.Fatalf("blockdev: %v", err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		d.t.Fatal(err)
	}
	return n
}

func (d *disk) expand(m *machine, bytes int64) error {
	_, err := m.csi(d.driver).NodeExpandVolume(m.on, &csi.NodeExpandVolumeRequest{VolumeId: d.handle, VolumePath: d.target(m),
		StagingTargetPath: d.staging(m), CapacityRange: &csi.CapacityRange{RequiredBytes: bytes}, VolumeCapability: d.capability})
	return err
}

// mayResizeExt4: the kernel requires CAP_SYS_RESOURCE to resize a mounted ext4; some containers lack it.
func mayResizeExt4(t *testing.T) bool {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			held, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			return held>>unix.CAP_SYS_RESOURCE&1 == 1
		}
	}
	return false
}

func TestRootDiskGrowsUnderItsPod(t *testing.T) {
	for name, c := range map[string]struct {
		capability *csi.VolumeCapability
		size       int64
	}{
		"ext4": {mountCapability(writer, "ext4"), 64 << 20}, "xfs": {mountCapability(writer, "xfs"), 320 << 20}, "raw block": {blockCapability(), 64 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			if fsType := c.capability.GetMount().GetFsType(); fsType != "" {
				needTool(t, "mkfs."+fsType)
				if fsType == "ext4" && !mayResizeExt4(t) {
					t.Skip("SKIPPED: resizing a mounted ext4 takes CAP_SYS_RESOURCE, which this container lacks")
				}
			}
			s, a, b := twoNodes(t)
			d := s.create(DriverDisk, "pvc-1", c.size, c.capability)
			d.bringUp(a)
			if c.capability.GetBlock() == nil {
				d.mustWrite(a, "x", "from before")
			}
			before := d.bytesAt(a)
			if err := d.expand(a, 2*c.size); status.Code(err) != codes.OutOfRange {
				t.Errorf("expansion on the node before the controller's: %v, want OutOfRange", err)
			}
			grow := &csi.ControllerExpandVolumeRequest{VolumeId: d.handle, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * c.size}}
			got, err := s.controller(DriverDisk).ControllerExpandVolume(t.Context(), grow)
			if err != nil || got.GetCapacityBytes() != 2*c.size || !got.GetNodeExpansionRequired() {
				t.Fatalf("ControllerExpandVolume: %v, %v", got, err)
			}
			for range 2 { // a repeat does no harm
				if err := d.expand(a, 2*c.size); err != nil {
					t.Fatal(err)
				}
			}
			after := d.bytesAt(a)
			if after < before+c.size*9/10 {
				t.Errorf("%d bytes at the target, %d before", after, before)
			}
			d.takeDown(a)
			d.detach(a)
			s.kill()
			s.start() // it is written down
			d.bringUp(b)
			if got := d.bytesAt(b); got != after {
				t.Errorf("%d bytes on the second node, want %d", got, after)
			}
			if c.capability.GetBlock() == nil {
				d.mustRead(b, "x", "from before")
			}
			d.takeDown(b)
			d.detach(b)
			s.wantNoViolations()
		})
	}
}
