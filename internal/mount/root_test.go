package mount

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func open(t *testing.T, points ...string) *Root {
	t.Helper()
	dir := t.TempDir()
	root, err := OpenRoot(dir, func() ([]string, error) {
		var all []string
		for _, p := range points {
			all = append(all, filepath.Join(dir, p))
		}
		return all, nil
	})
	must(t, err)
	t.Cleanup(func() { must(t, root.Close()) })
	return root
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestInvalidNamesAreRefused(t *testing.T) {
	for _, name := range []string{"", ".", "..", "../x", "a/b", "/etc", "a\nb", "a\x00b", "\x7f", strings.Repeat("x", 4096)} {
		if err := CheckName(name); !errors.Is(err, ErrInvalidName) {
			t.Errorf("%.20q: %v, want %v", name, err, ErrInvalidName)
		}
	}
	for _, name := range []string{"pvc-1", "ebs.csi.aws.com", "0e816a08-b4f9-4f88-a467-a546f71c679a", "~", "ü"} {
		if err := CheckName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestSymlinksCannotLeaveTheRoot(t *testing.T) {
	root := open(t)
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "precious"), []byte("x"), 0o600))
	must(t, os.Symlink(outside, root.Path("link")))
	for name, try := range map[string]func() error{
		"write":  func() error { return root.Write("link/precious", []byte("y"), PowerCut) },
		"remove": func() error { return root.Remove("link/precious") },
		"dir":    func() error { return root.MakeDir("link/dir") },
		"dots":   func() error { return root.Remove("../" + filepath.Base(outside) + "/precious") },
	} {
		if err := try(); err == nil {
			t.Errorf("%s: went outside", name)
		}
	}
	names, err := os.ReadDir(outside)
	must(t, err)
	if len(names) != 1 {
		t.Errorf("outside are now %v", names)
	}
}

func TestRemovalStopsAtMountsAndContent(t *testing.T) {
	root := open(t, "a/mounted")
	for _, dir := range []string{"a/mounted", "a/full/child", "a/empty"} {
		must(t, os.MkdirAll(root.Path(dir), 0o700))
	}
	if err := root.Remove("a/mounted"); !errors.Is(err, ErrMounted) {
		t.Errorf("a mount point: %v, want %v", err, ErrMounted)
	}
	if err := root.Remove("a/full"); err == nil {
		t.Error("a directory with content was removed")
	}
	must(t, root.Remove("a/empty"))
	must(t, root.Remove("a/empty"))
	must(t, root.RemoveEmpty("a/full/child", "a/full", "a"))
	left, err := root.List("a")
	must(t, err)
	if !slices.Equal(left, []string{"mounted"}) {
		t.Errorf("left are %v", left)
	}
}

func TestWriteIsAtomic(t *testing.T) {
	root := open(t)
	must(t, root.Write("f", []byte("old"), PowerCut))
	must(t, root.Write("f", []byte("new"), Crash))
	got, err := root.ReadFile("f")
	must(t, err)
	if string(got) != "new" {
		t.Errorf("read %q", got)
	}
	must(t, os.Mkdir(root.Path("d"), 0o700))
	if err := root.Write("d", []byte("x"), Crash); err == nil {
		t.Error("a directory was replaced by a file")
	}
	names, err := root.List(".")
	must(t, err)
	if slices.ContainsFunc(names, IsTemporary) {
		t.Errorf("a temporary file is left: %v", names)
	}
}

// TestDurableDirectoryIsSynced: a new directory is lost in a power cut unless the
// one that names it was synced after it was made. (XFS and ext4 take all that came before with any
// sync; other file systems need not.)
func TestDurableDirectoryIsSynced(t *testing.T) {
	root := open(t)
	synced := map[string]bool{} // by whether the last directory was there by then
	root.fsync = func(f *os.File) error {
		_, err := os.Stat(root.Path("a/b/c"))
		synced[filepath.Clean(f.Name())] = err == nil
		return f.Sync()
	}
	for _, when := range []string{"made now", "made by one that died"} {
		clear(synced)
		must(t, root.MakeDirDurable("a/b/c"))
		for _, dir := range []string{"", "a", "a/b"} {
			if !synced[root.Path(dir)] {
				t.Errorf("%s: %q was not synced; synced were %v", when, dir, synced)
			}
		}
	}
	root.fsync = func(*os.File) error { return unix.EIO }
	if err := root.MakeDirDurable("d"); !errors.Is(err, unix.EIO) {
		t.Errorf("the disk fails: %v", err)
	}
}

func TestListOfAFileIsEmpty(t *testing.T) {
	root := open(t)
	must(t, root.Write("stray", nil, Crash))
	for _, name := range []string{"stray", "stray/below", "missing"} {
		if names, err := root.List(name); err != nil || len(names) > 0 {
			t.Errorf("%s: %v, %v", name, names, err)
		}
	}
}

// ownMounts gives the test's thread a mount namespace of its own, which ends with the test.
func ownMounts(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	runtime.LockOSThread() // never unlocked: the thread, and its namespace, end with the goroutine
	must(t, unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS))
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
}

