package upstream

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// EnsureOwn builds a program of the lab's module that links so much of Kubernetes that `make build` leaves it out, unless it is built and
// current, and returns its path in the cache folder. pkg is relative to the module's folder, such as "./hollowkubelet".
func EnsureOwn(ctx context.Context, r Request, pkg string) (string, error) {
	if r.Progress == nil {
		r.Progress = func(string, ...any) {}
	}
	dir, err := findSource()
	if err != nil {
		return "", err
	}
	s, err := readSource(dir)
	if err != nil {
		return "", err
	}
	if _, _, err := goEnvironment(ctx, s); err != nil {
		return "", err
	}
	folder := filepath.Join(r.Cache, "own")
	unlock, err := lockDir(ctx, folder, r.Progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	return filepath.Join(folder, path.Base(pkg)), buildOwn(ctx, s, pkg, folder, r.Progress)
}

// buildOwn leaves it to go to find out whether the program is current.
func buildOwn(ctx context.Context, s source, pkg, folder string, progress func(string, ...any)) error {
	p := program{name: path.Base(pkg), pkg: pkg, module: s.dir}
	if i := slices.IndexFunc(s.programs, func(other program) bool { return other.name == kubelet }); i >= 0 {
		p.stamps = s.programs[i].stamps
	}
	output := filepath.Join(folder, p.name)
	if _, err := os.Stat(output); err != nil {
		progress("building %s: once, about five minutes on two cores when kubelet was never built here", p.name)
	}
	began := time.Now()
	ldflags := strings.TrimSpace(linkFlags + " " + p.stamps)
	var said bytes.Buffer
	if err := runGo(ctx, s.dir, &said, &said, "build", buildFlag, "-buildvcs=false", "-ldflags", ldflags, "-o", output, p.pkg); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("building %s: %w", p.name, context.Cause(ctx))
		}
		return explain([]program{p}, said.String(), err)
	}
	progress("%s is built (%.0f s)", p.name, time.Since(began).Seconds())
	return nil
}
