package upstream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// EnsureOwn builds a program of the lab's module that links so much of Kubernetes that `make build` leaves it out, unless it is built, and
// returns its path in the cache folder. pkg is relative to the module's folder, such as "./hollowkubelet". The path is of this content alone:
// another checkout, or a changed source, gets another one.
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
	own := program{name: path.Base(pkg), pkg: pkg, module: s.dir}
	if i := slices.IndexFunc(s.programs, func(other program) bool { return other.name == kubelet }); i >= 0 {
		own.stamps = s.programs[i].stamps
	}
	key, err := ownKey(ctx, own, r.Progress)
	if err != nil {
		return "", err
	}
	programs, wanted := Programs{Dir: filepath.Join(r.Cache, "bin", key)}, []program{own}
	if len(missing(programs.Dir, wanted)) > 0 {
		if err := buildMissing(ctx, programs, wanted, r.Progress); err != nil {
			return "", err
		}
	}
	now := time.Now()
	_ = os.Chtimes(programs.Dir, now, now) // the last use, for Prune
	return programs.Path(own.name), nil
}

// ownKey names the folder of a program by what would be linked into it. go compiles the packages to tell, unless it has them in its cache.
func ownKey(ctx context.Context, p program, progress func(string, ...any)) (string, error) {
	packages := stale(ctx, p.module, []string{p.pkg})
	if packages > 0 {
		progress("compiling %d packages for %s: about five minutes on two cores when kubelet was never built here", packages, p.name)
	}
	var ids bytes.Buffer
	watch := newWatcher(progress, packages)
	if err := runGo(ctx, p.module, &ids, watch, "list", buildFlag, "-buildvcs=false", "-v", "-export", "-deps", "-f", "{{.ImportPath}} {{.BuildID}}", p.pkg); err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("building %s: %w", p.name, context.Cause(ctx))
		}
		return "", explain([]program{p}, watch.said.String(), err)
	}
	hash := sha256.New()
	hash.Write(ids.Bytes())
	_, _ = fmt.Fprintln(hash, strings.TrimSpace(linkFlags+" "+p.stamps)) // a hash never fails
	return p.name + "-" + hex.EncodeToString(hash.Sum(nil))[:12], nil
}
