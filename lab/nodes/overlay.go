package nodes

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// overlayWorks tries whether dir can hold the upper directory of an overlay mount:
// not every file system can, and not every kernel lets us.
func overlayWorks(dir string) bool {
	trial, err := os.MkdirTemp(dir, ".overlay-*")
	if err != nil {
		return false
	}
	defer func() { _ = os.RemoveAll(trial) }()
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(trial, name), 0o755); err != nil {
			return false
		}
	}
	if err := mountOverlay(filepath.Join(trial, "lower"), trial); err != nil {
		return false
	}
	return unix.Unmount(filepath.Join(trial, "merged"), 0) == nil
}

// mountOverlay mounts lower with the upper, work and merged directories of dir. What
// is written there need not survive a crash ("volatile"): without that word the
// kernel flushes the whole disk each time a container ends.
func mountOverlay(lower, dir string) error {
	options := "lowerdir=" + lower + ",upperdir=" + filepath.Join(dir, "upper") + ",workdir=" + filepath.Join(dir, "work")
	merged := filepath.Join(dir, "merged")
	if unix.Mount("overlay", merged, "overlay", 0, options+",volatile") == nil {
		return nil
	}
	return unix.Mount("overlay", merged, "overlay", 0, options) // before Linux 5.10
}
