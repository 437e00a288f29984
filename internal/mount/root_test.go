package mount

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

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

func TestHostileNamesAreRefused(t *testing.T) {
	for _, name := range []string{"", ".", "..", "../x", "a/b", "/etc", "a\nb", "a\x00b", "\x7f", strings.Repeat("x", 4096)} {
		if err := Element(name); !errors.Is(err, ErrHostileName) {
			t.Errorf("%.20q: %v, want %v", name, err, ErrHostileName)
		}
	}
	for _, name := range []string{"pvc-1", "ebs.csi.aws.com", "0e816a08-b4f9-4f88-a467-a546f71c679a", "~", "ü"} {
		if err := Element(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestNothingLeadsOutOfTheRoot(t *testing.T) {
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

func TestAWriteIsWholeOrNotThere(t *testing.T) {
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

// TestTheKernelsMountTable uses real mounts, in a mount namespace that ends with the test's thread.
func TestTheKernelsMountTable(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	runtime.LockOSThread() // never unlocked: the thread, and its namespace, end with the goroutine
	must(t, unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS))
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	root, err := OpenRoot(t.TempDir(), nil)
	must(t, err)
	defer root.Close()
	if propagates, err := root.Propagates(); err != nil || propagates {
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
	if propagates, err := shared.Propagates(); err != nil || !propagates {
		t.Errorf("under a shared mount: propagates %v, %v", propagates, err)
	}
	must(t, shared.Close())
	must(t, unix.Unmount(root.Path("tmpfs"), 0))
	must(t, root.Remove("bind with space"))
}
