package upstream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/semver"
	"golang.org/x/sys/unix"

	"belay.dev/belay/internal/usage"
)

func TestVersionsComeFromLabModule(t *testing.T) {
	s, err := readSource("..")
	if err != nil {
		t.Fatal(err)
	}
	type told struct{ Version, Stamps string }
	got := map[string]told{}
	for _, p := range s.programs {
		got[p.name] = told{p.version, p.stamps}
	}
	kubernetes := got["kube-apiserver"].Version
	if !strings.HasPrefix(kubernetes, "v1.") {
		t.Fatalf("kube-apiserver has version %q", kubernetes)
	}
	stamp := "-X k8s.io/component-base/version.gitVersion=" + kubernetes
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet"} {
		if diff := cmp.Diff(told{kubernetes, stamp}, got[name]); diff != "" {
			t.Errorf("%s (-want +got): %s", name, diff)
		}
	}
	for _, name := range []string{"csi-attacher", "csi-provisioner"} {
		if want := "-X main.version=" + got[name].Version; got[name].Stamps != want {
			t.Errorf("%s is stamped %q, want %q", name, got[name].Stamps, want)
		}
	}
	if etcd := got["etcd"]; !strings.HasPrefix(etcd.Version, "v3.") || etcd.Stamps != "" {
		t.Errorf("etcd is %+v", etcd)
	}
}

// TestMinorVersions: every module in this folder pins its own minor version, which must not be newer than the lab's (version skew).
func TestMinorVersions(t *testing.T) {
	lab, err := findMinor("..", "")
	if err != nil {
		t.Fatal(err)
	}
	modules, err := filepath.Glob("*/go.mod")
	if err != nil || len(modules) == 0 {
		t.Fatalf("found %v (%v)", modules, err)
	}
	for _, module := range modules {
		minor := filepath.Dir(module)
		t.Run(minor, func(t *testing.T) {
			s, err := findMinor("..", minor)
			if err != nil {
				t.Fatal(err)
			}
			if len(s.programs) != len(lab.programs) || s.key("go1.26.0", "linux/amd64") == lab.key("go1.26.0", "linux/amd64") {
				t.Errorf("%d programs with the key %s, want those of the lab with another key", len(s.programs), s.key("go1.26.0", "linux/amd64"))
			}
			for i, p := range s.programs {
				kubernetes := strings.HasPrefix(p.pkg, "k8s.io/kubernetes/")
				if kubernetes != (semver.MajorMinor(p.version) == "v"+minor) || kubernetes != (p.module == filepath.Join("..", "upstream", minor)) {
					t.Errorf("%s %s is built in %s", p.name, p.version, p.module)
				}
				if !kubernetes && p != lab.programs[i] {
					t.Errorf("%+v is not the lab's", p)
				}
			}
			if semver.Compare(s.kubernetes(), lab.kubernetes()) > 0 {
				t.Errorf("%s is newer than the client libraries of the lab (%s)", s.kubernetes(), lab.kubernetes())
			}
		})
	}
	if own, err := findMinor("..", strings.TrimPrefix(semver.MajorMinor(lab.kubernetes()), "v")); err != nil || own.kubernetes() != lab.kubernetes() {
		t.Errorf("the lab's own minor version: %s (%v), want %s", own.kubernetes(), err, lab.kubernetes())
	}
	for _, unknown := range []string{"1.9", "..", "nonsense"} {
		if _, err := findMinor("..", unknown); usage.Status(err) != usage.StatusWrong {
			t.Errorf("version %q: %v, want a usage error", unknown, err)
		}
	}
}

