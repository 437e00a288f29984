package mounttable

import (
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Device returns the block device at a path, as major:minor; empty if there is none.
func Device(path string) (string, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	switch {
	case ended(err): // it does not exist
		return "", nil
	case err != nil:
		return "", &fs.PathError{Op: "stat", Path: path, Err: err}
	case st.Mode&unix.S_IFMT != unix.S_IFBLK:
		return "", nil
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), nil
}
