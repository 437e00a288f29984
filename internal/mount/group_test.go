package mount

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const testGroup = 54321

// volume mounts a file system of its own at "pod/mount" below a root; the thread's mounts
// end with the test, whatever becomes of it.
func volume(t *testing.T, kind, options string) (root *Root, dir string) {
	t.Helper()
	ownMounts(t)
	root, err := OpenRoot(t.TempDir(), nil)
	must(t, err)
	t.Cleanup(func() { must(t, root.Close()) })
	must(t, root.MakeDir("pod/mount"))
	dir = root.Path("pod/mount")
	must(t, unix.Mount(kind, dir, kind, 0, options))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return root, dir
}

// give changes the volume and fails the test if that fails.
func give(t *testing.T, root *Root) *GroupChange {
	t.Helper()
	change := &GroupChange{GID: testGroup}
	must(t, root.ChangeGroup(t.Context(), "pod/mount", change))
	return change
}

// look is a file's group and mode.
func look(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return fmt.Sprintf("%d %o", st.Gid, st.Mode&0o7777)
}

func wantLook(t *testing.T, path string, mode uint32) {
	t.Helper()
	if got, want := look(t, path), fmt.Sprintf("%d %o", testGroup, mode); got != want {
		t.Errorf("%s is %s, want %s", path, got, want)
	}
}

func make4(t *testing.T, path string, mode uint32) string {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o750))
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, unix.Chmod(path, mode))
	return path
}

