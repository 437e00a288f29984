package kubectl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/heap"
	"belay.dev/belay/internal/printable"
)

// garbage is how much of it there may be until it is collected: in percent less than Go's default, for the memory of an operator's
// laptop. A cluster of 5,000 nodes, whose snapshot takes 120 MiB, stays well below 300 MiB. A limit would cost more time the larger the cluster is.
var garbage = heap.Growth{Room: 60 << 20, Least: 45}

// cluster reads all objects that volumes depend on, those with namespaces from one or, for "", from all, and shows the progress.
func (p *plugin) cluster(ctx context.Context, namespace string) (*diagnosis.Snapshot, error) {
	return p.clusterWith(ctx, namespace, false)
}

// clusterWith is cluster, with the FenceSources too.
func (p *plugin) clusterWith(ctx context.Context, namespace string, sources bool) (*diagnosis.Snapshot, error) {
	reader, err := p.reader()
	if err != nil {
		return nil, err
	}
	reader.Sources = sources
	shown := newProgress(p.ErrOut, p.redraws)
	reader.Progress = shown.report
	answered := p.waitsForServer()
	s := reader.Cluster(ctx, namespace)
	answered()
	shown.end()
	if ctx.Err() != nil {
		return nil, interrupted(ctx, ctx.Err())
	}
	if len(s.Whole)+len(s.Namespaces) == 0 && len(s.Unread) > 0 && !slices.ContainsFunc(s.Unread, func(u diagnosis.Unread) bool { return u.Forbidden }) {
		return nil, errors.New("read the cluster: " + s.Unread[0].Message)
	}
	return s, nil
}

// progress is one line about what has been read: rewritten on a terminal, else printed again from time to time. Short reads show none.
type progress struct {
	out      io.Writer
	terminal bool

	mu     sync.Mutex
	counts map[string]int
	next   time.Time
	shown  int // the length of the line on the terminal
}

// When a reading shows its progress first, and how often then.
const (
	progressAfter    = time.Second
	progressTerminal = 100 * time.Millisecond
	progressElse     = 2 * time.Second
)

func newProgress(out io.Writer, terminal bool) *progress {
	return &progress{out: out, terminal: terminal, counts: map[string]int{}, next: time.Now().Add(progressAfter)}
}

func (p *progress) report(what string, objects int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[what] = objects
	now := time.Now()
	if now.Before(p.next) {
		return
	}
	var parts []string
	for _, r := range []diagnosis.Resource{diagnosis.Pods, diagnosis.Claims, diagnosis.Volumes, diagnosis.Attachments, diagnosis.Nodes} {
		if n := p.counts[string(r)]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, r))
		}
	}
	line := "Reading: " + strings.Join(parts, ", ")
	if !p.terminal {
		p.next = now.Add(progressElse)
		_, _ = fmt.Fprintln(p.out, line)
		return
	}
	p.next = now.Add(progressTerminal)
	_, _ = fmt.Fprintf(p.out, "%s%-*s", printable.Return, p.shown, line)
	p.shown = max(p.shown, len(line))
}

// end removes the line from a terminal.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal && p.shown > 0 {
		_, _ = fmt.Fprint(p.out, printable.Return, strings.Repeat(" ", p.shown), printable.Return)
	}
}

// unread prints what could not be read, on standard error: the table is for programs too.
func (p *plugin) unread(unread []diagnosis.Unread, format output) {
	out := &page{wide: format == formatWide}
	out.unread(unread)
	_, _ = fmt.Fprint(p.ErrOut, out.text.String())
}