// TestMountedDoesNotAccessTheMount mounts a FUSE file system whose server does not
// answer, and then is gone.
func TestMountedDoesNotAccessTheMount(t *testing.T) {
	ownMounts(t)
	server, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	root, err := OpenRoot(t.TempDir(), nil)
	must(t, err)
	defer root.Close()
	must(t, root.MakeDir("volume"))
	must(t, unix.Mount("test", root.Path("volume"), "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server)))
	defer func() { must(t, unix.Unmount(root.Path("volume"), unix.MNT_DETACH)) }()
	// The thread would wait in the kernel forever; the end of the server ends that.
	hung := time.AfterFunc(time.Minute, func() {
		t.Error("looking at the mount waited for its server")
		_ = unix.Close(server)
	})
	look := func(server string) {
		if mounted, err := root.Mounted("volume"); err != nil || !mounted {
			t.Errorf("server %s: mounted %v, %v", server, mounted, err)
		}
		if err := root.MakeDir("volume"); err != nil {
			t.Errorf("server %s: %v", server, err)
		}
		if err := root.Remove("volume"); !errors.Is(err, ErrMounted) {
			t.Errorf("server %s: %v, want %v", server, err, ErrMounted)
		}
	}
	look("silent")
	if hung.Stop() {
		must(t, unix.Close(server))
	}
	look("gone")
}

// TestReplacedFileSurvivesAPowerCut stops an XFS in the middle of its work, as a power
// cut does. XFS, unlike ext4 with its defaults, takes a rename to the disk before the content.
func TestReplacedFileSurvivesAPowerCut(t *testing.T) {
	ownMounts(t)
	image, disk := filepath.Join(t.TempDir(), "image"), t.TempDir()
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 320<<20))
	run := func(name string, arguments ...string) {
		t.Helper()
		if out, err := exec.Command(name, arguments...).CombinedOutput(); err != nil {
			t.Skipf("%s: %v: %s", name, err, out)
		}
	}
	run("mkfs.xfs", "-q", image)
	run("mount", "-o", "loop", image, disk)
	root, err := OpenRoot(disk, nil)
	must(t, err)
	must(t, root.Write("record", []byte("old"), PowerCut))
	must(t, root.Write("record", []byte("new"), InPlace))
	must(t, root.Write("another", nil, PowerCut)) // takes the names to the disk
	cutPower(t, disk)
	must(t, root.Close())
	must(t, unix.Unmount(disk, 0))
	run("mount", "-o", "loop", image, disk)
	defer func() { must(t, unix.Unmount(disk, 0)) }()
	if got, err := os.ReadFile(filepath.Join(disk, "record")); err != nil || (string(got) != "old" && string(got) != "new") {
		t.Errorf("after the power cut the record holds %q, %v", got, err)
	}
}

// cutPower makes the file system forget what is not on the disk.
func cutPower(t *testing.T, disk string) {
	t.Helper()
	const goingDown, dropLog = 0x8004587d, 2 // XFS_IOC_GOINGDOWN, XFS_FSOP_GOING_FLAGS_NOLOGFLUSH
	dir, err := os.Open(disk)
	must(t, err)
	defer dir.Close()
	must(t, unix.IoctlSetPointerInt(int(dir.Fd()), goingDown, dropLog))
}

func TestKernelMountTable(t *testing.T) {
	ownMounts(t)
	root, err := OpenRoot(t.TempDir(), nil)
	must(t, err)
	defer root.Close()
	if propagates, err := root.IsShared(); err != nil || propagates {
		t.Errorf("under a private mount: propagates %v, %v", propagates, err)
	}
	must(t, root.MakeDir("tmpfs"))
	must(t, root.MakeDir("source"))
	must(t, root.MakeDir("bind with space"))
	must(t, unix.Mount("tmpfs", root.Path("tmpfs"), "tmpfs", 0, "size=64k"))
	must(t, unix.Mount(root.Path("source"), root.Path("bind with space"), "", unix.MS_BIND, ""))
	for name, want := range map[string]bool{"tmpfs": true, "bind with space": true, "source": false, "missing": false} {
		if got, err := root.Mounted(name); err != nil || got != want {
			t.Errorf("%s: mounted %v, %v; want %v", name, got, err, want)
		}
	}
	if err := root.Remove("bind with space"); !errors.Is(err, ErrMounted) {
		t.Errorf("a bind mount of the same device: %v, want %v", err, ErrMounted)
	}
	must(t, unix.Unmount(root.Path("bind with space"), 0))
	must(t, unix.Mount("", root.Path("tmpfs"), "", unix.MS_SHARED, ""))
	shared, err := OpenRoot(root.Path("tmpfs"), nil)
	must(t, err)
	if propagates, err := shared.IsShared(); err != nil || !propagates {
		t.Errorf("under a shared mount: propagates %v, %v", propagates, err)
	}
	must(t, shared.Close())
	must(t, unix.Unmount(root.Path("tmpfs"), 0))
	must(t, root.Remove("bind with space"))
}
