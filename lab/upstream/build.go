package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// buildFlag is the Makefile's too: what one of them has compiled, the other finds in Go's cache.
const buildFlag = "-trimpath"

// linkFlags leave out the symbol tables: a third of the size.
const linkFlags = "-s -w"

// kubelet is built only where nodes of that kind are wanted.
const kubelet = "kubelet"

// Request says what is wanted.
type Request struct {
	// Cache is the cache folder of belay; the programs lie in bin/<key> below it.
	Cache string
	// Kubernetes is a minor version, such as "1.35", of which lab/upstream has a module; empty for the one that the lab's go.mod pins.
	Kubernetes string
	// Kubelet asks for the kubelet as well.
	Kubelet bool
	// Progress receives the progress, one line at a time; may be nil.
	Progress func(format string, args ...any)
}

// Programs are built and ready to be run.
type Programs struct {
	// Dir is the folder that holds them.
	Dir string
}

// Path of one program.
func (p Programs) Path(name string) string { return filepath.Join(p.Dir, name) }

// Ensure returns the programs, and builds before what is not there yet. BELAY_UPSTREAM_BIN names a
// folder that has them. Several processes may call it at the same time; one builds, the others wait.
func Ensure(ctx context.Context, r Request) (Programs, error) {
	if r.Progress == nil {
		r.Progress = func(string, ...any) {}
	}
	if dir := os.Getenv("BELAY_UPSTREAM_BIN"); dir != "" && r.Kubernetes == "" {
		return given(dir, r)
	}
	dir, err := findSource()
	if err != nil {
		return Programs{}, err
	}
	s, err := findMinor(dir, r.Kubernetes)
	if err != nil {
		return Programs{}, err
	}
	goVersion, platform, err := goEnvironment(ctx, s)
	if err != nil {
		return Programs{}, err
	}
	programs := Programs{Dir: filepath.Join(r.Cache, "bin", s.key(goVersion, platform))}
	wanted := slices.DeleteFunc(slices.Clone(s.programs), func(p program) bool { return p.name == kubelet && !r.Kubelet })
	if len(missing(programs.Dir, wanted)) == 0 {
		now := time.Now()
		_ = os.Chtimes(programs.Dir, now, now) // the last use, for Prune
		return programs, nil
	}
	return programs, buildMissing(ctx, programs, wanted, r.Progress)
}

// given takes the programs from a folder that the user has filled.
func given(dir string, r Request) (Programs, error) {
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return Programs{}, fmt.Errorf("finding BELAY_UPSTREAM_BIN: %w", err)
	}
	var wanted []program
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "csi-attacher", "csi-provisioner", kubelet} {
		if name != kubelet || r.Kubelet {
			wanted = append(wanted, program{name: name})
		}
	}
	var names []string
	for _, p := range missing(absolute, wanted) {
		names = append(names, p.name)
	}
	if len(names) > 0 {
		return Programs{}, fmt.Errorf("BELAY_UPSTREAM_BIN is %s, which lacks %s: put them there, or unset it and they are built", absolute, strings.Join(names, ", "))
	}
	return Programs{Dir: absolute}, nil
}

// missing are the programs that dir does not hold. A program appears there whole or not at all.
func missing(dir string, wanted []program) []program {
	return slices.DeleteFunc(slices.Clone(wanted), func(p program) bool {
		found, err := os.Stat(filepath.Join(dir, p.name)) //nolint:gosec // the user names the folder
		return err == nil && found.Mode().IsRegular()
	})
}

// buildMissing builds what is missing under a lock. The programs of a module are built by one go command: what they share is compiled once, one
// is linked while others are compiled, and modules are downloaded side by side.
func buildMissing(ctx context.Context, programs Programs, wanted []program, progress func(string, ...any)) error {
	unlock, err := lockDir(ctx, programs.Dir, progress)
	if err != nil {
		return err
	}
	defer unlock()
	left := missing(programs.Dir, wanted) // another process may have built them while we waited
	if len(left) == 0 {
		return nil
	}
	began := time.Now()
	progress("building %s into %s: once, some minutes on two cores when nothing is cached", names(left), programs.Dir)
	for _, module := range modulesOf(left) {
		if err := buildModule(ctx, module, programs.Dir, progress); err != nil {
			return err
		}
	}
	progress("the upstream programs are built (%.0f s)", time.Since(began).Seconds())
	return nil
}

// modulesOf groups programs by the module that they are built in.
func modulesOf(all []program) (groups [][]program) {
	for _, p := range all {
		at := slices.IndexFunc(groups, func(group []program) bool { return group[0].module == p.module })
		if at < 0 {
			at, groups = len(groups), append(groups, nil)
		}
		groups[at] = append(groups[at], p)
	}
	return groups
}

// names lists programs with their versions.
func names(all []program) string {
	var list []string
	for _, p := range all {
		list = append(list, strings.TrimSpace(p.name+" "+p.version))
	}
	return strings.Join(list, ", ")
}