func TestChangeGroup(t *testing.T) {
	root, dir := volume(t, "tmpfs", "mode=0755")
	modes := map[string][2]uint32{ // before, after
		"plain": {0o600, 0o660}, "closed": {0, 0o660}, "open": {0o777, 0o777}, "a/b/deep": {0o644, 0o664},
		"a/with space and \x01": {0o400, 0o660}, "program": {0o4750, 0o4770}, "group program": {0o2710, 0o2770},
	}
	for name, mode := range modes {
		make4(t, filepath.Join(dir, name), mode[0])
	}
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600)) // to open it for reading would wait for a writer
	must(t, unix.Mknod(filepath.Join(dir, "device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	must(t, os.Mkdir(filepath.Join(dir, "sticky"), 0o700))
	must(t, unix.Chmod(filepath.Join(dir, "sticky"), 0o1700))
	if fits, err := root.HasGroup("pod/mount", testGroup); err != nil || fits {
		t.Errorf("fits before the change: %v, %v", fits, err)
	}
	change := give(t, root)
	for name, mode := range modes {
		wantLook(t, filepath.Join(dir, name), mode[1])
	}
	wantLook(t, filepath.Join(dir, "fifo"), 0o660)
	wantLook(t, filepath.Join(dir, "device"), 0o660)
	wantLook(t, filepath.Join(dir, "sticky"), 0o3770)
	wantLook(t, filepath.Join(dir, "a/b"), 0o2770)
	wantLook(t, dir, 0o2775)
	if want := int64(len(modes) + 6); change.Seen.Load() != want || change.Refused.Load() != 0 {
		t.Errorf("seen %d (want %d), refused %d", change.Seen.Load(), want, change.Refused.Load())
	}
	if fits, err := root.HasGroup("pod/mount", testGroup); err != nil || !fits {
		t.Errorf("fits after the change: %v, %v", fits, err)
	}
}

func TestHasGroup(t *testing.T) {
	root, dir := volume(t, "tmpfs", "")
	for _, test := range []struct {
		gid  int
		mode uint32
		want bool
	}{
		{testGroup, 0o2770, true},
		{testGroup, 0o2775, true},
		{testGroup, 0o770, false},
		{testGroup, 0o2750, false},
		{testGroup, 0o2760, false},
		{testGroup + 1, 0o2770, false},
	} {
		must(t, os.Chown(dir, -1, test.gid))
		must(t, unix.Chmod(dir, test.mode))
		if got, err := root.HasGroup("pod/mount", testGroup); err != nil || got != test.want {
			t.Errorf("group %d, mode %o: %v, %v", test.gid, test.mode, got, err)
		}
	}
	must(t, root.Write("file", nil, Crash))
	must(t, os.Chown(root.Path("file"), -1, testGroup))
	must(t, unix.Chmod(root.Path("file"), 0o2770))
	if got, err := root.HasGroup("file", testGroup); err != nil || got {
		t.Errorf("a file: %v, %v", got, err)
	}
	must(t, root.ChangeGroup(t.Context(), "file", &GroupChange{GID: testGroup + 1}))
	if got := look(t, root.Path("file")); got != fmt.Sprintf("%d 2770", testGroup+1) {
		t.Errorf("a volume that is a file: %s", got)
	}
}

// TestChangeGroupStaysInTheVolume: symlinks, loops of them, and mounts lead nowhere.
func TestChangeGroupStaysInTheVolume(t *testing.T) {
	root, dir := volume(t, "tmpfs", "")
	outside := t.TempDir()
	secret := make4(t, filepath.Join(outside, "secret"), 0o600)
	must(t, os.Symlink(secret, filepath.Join(dir, "to file")))
	must(t, os.Symlink(outside, filepath.Join(dir, "to directory")))
	must(t, os.Symlink(".", filepath.Join(dir, "loop")))
	must(t, os.Symlink("../loops/self", filepath.Join(dir, "self")))
	for _, name := range []string{"tmpfs", "bind", "same"} {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	must(t, unix.Mount("tmpfs", filepath.Join(dir, "tmpfs"), "tmpfs", 0, ""))
	must(t, unix.Mount(outside, filepath.Join(dir, "bind"), "", unix.MS_BIND, ""))
	// The same file system again: its device does not tell.
	must(t, os.MkdirAll(filepath.Join(dir, "tmpfs/below"), 0o700))
	must(t, unix.Mount(filepath.Join(dir, "tmpfs/below"), filepath.Join(dir, "same"), "", unix.MS_BIND, ""))
	bound := make4(t, filepath.Join(dir, "bound"), 0o600)
	must(t, unix.Mount(secret, bound, "", unix.MS_BIND, ""))
	before := map[string]string{}
	for _, path := range []string{secret, outside, filepath.Join(dir, "tmpfs"), filepath.Join(dir, "same"), bound} {
		before[path] = look(t, path)
	}
	give(t, root)
	for path, was := range before {
		if got := look(t, path); got != was {
			t.Errorf("%s was %s and is %s", path, was, got)
		}
	}
	wantLook(t, filepath.Join(dir, "to file"), 0o777)
	wantLook(t, filepath.Join(dir, "loop"), 0o777)
	wantLook(t, dir, 0o3777)
	for _, name := range []string{"tmpfs", "bind", "same", "bound"} {
		must(t, unix.Unmount(filepath.Join(dir, name), unix.MNT_DETACH))
	}
	// The volume may be a symlink itself.
	must(t, os.Symlink(outside, root.Path("pod/link")))
	must(t, root.ChangeGroup(t.Context(), "pod/link", &GroupChange{GID: testGroup}))
	if got := look(t, outside); got != before[outside] {
		t.Errorf("what the volume links to is %s", got)
	}
}

// TestChangeGroupOfADeepTree is deeper than a path may be long and than files may be open.
func TestChangeGroupOfADeepTree(t *testing.T) {
	root, dir := volume(t, "tmpfs", "nr_inodes=50000")
	const depth = 5000
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	for range depth {
		// Two files before and behind the directory, wherever the file system lists them.
		for _, name := range []string{"d", "e"} {
			must(t, unix.Mkdirat(at, name, 0o700))
		}
		next, err := unix.Openat(at, "d", unix.O_PATH|unix.O_DIRECTORY, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = next
	}
	defer closeFD(at)
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	small := limit
	small.Cur = 100
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &small))
	defer func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
	change := give(t, root)
	if change.Seen.Load() != 2*depth+1 {
		t.Errorf("seen %d of %d", change.Seen.Load(), 2*depth+1)
	}
	var st unix.Stat_t
	must(t, unix.Fstatat(at, "", &st, unix.AT_EMPTY_PATH))
	if st.Gid != testGroup {
		t.Errorf("the lowest directory has group %d", st.Gid)
	}
}

// TestChangeGroupChangesTheTopLast: what was cut short does not look like what was done.
func TestChangeGroupChangesTheTopLast(t *testing.T) {
	root, dir := volume(t, "tmpfs", "")
	for i := range 20 {
		make4(t, filepath.Join(dir, fmt.Sprintf("d%d/f%d", i%4, i)), 0o600)
	}
	released := errors.New("released")
	for after := range int64(24) {
		must(t, os.Chown(dir, -1, 0))
		ctx, cancel := context.WithCancelCause(t.Context())
		change := &GroupChange{GID: testGroup + int(after)}
		err := root.ChangeGroup(&endsAfter{Context: ctx, change: change, files: after, end: func() { cancel(released) }}, "pod/mount", change)
		if !errors.Is(err, released) {
			t.Fatalf("ended after %d files: %v", after, err)
		}
		if change.Seen.Load() > after {
			t.Errorf("ended after %d files, continued to %d", after, change.Seen.Load())
		}
		if fits, err := root.HasGroup("pod/mount", change.GID); err != nil || fits {
			t.Errorf("ended after %d files: fits %v, %v", after, fits, err)
		}
	}
}

// kubeletSkips is kubelet's rule for OnRootMismatch (k8s.io/kubernetes v1.36.3, pkg/volume/volume_linux.go, requiresPermissionChange):
//
//	203: if int(stat.Gid) != int(*fsGroup) {
//	214: if !fsInfo.IsDir() {
//	227: if (unixPerms&filePerm != unixPerms) || (fsInfo.Mode()&os.ModeSetgid == 0) {
//
// For CSI volumes unixPerms is 0770: a read-only one has no fsGroup (pkg/volume/csi/csi_mounter.go:475). 0550 asks for less.
func kubeletSkips(t *testing.T, dir string, gid int, unixPerms os.FileMode) bool {
	t.Helper()
	info, err := os.Stat(dir)
	must(t, err)
	has := info.Sys().(*syscall.Stat_t).Gid
	return int(has) == gid && info.IsDir() && unixPerms&info.Mode().Perm() == unixPerms && info.Mode()&os.ModeSetgid != 0
}

// wrong counts the files of a volume that do not have a group.
func wrong(t *testing.T, dir string, gid int) (count int) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		must(t, err)
		if !strings.HasPrefix(look(t, path), fmt.Sprint(gid, " ")) {
			count++
		}
		return nil
	}))
	return count
}

