package labdisk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"k8s.io/mount-utils"
)

// mounted is one line of the mount table of this node that shows a volume.
type mounted struct {
	path   string
	volume string // handle
	device string // loop device under a file system or a raw block target; "" for a directory
	fsType string // "" for a raw block target
	// readOnly is that of this mount, not of the file system under it.
	readOnly bool
}

// mounts lists the mounts that show a volume of this node, oldest first, raw block targets among them.
func (n *nodeDriver) mounts() ([]mounted, error) {
	infos, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	loops, err := listLoops()
	if err != nil {
		return nil, err
	}
	volumes := map[string]string{} // by loop device
	for _, l := range loops {
		if v, ok := l.volume(n.opts.FuseDir); ok {
			volumes[l.device] = v
		}
	}
	var out []mounted
	for _, i := range infos {
		if m := n.recognize(i, volumes); m.volume != "" {
			out = append(out, m)
		}
	}
	return out, nil
}

// recognize finds the volume behind a line of the mount table; volumes are known by their loop devices.
func (n *nodeDriver) recognize(i *mountinfo.Info, volumes map[string]string) mounted {
	m := mounted{path: i.Mountpoint, fsType: i.FSType, readOnly: slices.Contains(strings.Split(i.Options, ","), "ro")}
	switch {
	case i.FSType == fuseType:
		parts := strings.Split(strings.TrimSuffix(i.Root, "//deleted"), "/")
		if len(parts) >= 3 && parts[1] == realm(n.opts.FuseDir) { // more than three are a folder inside (subPath)
			m.volume = parts[2]
		}
	case strings.HasPrefix(filepath.Base(i.Root), "loop") && (i.FSType == "devtmpfs" || i.FSType == "tmpfs"):
		m.device, m.fsType = "/dev/"+filepath.Base(i.Root), ""
		m.volume = volumes[m.device]
	case i.Major == loopMajor:
		m.device = fmt.Sprintf("/dev/loop%d", i.Minor)
		m.volume = volumes[m.device]
	}
	return m
}

// tablePath is the path as the mount table shows it: without symbolic links. The last element is not looked at: it may be a
// dead mount.
func tablePath(path string) string {
	path = filepath.Clean(path)
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return path // it does not exist, and so is no mount
	}
	return filepath.Join(parent, filepath.Base(path))
}

// mountAt finds the newest mount at the path.
func (n *nodeDriver) mountAt(path string) (mounted, bool, error) {
	all, err := n.mounts()
	if err != nil {
		return mounted{}, false, err
	}
	path = tablePath(path)
	for _, m := range slices.Backward(all) {
		if m.path == path {
			return m, true, nil
		}
	}
	return mounted{}, false, nil
}

// unmountAll takes every mount off the path; there may be none, nor the path.
func unmountAll(mounter mount.Interface, path string) error {
	for {
		there, err := isMountPoint(path)
		if err != nil || !there {
			return err
		}
		if err := mounter.Unmount(path); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}

// isMountPoint reads the mount table, because the path itself may answer with an I/O error.
func isMountPoint(path string) (bool, error) {
	path = tablePath(path)
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return i.Mountpoint != path, false
	})
	if err != nil {
		return false, fmt.Errorf("read mount table: %w", err)
	}
	return len(infos) > 0, nil
}

// removeTarget removes the file or empty directory that was made for a publish.
func removeTarget(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove target path: %w", err)
	}
	return nil
}