func TestKeyChangesWithWhatIsBuilt(t *testing.T) {
	base := source{programs: []program{{name: "kube-apiserver", pkg: "k/a", version: "v1"}, {name: "etcd", pkg: "e", version: "v3"}}, sum: []byte("sum")}
	key := base.key("go1.26.0", "linux/amd64")
	otherVersion, otherSum, otherOrder := base, base, base
	otherVersion.programs = []program{{name: "kube-apiserver", pkg: "k/a", version: "v2"}, base.programs[1]}
	otherSum.sum = []byte("another sum")
	otherOrder.programs = []program{base.programs[1], base.programs[0]}
	for name, test := range map[string]struct {
		got  string
		same bool
	}{
		"the same":               {base.key("go1.26.0", "linux/amd64"), true},
		"tools in another order": {otherOrder.key("go1.26.0", "linux/amd64"), true},
		"another version":        {otherVersion.key("go1.26.0", "linux/amd64"), false},
		"another go.sum":         {otherSum.key("go1.26.0", "linux/amd64"), false},
		"another Go":             {base.key("go1.27.0", "linux/amd64"), false},
		"another platform":       {base.key("go1.26.0", "linux/arm64"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if (test.got == key) != test.same {
				t.Errorf("keys %s and %s: same is %v, want %v", key, test.got, test.got == key, test.same)
			}
		})
	}
}

// smallLab is a module that looks like the lab's, whose one tool is built in a second.
func smallLab(t *testing.T, code string) string {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("go is not in PATH")
	}
	dir := t.TempDir()
	for name, content := range map[string]string{
		"go.mod":                  "module belay.dev/belay/lab\n\ngo 1.26.0\n\nrequire example.com/tool v0.0.0\n\nreplace example.com/tool => ./tool\n\ntool example.com/tool/cmd/hello\n",
		"tool/go.mod":             "module example.com/tool\n\ngo 1.26.0\n",
		"tool/cmd/hello/hello.go": code,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("BELAY_LAB_SRC", dir)
	t.Setenv("BELAY_UPSTREAM_BIN", "")
	return dir
}

const helloCode = "package main\n\nfunc main() { println(\"hello\") }\n"

func TestSeveralProcessesBuildOnce(t *testing.T) {
	smallLab(t, helloCode)
	cache := t.TempDir()
	var mu sync.Mutex
	var lines []string
	progress := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, fmt.Sprintf(format, args...))
	}
	var group sync.WaitGroup
	errs := make([]error, 3)
	dirs := make([]string, 3)
	for i := range errs {
		group.Go(func() {
			programs, err := Ensure(context.Background(), Request{Cache: cache, Progress: progress})
			errs[i], dirs[i] = err, programs.Dir
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.Command(filepath.Join(dirs[0], "hello")).CombinedOutput(); err != nil || string(said) != "hello\n" {
		t.Errorf("the program says %q (%v)", said, err)
	}
	built := 0
	for _, line := range lines {
		if strings.Contains(line, "are built") {
			built++
		}
	}
	if built != 1 {
		t.Errorf("built %d times, want once:\n%s", built, strings.Join(lines, "\n"))
	}
}

// TestProgramsOfAModuleAreBuiltTogether, each with its own stamps and under its own name.
func TestProgramsOfAModuleAreBuiltTogether(t *testing.T) {
	module := t.TempDir()
	code := "package main\n\nvar version = \"none\"\n\nfunc main() { print(version) }\n"
	for name, content := range map[string]string{
		"go.mod": "module example.com/tool\n\ngo 1.26.0\n", "cmd/one/main.go": code, "two/v3/main.go": code, "two/v3/x/x.go": "package x\n",
	} {
		path := filepath.Join(module, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wanted := []program{
		{name: "one", pkg: "example.com/tool/cmd/one", module: module, stamps: "-X main.version=v1"},
		{name: "second", pkg: "example.com/tool/two/v3", module: module, stamps: "-X main.version=v2"},
	}
	dir := t.TempDir()
	if err := buildModule(t.Context(), wanted, dir, t.Logf); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"one": "v1", "second": "v2"} {
		if said, err := exec.Command(filepath.Join(dir, name)).CombinedOutput(); err != nil || string(said) != want {
			t.Errorf("%s says %q (%v), want %q", name, said, err, want)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("the folder has %v (%v), want the two programs", entries, err)
	}
}

// TestBuildReportsHowFarItIs: at most every 20 seconds, with an estimate, and errors are kept.
func TestBuildReportsHowFarItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		w := newWatcher(func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }, 100)
		for i := range 50 {
			time.Sleep(time.Second)
			_, _ = fmt.Fprintf(w, "go: downloading example.com/m%d v1.0.0\nexample.com/p", i)
			_, _ = fmt.Fprintf(w, "%d\n", i)
		}
		_, _ = fmt.Fprint(w, "# example.com/broken\nx.go:1:1: nonsense\n")
		want := []string{"20 of 100 packages compiled, about 1m20s left", "40 of 100 packages compiled, about 1m0s left"}
		if diff := cmp.Diff(want, lines); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if !strings.HasSuffix(w.said.String(), "# example.com/broken\nx.go:1:1: nonsense\n") {
			t.Errorf("the error is lost: %q", w.said.String())
		}
	})
}