// TestInterruptedChangeIsSeenForEveryGroup: a change from one group to another ends after each of its files. The next mount, with any
// group and on any node, must not trust the top.
func TestInterruptedChangeIsSeenForEveryGroup(t *testing.T) {
	root, dir := volume(t, "tmpfs", "")
	for i := range 20 {
		make4(t, filepath.Join(dir, fmt.Sprintf("d%d/f%d", i%4, i)), 0o600)
	}
	const before, next = testGroup, testGroup + 1
	for after := range int64(26) {
		must(t, root.ChangeGroup(t.Context(), "pod/mount", &GroupChange{GID: before}))
		ctx, cancel := context.WithCancel(t.Context())
		change := &GroupChange{GID: next}
		err := root.ChangeGroup(&endsAfter{Context: ctx, change: change, files: after, end: cancel}, "pod/mount", change)
		if (err == nil) != (after >= 25) {
			t.Fatalf("ended after %d files: %v", after, err)
		}
		for _, gid := range []int{0, before, next} {
			fits, err := root.HasGroup("pod/mount", gid)
			must(t, err)
			left := wrong(t, dir, gid)
			if left > 0 && (fits || kubeletSkips(t, dir, gid, 0o770) || kubeletSkips(t, dir, gid, 0o550)) {
				t.Errorf("ended after %d files: %d of 25 do not have group %d, and the top says that all have", after, left, gid)
			}
			if gid == next && left == 0 && !fits {
				t.Errorf("all files have group %d, and the top says that they do not", gid)
			}
		}
	}
}

