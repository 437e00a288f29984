package mount

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"belay.dev/belay/internal/testing/wait"
)

// volumeToBind is a mounted volume below a root whose table is the kernel's, and a file outside of it.
func volumeToBind(t *testing.T) (root *Root, volume, secret string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	root, err := OpenRoot(t.TempDir(), nil)
	must(t, err)
	t.Cleanup(func() { must(t, root.Close()) })
	must(t, root.MakeDir("volume"))
	volume = root.Path("volume")
	if err := unix.Mount("none", volume, "tmpfs", 0, "mode=0775"); errors.Is(err, unix.EPERM) {
		t.Skip("mounting is not allowed here")
	} else {
		must(t, err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(volume, unix.MNT_DETACH)) })
	t.Cleanup(func() { must(t, root.UnbindSubPaths("subpaths")) })
	secret = filepath.Join(t.TempDir(), "secret")
	must(t, os.MkdirAll(secret, 0o700))
	must(t, os.WriteFile(filepath.Join(secret, "key"), []byte("secret"), 0o600))
	return root, volume, secret
}

const target = "subpaths/c/0"

func subPath(path string) SubPath { return SubPath{Volume: "volume", Target: target, Path: path} }

func TestSubPathIsMounted(t *testing.T) {
	root, volume, _ := volumeToBind(t)
	must(t, os.WriteFile(filepath.Join(volume, "file"), []byte("1"), 0o600))
	must(t, os.Symlink("real", filepath.Join(volume, "inside")))
	must(t, os.MkdirAll(filepath.Join(volume, "real"), 0o750))
	must(t, os.WriteFile(filepath.Join(volume, "real", "file"), []byte("2"), 0o600))
	for path, want := range map[string]struct{ file, content string }{
		"file": {"", "1"}, "real": {"file", "2"}, "inside/file": {"", "2"}, ".": {"file", "1"},
	} {
		for range 2 { // it may be there already
			must(t, root.BindSubPath(subPath(path)))
		}
		content, err := os.ReadFile(filepath.Join(root.Path(target), want.file))
		if err != nil || string(content) != want.content {
			t.Errorf("%s: %q, %v, want %q", path, content, err, want.content)
		}
	}
	must(t, root.UnbindSubPaths("subpaths"))
	if _, err := os.Lstat(root.Path("subpaths")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the clean-up: %v", err)
	}
	if content, err := os.ReadFile(filepath.Join(volume, "real", "file")); string(content) != "2" {
		t.Errorf("the clean-up reached into the volume: %q, %v", content, err)
	}
}

// As kubelet does, with the volume's mode whatever the umask is.
func TestMissingSubPathIsCreated(t *testing.T) {
	root, volume, _ := volumeToBind(t)
	must(t, root.BindSubPath(subPath("a/b")))
	must(t, os.WriteFile(filepath.Join(root.Path(target), "file"), []byte("x"), 0o600))
	info, err := os.Stat(filepath.Join(volume, "a", "b"))
	must(t, err)
	if info.Mode().Perm() != 0o775 {
		t.Errorf("its mode is %s, want that of the volume", info.Mode())
	}
	if _, err := os.Stat(filepath.Join(volume, "a", "b", "file")); err != nil {
		t.Error(err)
	}
}

func TestReadOnlySubPath(t *testing.T) {
	root, volume, _ := volumeToBind(t)
	must(t, os.MkdirAll(filepath.Join(volume, "a"), 0o750))
	s := subPath("a")
	for _, s.ReadOnly = range []bool{true, false, true} {
		must(t, root.BindSubPath(s))
		err := os.WriteFile(filepath.Join(root.Path(target), "file"), nil, 0o600)
		if errors.Is(err, unix.EROFS) != s.ReadOnly {
			t.Errorf("read-only %t: %v", s.ReadOnly, err)
		}
	}
	must(t, unix.Mount("", volume, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	if err := root.BindSubPath(subPath("missing")); !errors.Is(err, unix.EROFS) {
		t.Errorf("a missing directory of a read-only volume: %v", err)
	}
}

// CVE-2017-1002101.
func TestSubPathOutsideVolumeIsRefused(t *testing.T) {
	root, volume, secret := volumeToBind(t)
	up, err := filepath.Rel(volume, secret)
	must(t, err)
	must(t, os.Symlink(secret, filepath.Join(volume, "absolute")))
	must(t, os.Symlink(up, filepath.Join(volume, "relative")))
	must(t, os.Symlink(secret+"/new", filepath.Join(volume, "dangling")))
	must(t, os.Symlink("/proc/self/root", filepath.Join(volume, "proc")))
	must(t, os.MkdirAll(filepath.Join(volume, "a"), 0o750))
	for _, path := range []string{
		"", "/etc", "..", "a/../../x", "a/..", "absolute", "absolute/key", "absolute/new", "relative", "relative/key", "relative/new", "dangling", "dangling/x", "proc", "proc/etc",
	} {
		if err := root.BindSubPath(subPath(path)); !errors.Is(err, ErrOutsideVolume) {
			t.Errorf("%s: %v, want %v", path, err, ErrOutsideVolume)
		}
	}
	if _, err := os.Stat(secret + "/new"); err == nil {
		t.Error("a directory was made outside of the volume")
	}
	if mounted, err := root.MountedByKernel(target); err != nil || mounted {
		t.Errorf("something is mounted at the target: %v", err)
	}
}

// CVE-2021-25741: a container swaps a directory for a link while its neighbour's subPath is prepared.
func TestSubPathSwappedByASymlink(t *testing.T) {
	root, volume, secret := volumeToBind(t)
	must(t, os.MkdirAll(filepath.Join(volume, "dir", "sub"), 0o750))
	must(t, os.MkdirAll(filepath.Join(secret, "sub"), 0o750))
	must(t, os.WriteFile(filepath.Join(secret, "sub", "key"), []byte("secret"), 0o600))
	must(t, os.Symlink(secret, filepath.Join(volume, "link")))
	stop := make(chan struct{})
	var attacker sync.WaitGroup
	attacker.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(volume, "dir"), unix.AT_FDCWD, filepath.Join(volume, "link"), unix.RENAME_EXCHANGE)
			}
		}
	})
	defer attacker.Wait()
	defer close(stop)
	bound, refused, began := 0, 0, time.Now()
	for i := 0; i < 3000 || (bound == 0 || refused == 0) && time.Since(began) < wait.Timeout; i++ {
		path := []string{"dir/sub", "dir/new"}[i%2]
		switch err := root.BindSubPath(subPath(path)); {
		case err == nil:
			bound++
		case errors.Is(err, ErrOutsideVolume):
			refused++
		default: // a moment in which the path was neither
		}
		if _, err := os.Stat(filepath.Join(root.Path(target), "key")); err == nil {
			t.Fatalf("attempt %d: what is outside of the volume is mounted at %s", i, target)
		}
		if _, err := os.Stat(filepath.Join(secret, "new")); err == nil {
			t.Fatalf("attempt %d: a directory was made outside of the volume", i)
		}
		must(t, root.UnbindSubPaths("subpaths"))
	}
	if bound == 0 || refused == 0 {
		t.Errorf("%d bound, %d refused: the attack was none", bound, refused)
	}
}