// goThatHangs puts a go into PATH that builds half a program and then waits forever. halfway is called when it does.
func goThatHangs(t *testing.T, halfway func()) {
	t.Helper()
	real, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	tools := t.TempDir()
	reached, never := filepath.Join(tools, "reached"), filepath.Join(tools, "never")
	script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = build ] || exec %s \"$@\"\nwhile [ \"$1\" != -o ]; do shift; done\n"+
		"printf half > \"$2/hello\" && echo > %s && read -r nothing < %s\n", real, reached, never)
	if err := errors.Join(unix.Mkfifo(reached, 0o600), unix.Mkfifo(never, 0o600), os.WriteFile(filepath.Join(tools, "go"), []byte(script), 0o700)); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(reached, os.O_RDWR, 0) // with a writer, so that neither opening it nor closing it waits for the script
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pipe.Close() })
	go func() {
		if _, err := pipe.Read(make([]byte, 1)); err == nil {
			halfway()
		}
	}()
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
}

func TestInterruptedBuildLeavesNoPartialProgram(t *testing.T) {
	smallLab(t, helloCode)
	cache, path := t.TempDir(), os.Getenv("PATH")
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := errors.New("Ctrl-C")
	goThatHangs(t, func() {
		if half, err := filepath.Glob(filepath.Join(cache, "bin", "*", buildingPrefix+"*", "hello")); err != nil || len(half) != 1 {
			t.Errorf("half a program is not where it is built: %q (%v)", half, err)
		}
		cancel(stop)
	})
	_, err := Ensure(ctx, Request{Cache: cache})
	if !errors.Is(err, stop) {
		t.Errorf("got %v, want %v", err, stop)
	}
	t.Setenv("PATH", path)
	left, err := filepath.Glob(filepath.Join(cache, "bin", "*", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
	// And what a killed builder leaves is removed by the next.
	programs, err := Ensure(context.Background(), Request{Cache: cache})
	if err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(programs.Dir, buildingPrefix+"123", "hello")
	if err := os.MkdirAll(filepath.Dir(half), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(programs.Path("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(context.Background(), Request{Cache: cache}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(half)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the half build of a killed process is still there: %v", err)
	}
}

// A go that is older than go.mod requires downloads another one, and prints that before it answers.
func TestGoEnvironmentIgnoresToolchainDownload(t *testing.T) {
	dir := smallLab(t, helloCode)
	s, err := readSource(dir)
	if err != nil {
		t.Fatal(err)
	}
	tools := t.TempDir()
	script := "#!/bin/sh\necho 'go: downloading go1.26.9 (linux/amd64)' >&2\nprintf 'go1.26.9\\nlinux\\namd64\\n'\n"
	if err := os.WriteFile(filepath.Join(tools, "go"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	version, platform, err := goEnvironment(t.Context(), s)
	if err != nil || version != "go1.26.9" || platform != "linux/amd64" {
		t.Errorf("got %q, %q, %v", version, platform, err)
	}
}

func TestPruneKeepsLastUsedAndRunning(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	program, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	dir := func(key string) string { return filepath.Join(cache, "bin", key) }
	for age, key := range []string{"newest", "newer", "built", "running", "old", "oldest"} {
		if err := os.MkdirAll(dir(key), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir(key), "etcd"), program, 0o700); err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-time.Duration(age) * time.Hour)
		if err := os.Chtimes(dir(key), then, then); err != nil {
			t.Fatal(err)
		}
	}
	runs := exec.Command(filepath.Join(dir("running"), "etcd"), "300")
	if err := runs.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = runs.Process.Kill(); _ = runs.Wait() }()
	unlock, err := lockDir(t.Context(), dir("built"), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	removed, err := Prune(cache, 2)
	if diff := cmp.Diff([]string{dir("old"), dir("oldest")}, removed); diff != "" || err != nil {
		t.Errorf("removed (%v) -want +got:\n%s", err, diff)
	}
	for key, want := range map[string]bool{"newest": true, "newer": true, "built": true, "running": true, "old": false, "oldest": false} {
		if _, err := os.Stat(dir(key)); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", key, err == nil, want)
		}
	}
	if removed, err := Prune(filepath.Join(cache, "none"), 2); err != nil || len(removed) > 0 {
		t.Errorf("of no cache: %v, %v", removed, err)
	}
}

func TestFailedBuildNamesProgramAndCause(t *testing.T) {
	smallLab(t, "package main\n\nfunc main() { nonsense }\n")
	_, err := Ensure(context.Background(), Request{Cache: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "building hello") || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("got %v, want an error that names program and cause", err)
	}
}

func TestBuildErrorsAreExplained(t *testing.T) {
	p := []program{{name: "etcd"}}
	failed := errors.New("exit status 1")
	for name, test := range map[string]struct{ got, want string }{
		"disk full, told by the linker": {explain(p, "write /tmp/x: no space left on device", failed).Error(), "the disk is full"},
		"disk full, told by the kernel": {explain(p, "", fmt.Errorf("mkdir: %w", unix.ENOSPC)).Error(), "the disk is full"},
		"no proxy":                      {explain(p, "Get \"https://proxy.golang.org/x\": dial tcp: lookup proxy.golang.org: no such host", failed).Error(), "GOPROXY"},
		"old Go":                        {source{goVersion: "1.26.0"}.checkGo("go1.24.3").Error(), "the Go here is go1.24.3, the lab needs go1.26.0 or newer"},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(test.got, test.want) {
				t.Errorf("got %q, want it to say %q", test.got, test.want)
			}
		})
	}
	if err := (source{goVersion: "1.26.0"}).checkGo("go1.26.8"); err != nil {
		t.Errorf("a newer Go is refused: %v", err)
	}
}

func TestMissingGoIsReported(t *testing.T) {
	smallLab(t, helloCode)
	t.Setenv("PATH", t.TempDir())
	_, err := Ensure(context.Background(), Request{Cache: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "go is not in PATH") {
		t.Errorf("got %v", err)
	}
}

func TestGivenFolderMustBeComplete(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("BELAY_UPSTREAM_BIN", dir)
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "csi-attacher"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Ensure(context.Background(), Request{})
	if err == nil || !strings.Contains(err.Error(), "lacks csi-provisioner:") {
		t.Errorf("got %v, want the missing program named", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "csi-provisioner"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	programs, err := Ensure(context.Background(), Request{})
	if diff := cmp.Diff(Programs{Dir: dir}, programs); diff != "" || err != nil {
		t.Errorf("(%v) -want +got: %s", err, diff)
	}
	if _, err := Ensure(context.Background(), Request{Kubelet: true}); err == nil || !strings.Contains(err.Error(), "lacks kubelet:") {
		t.Errorf("got %v, want the kubelet named", err)
	}
}