// TestChangeReachesTheDiskInOrder: a power cut must not keep the change of a file and lose that of the top before it, nor the reverse at the
// end.
func TestChangeReachesTheDiskInOrder(t *testing.T) {
	root, dir := volume(t, "tmpfs", "")
	for i := range 10 {
		make4(t, filepath.Join(dir, fmt.Sprintf("d%d/f%d", i%2, i)), 0o600)
	}
	give(t, root)
	const next, all = testGroup + 1, 13 // with the top
	steps := func(change, files error) (synced []string, err error) {
		root.fsync = func(*os.File) error {
			synced = append(synced, fmt.Sprintf("top %s, %d to change", look(t, dir), wrong(t, dir, next)))
			return change
		}
		root.syncFS = func(*os.File) error {
			synced = append(synced, fmt.Sprintf("all %s, %d to change", look(t, dir), wrong(t, dir, next)))
			return files
		}
		return synced, root.ChangeGroup(t.Context(), "pod/mount", &GroupChange{GID: next})
	}
	marked := fmt.Sprintf("%d 1777", testGroup)
	want := []string{fmt.Sprintf("top %s, %d to change", marked, all), fmt.Sprintf("all %s, 1 to change", marked)}
	if _, err := steps(syscall.EIO, nil); !errors.Is(err, syscall.EIO) || wrong(t, dir, next) != all || look(t, dir) != marked {
		t.Errorf("the top is not on the disk: %v, %d to change, the top is %s", err, wrong(t, dir, next), look(t, dir))
	}
	give(t, root)
	if _, err := steps(nil, syscall.EIO); !errors.Is(err, syscall.EIO) || look(t, dir) != marked {
		t.Errorf("the files are not on the disk: %v, the top is %s", err, look(t, dir))
	}
	root.syncFS = syncFS
	give(t, root)
	synced, err := steps(syscall.EINVAL, syscall.ENOSYS)
	if err != nil || !slices.Equal(synced, want) {
		t.Errorf("a file system that syncs nothing: %v, synced %q, want %q", err, synced, want)
	}
	if synced, err := steps(nil, nil); err != nil || len(synced) > 0 {
		t.Errorf("nothing is to change: %v, synced %q", err, synced)
	}
}

// TestRepairIsNotSeenByContainers: the top has the group, and some files do not. Containers that run with the group create files in the
// top, which have to get it.
func TestRepairIsNotSeenByContainers(t *testing.T) {
	root, dir := volume(t, "tmpfs", "")
	for i := range 10 {
		make4(t, filepath.Join(dir, fmt.Sprint(i)), 0o600)
	}
	give(t, root)
	must(t, os.Chown(filepath.Join(dir, "5"), -1, 0))
	change := &GroupChange{GID: testGroup}
	for after := range int64(11) {
		seen := func() {
			if fits, err := root.HasGroup("pod/mount", testGroup); err != nil || !fits {
				t.Errorf("after %d files the top is %s: %v", after, look(t, dir), err)
			}
		}
		must(t, root.ChangeGroup(&endsAfter{Context: t.Context(), change: change, files: after, end: seen}, "pod/mount", change))
	}
	wantLook(t, filepath.Join(dir, "5"), 0o660)
}

