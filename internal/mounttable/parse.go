package mounttable

import (
	"bufio"
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// entry is one mount of a mount namespace (proc(5), /proc/pid/mountinfo).
type entry struct {
	id, parent int
	// device is that of the superblock, as major:minor. A superblock has one while it is in use, even without a real device (major
	// 0: FUSE, NFS, tmpfs).
	device string
	// root is the part of the file system that is mounted, point where.
	root, point string
	// shared and master are the peer groups that the mount sends to and receives from; 0 for none.
	shared, master int
	source         string
	// local: the file system answers from this machine alone.
	local bool
}

// localTypes are file systems that wait for no server and no other process.
var localTypes = map[string]bool{
	"btrfs": true, "devtmpfs": true, "erofs": true, "ext2": true, "ext3": true, "ext4": true, "overlay": true, "proc": true, "ramfs": true,
	"rootfs": true, "squashfs": true, "sysfs": true, "tmpfs": true, "vfat": true, "xfs": true, "zfs": true,
}

func parse(raw []byte) ([]entry, error) {
	var entries []entry
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, len(raw)+1)
	for lines.Scan() {
		e, err := parseLine(lines.Text())
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, lines.Err()
}

// parseLine reads "36 35 98:0 /root /point rw,noatime shared:1 master:2 - ext3 /dev/root rw".
func parseLine(line string) (e entry, err error) {
	left, right, ok := strings.Cut(line, " - ")
	fields, after := strings.Fields(left), strings.Fields(right)
	if !ok || len(fields) < 6 || len(after) < 1 {
		return e, fmt.Errorf("parse mount table line %q: not of the form of proc(5)", line)
	}
	e.id, err = strconv.Atoi(fields[0])
	if err == nil {
		e.parent, err = strconv.Atoi(fields[1])
	}
	if err != nil {
		return e, fmt.Errorf("parse mount table line %q: the mount IDs are not numbers", line)
	}
	e.device, e.root, e.point = fields[2], strings.TrimSuffix(unescape(fields[3]), "//deleted"), unescape(fields[4])
	for _, optional := range fields[6:] {
		if group, ok := strings.CutPrefix(optional, "shared:"); ok {
			e.shared, _ = strconv.Atoi(group)
		}
		if group, ok := strings.CutPrefix(optional, "master:"); ok {
			e.master, _ = strconv.Atoi(group)
		}
	}
	e.local = localTypes[after[0]]
	if len(after) > 1 {
		e.source = unescape(after[1])
	}
	return e, nil
}

// unescape decodes the kernel's octal escapes such as \040.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// below reports whether path is dir or inside it.
func below(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// partOf reports whether e shows what volume shows, or a part of it. A mount that shows more, such as the node's root file system
// if a volume is a directory of it, was not made for the volume. File systems without a device may share a superblock although they
// have several sources (NFS exports of one server): then the source decides, which copies of a mount keep.
func (e entry) partOf(volume entry) bool {
	return e.device == volume.device && below(e.root, volume.root) && (!strings.HasPrefix(e.device, "0:") || e.source == volume.source)
}