// buildModule builds programs of one module beside the final place, and moves them there when all are whole.
func buildModule(ctx context.Context, wanted []program, dir string, progress func(string, ...any)) error {
	temporary, err := os.MkdirTemp(dir, buildingPrefix)
	if err != nil {
		return explain(wanted, "", fmt.Errorf("making a folder for the build of %s: %w", names(wanted), err))
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	var packages []string
	args := []string{"build", buildFlag, "-buildvcs=false", "-v", "-o", temporary + "/"}
	for _, p := range wanted {
		args = append(args, "-ldflags", p.pkg+"="+strings.TrimSpace(linkFlags+" "+p.stamps))
		packages = append(packages, p.pkg)
	}
	watch := newWatcher(progress, stale(ctx, wanted[0].module, packages))
	if err := runGo(ctx, wanted[0].module, io.Discard, watch, append(args, packages...)...); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("building %s: %w", names(wanted), context.Cause(ctx))
		}
		return explain(wanted, watch.said.String(), err)
	}
	for _, p := range wanted {
		if err := os.Rename(filepath.Join(temporary, executable(p.pkg)), filepath.Join(dir, p.name)); err != nil {
			return fmt.Errorf("putting %s in place: %w", p.name, err)
		}
	}
	return nil
}

// buildingPrefix begins the names of unfinished builds' folders.
const buildingPrefix = ".building-"

// runGo runs the go command in a module's folder. Its compilers end with it, and it with us.
func runGo(ctx context.Context, dir string, stdout, stderr io.Writer, args ...string) error {
	// The parent-death signal is sent when the thread ends that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir = dir
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	command.Stdout, command.Stderr = stdout, stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGTERM}
	command.Cancel = func() error { return unix.Kill(-command.Process.Pid, unix.SIGKILL) }
	command.WaitDelay = 5 * time.Second
	return command.Run()
}

// goEnvironment asks go for its version and platform, in the lab's module, where a newer
// toolchain may be chosen.
func goEnvironment(ctx context.Context, s source) (goVersion, platform string, err error) {
	if _, err := exec.LookPath("go"); err != nil {
		return "", "", fmt.Errorf("the upstream programs must be built but go is not in PATH: install Go %s or newer (https://go.dev/dl), "+
			"or set BELAY_UPSTREAM_BIN to a folder that has the programs", s.goVersion)
	}
	var answer, said bytes.Buffer // go says on stderr that it fetches a toolchain
	if err := runGo(ctx, s.dir, &answer, &said, "env", "GOVERSION", "GOOS", "GOARCH"); err != nil {
		if ctx.Err() != nil {
			return "", "", context.Cause(ctx)
		}
		return "", "", fmt.Errorf("go does not run in %s; is it older than Go %s? It says: %s", s.dir, s.goVersion, lastLines(said.String()))
	}
	fields := strings.Fields(answer.String())
	if len(fields) != 3 {
		return "", "", fmt.Errorf("go env answered %q", answer.String())
	}
	return fields[0], fields[1] + "/" + fields[2], s.checkGo(fields[0])
}

// explain turns the words of a failed build into a sentence that says what to do.
func explain(wanted []program, said string, err error) error {
	building := "building " + names(wanted)
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(said, word) })
	}
	switch {
	case errors.Is(err, unix.ENOSPC) || has("no space left on device"):
		return fmt.Errorf("%s: the disk is full: make about 6 GB of room for Go's build cache (go env GOCACHE) and the programs, "+
			"or point GOCACHE, GOTMPDIR and BELAY_CACHE to another disk", building)
	case has("dial tcp", "no such host", "proxyconnect", "i/o timeout", "TLS handshake timeout", "connection refused", "network is unreachable"):
		return fmt.Errorf("%s: the modules cannot be downloaded; is the network up, and is GOPROXY (go env GOPROXY) right? go says: %s", building, lastLines(said))
	case said == "":
		return err
	default:
		return fmt.Errorf("%s: %w; go says: %s", building, err, lastLines(said))
	}
}

// lastLines is the end of what a program said, on one line.
func lastLines(said string) string {
	lines := strings.Split(strings.TrimSpace(said), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], " | ")
}

// lockDir makes dir and takes the lock beside it, waiting for another process that builds. What an
// interrupted build left there is removed.
func lockDir(ctx context.Context, dir string, progress func(string, ...any)) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of programs: %w", err)
	}
	for announced := false; ; announced = true {
		unlock, err = tryLock(dir)
		if err != nil {
			return nil, err
		}
		if unlock != nil {
			break
		}
		if !announced {
			progress("another process builds the upstream programs: waiting for it")
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
	leftovers, _ := filepath.Glob(filepath.Join(dir, buildingPrefix+"*"))
	for _, leftover := range leftovers {
		_ = os.RemoveAll(leftover)
	}
	return unlock, nil
}

// tryLock takes the lock beside dir; unlock is nil if another process has it.
func tryLock(dir string) (unlock func(), err error) {
	file, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock of the build: %w", err)
	}
	switch err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, file.Close()
	case err != nil:
		return nil, errors.Join(fmt.Errorf("locking the build: %w", err), file.Close())
	}
	return func() { _ = file.Close() }, nil
}