// TestTopThatMayNotBeChanged: as with kubelet, the pod gets its files, but not on a file system that is read-only.
func TestTopThatMayNotBeChanged(t *testing.T) {
	for name, test := range map[string]struct {
		freeze func(dir string) error
		group  int
	}{
		"immutable": {func(dir string) error {
			top, err := os.Open(dir)
			must(t, err)
			defer top.Close()
			return unix.IoctlSetPointerInt(int(top.Fd()), unix.FS_IOC_SETFLAGS, 0x10)
		}, testGroup + 1},
		"read-only": {func(dir string) error { return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "") }, testGroup},
	} {
		t.Run(name, func(t *testing.T) {
			root, dir := volume(t, "tmpfs", "")
			file := make4(t, filepath.Join(dir, "file"), 0o600)
			give(t, root)
			if err := test.freeze(dir); err != nil {
				t.Skipf("no immutable files on tmpfs before Linux 6.6: %v", err)
			}
			change := &GroupChange{GID: testGroup + 1}
			must(t, root.ChangeGroup(t.Context(), "pod/mount", change))
			if got, want := look(t, file), fmt.Sprint(test.group, " 660"); got != want || change.Refused.Load() == 0 {
				t.Errorf("the file is %s, want %s; refused %d times", got, want, change.Refused.Load())
			}
		})
	}
}

// endsAfter is a context that ends when so many files were seen.
type endsAfter struct {
	context.Context
	change *GroupChange
	files  int64
	end    func()
}

func (e *endsAfter) Err() error {
	if e.change.Seen.Load() >= e.files {
		e.end()
	}
	return e.Context.Err()
}

// TestChangeGroupOfAReadOnlyVolume: it is asked once, not for each of its files.
func TestChangeGroupOfAReadOnlyVolume(t *testing.T) {
	root, dir := volume(t, "tmpfs", "")
	for i := range 10 {
		make4(t, filepath.Join(dir, fmt.Sprint(i)), 0o600)
	}
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	change := give(t, root)
	if change.Refused.Load() != 1 || !errors.Is(change.FirstRefusal, syscall.EROFS) {
		t.Errorf("refused %d times, first %v", change.Refused.Load(), change.FirstRefusal)
	}
}

// TestChangeGroupCountsRefusals: an immutable file does not keep the others from the group.
func TestChangeGroupCountsRefusals(t *testing.T) {
	root, dir := volume(t, "tmpfs", "")
	for i := range 10 {
		make4(t, filepath.Join(dir, fmt.Sprint(i)), 0o600)
	}
	file, err := os.Open(filepath.Join(dir, "3"))
	must(t, err)
	defer file.Close()
	const immutable = 0x10
	if err := unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, immutable); err != nil {
		t.Skipf("no immutable files on tmpfs before Linux 6.6: %v", err)
	}
	change := give(t, root)
	wantLook(t, filepath.Join(dir, "9"), 0o660)
	wantLook(t, dir, 0o3777)
	if change.Refused.Load() != 2 || !errors.Is(change.FirstRefusal, syscall.EPERM) { // its group and its mode
		t.Errorf("refused %d times, first %v", change.Refused.Load(), change.FirstRefusal)
	}
}

// TestChangeGroupOfAMovedDirectory moves one while its tree is changed, after so many levels
// that the way up is by "..".
func TestChangeGroupOfAMovedDirectory(t *testing.T) {
	for name, to := range map[string]string{"within the volume": "pod/disk/volume/moved", "out of the volume": "pod/disk/moved"} {
		t.Run(name, func(t *testing.T) {
			root, dir := volume(t, "tmpfs", "")
			must(t, root.MakeDir("pod/disk"))
			must(t, unix.Mount(dir, root.Path("pod/disk"), "", unix.MS_BIND, ""))
			defer func() { must(t, unix.Unmount(root.Path("pod/disk"), unix.MNT_DETACH)) }()
			deep := root.Path("pod/disk/volume/" + strings.Repeat("d/", 2*openDirectories))
			must(t, os.MkdirAll(deep, 0o700))
			must(t, unix.Chmod(root.Path("pod/disk"), 0o700))
			must(t, unix.Mount(root.Path("pod/disk/volume"), dir, "", unix.MS_BIND, ""))
			defer func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
			before := look(t, root.Path("pod/disk"))
			change := &GroupChange{GID: testGroup}
			moved := sync.OnceFunc(func() { must(t, os.Rename(root.Path("pod/disk/volume/d/d/d"), root.Path(to))) })
			err := root.ChangeGroup(&endsAfter{Context: t.Context(), change: change, files: 1, end: moved}, "pod/mount", change)
			if err == nil || (strings.HasPrefix(name, "within") && !errors.Is(err, ErrMoved)) {
				t.Errorf("the change ended with %v", err)
			}
			if got := look(t, root.Path("pod/disk")); got != before {
				t.Errorf("outside was %s and is %s", before, got)
			}
			if fits, err := root.HasGroup("pod/mount", testGroup); err != nil || fits {
				t.Errorf("fits %v, %v", fits, err)
			}
		})
	}
}

