package upstream

import (
	"bytes"
	"context"
	"strings"
	"time"
)

// reportEvery is how often a build says how far it is.
const reportEvery = 20 * time.Second

// stale counts what go would compile or link for packages; 0 if that cannot be found out, which the build then says.
func stale(ctx context.Context, module string, packages []string) int {
	var found, said bytes.Buffer
	if runGo(ctx, module, &found, &said, append([]string{"list", buildFlag, "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}"}, packages...)...) != nil {
		return 0
	}
	return len(strings.Fields(found.String()))
}

// watcher reads what `go build -v` prints, a line for each package that it compiles, and reports how far the build is. It keeps the rest, which is
// about errors.
type watcher struct {
	progress func(string, ...any)
	began    time.Time
	total    int // of the packages
	done     int
	reported time.Time // the last time; at first the beginning, as an estimate from a few packages is none
	rest     []byte    // the beginning of a line
	said     bytes.Buffer
}

func newWatcher(progress func(string, ...any), total int) *watcher {
	now := time.Now()
	return &watcher{progress: progress, began: now, reported: now, total: total}
}

// Write never fails.
func (w *watcher) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		line, rest, whole := bytes.Cut(w.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		w.rest = rest
		w.line(string(line))
	}
}

// line is the import path of a package, "go: downloading ..." or about an error.
func (w *watcher) line(text string) {
	if text == "" || strings.ContainsAny(text, " #:") {
		w.said.WriteString(text + "\n")
		return
	}
	w.done++
	if now := time.Now(); now.Sub(w.reported) >= reportEvery {
		w.reported = now
		w.report(now)
	}
}

// report estimates by the number of packages: they differ in size, and the links come last.
func (w *watcher) report(now time.Time) {
	if w.total < w.done {
		w.progress("%d packages compiled", w.done)
		return
	}
	took := now.Sub(w.began)
	left := took * time.Duration(w.total-w.done) / time.Duration(w.done)
	w.progress("%d of %d packages compiled, about %v left", w.done, w.total, left.Round(10*time.Second))
}