// TestChangeGroupDuringHostileChanges has others make, remove and swap files with symlinks to
// the outside all the time while the change runs.
func TestChangeGroupDuringHostileChanges(t *testing.T) {
	root, dir := volume(t, "tmpfs", "")
	outside := t.TempDir()
	secret := make4(t, filepath.Join(outside, "directory/secret"), 0o600)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i := range 50 {
		make4(t, filepath.Join(dir, fmt.Sprintf("d%d/file", i)), 0o600)
	}
	before := look(t, secret) + look(t, filepath.Dir(secret)) + look(t, outside)
	ctx, stop := context.WithCancel(t.Context())
	var neighbours sync.WaitGroup
	defer neighbours.Wait()
	defer stop()
	// By descriptor: the neighbours' threads do not see the mount.
	volumeFD, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	defer closeFD(volumeFD)
	for n := range 2 {
		neighbours.Go(func() { swap(ctx, rand.New(rand.NewPCG(seed, uint64(n))), volumeFD, outside) })
	}
	for range 200 {
		change := &GroupChange{GID: testGroup}
		must(t, root.ChangeGroup(t.Context(), "pod/mount", change))
	}
	stop()
	neighbours.Wait()
	if got := look(t, secret) + look(t, filepath.Dir(secret)) + look(t, outside); got != before {
		t.Errorf("outside was %s and is %s", before, got)
	}
}

// swap moves things in a volume about until ctx ends.
func swap(ctx context.Context, rng *rand.Rand, volume int, outside string) {
	for ctx.Err() == nil {
		name := fmt.Sprintf("d%d", rng.IntN(50))
		aside := fmt.Sprintf("%s.%d", name, rng.IntN(4))
		// What fails meets the other neighbour.
		switch rng.IntN(4) {
		case 0: // a directory becomes a symlink
			if unix.Symlinkat(outside+"/directory", volume, aside) == nil {
				_ = unix.Renameat2(volume, aside, volume, name, unix.RENAME_EXCHANGE)
			}
		case 1: // a file becomes one
			if unix.Symlinkat(outside+"/directory/secret", volume, name+"/"+aside) == nil {
				_ = unix.Renameat2(volume, name+"/"+aside, volume, name+"/file", unix.RENAME_EXCHANGE)
			}
		case 2: // back
			_ = unix.Renameat2(volume, aside, volume, name, unix.RENAME_EXCHANGE)
			_ = unix.Unlinkat(volume, aside, 0)
		default: // gone and there again
			_ = unix.Unlinkat(volume, name+"/file", 0)
			if fd, err := unix.Openat(volume, name+"/file", unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600); err == nil {
				closeFD(fd)
			}
		}
	}
}

func TestErrorsShortenHostileNames(t *testing.T) {
	walk := groupWalk{GroupChange: &GroupChange{}, path: "/v"}
	for range 1000 {
		walk.down = append(walk.down, level{name: strings.Repeat("x", 200)})
	}
	text := walk.failed("open", "a\nb", syscall.EIO).Error()
	if len(text) > 1600 || strings.Contains(text, "\n") || !strings.HasPrefix(text, `open "/v/xxx`) {
		t.Errorf("%d bytes: %.100s", len(text), text)
	}
}
