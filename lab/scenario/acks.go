package scenario

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/lab/timeline"
)

// follower reads the logs of all pods that write to the writer's claim, from their
// start to their end, and keeps the highest number that was acknowledged. A log dies
// with its pod, so it must be read while the pod lives. Logs of other pods are left
// alone: they say nothing of this ledger, and on hollow nodes there are none to read.
type follower struct {
	client kubernetes.Interface
	group  sync.WaitGroup

	mu sync.Mutex
	// ledger counts the ledgers begun: a line of a former one is not of this one.
	ledger  int
	highAck int64
	lastErr error                         // of a log that could not be read; nil after one that could
	stops   map[string]context.CancelFunc // by the pod's UID
}

// follow starts to read the log of every pod of the writer that runs from now on.
func follow(ctx context.Context, client kubernetes.Interface, record *timeline.Recorder) *follower {
	f := &follower{client: client, stops: map[string]context.CancelFunc{}}
	record.Listen(func(c timeline.Change) {
		switch {
		case c.Kind == timeline.PodRunning && writes(c):
			f.start(ctx, c)
		case c.Kind == timeline.PodGone:
			f.stop(c.UID)
		}
	})
	return f
}

// writes reports whether a pod has the writer's claim.
func writes(c timeline.Change) bool { return slices.Contains(c.Claims, Namespace+"/"+claimName) }

func (f *follower) start(ctx context.Context, c timeline.Change) {
	namespace, name, _ := strings.Cut(c.Object, "/")
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stops[c.UID] != nil || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	f.stops[c.UID] = cancel
	ledger := f.ledger
	f.group.Go(func() { f.read(ctx, ledger, namespace, name) })
}

// stop ends the reading of a pod's log a moment after the pod is gone: what is in
// flight still counts.
func (f *follower) stop(uid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if cancel := f.stops[uid]; cancel != nil {
		time.AfterFunc(time.Second, cancel)
	}
}

// begin forgets what was acknowledged: the next pod writes a new ledger.
func (f *follower) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ledger++
	f.highAck = 0
}

// read follows one pod's log and starts over when the stream breaks, as it does
// when the API server or the node's agent is killed.
func (f *follower) read(ctx context.Context, ledger int, namespace, name string) {
	for ctx.Err() == nil {
		stream, err := f.client.CoreV1().Pods(namespace).GetLogs(name, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
		if ctx.Err() == nil {
			f.note(err)
		}
		if err == nil {
			f.scan(ledger, stream)
			_ = stream.Close() // nothing was written to it
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookAgain):
		}
	}
}

func (f *follower) scan(ledger int, stream io.Reader) {
	lines := bufio.NewScanner(stream)
	for lines.Scan() {
		if n, ok := acknowledged(lines.Text()); ok {
			f.mu.Lock()
			if ledger == f.ledger {
				f.highAck = max(f.highAck, n)
			}
			f.mu.Unlock()
		}
	}
}

// acknowledged reads a line of the writer's log.
func acknowledged(line string) (int64, bool) {
	number, ok := strings.CutPrefix(line, "acknowledged ")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(number, 10, 64)
	return n, err == nil
}

func (f *follower) note(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastErr = err
}

// trouble is why logs cannot be read at present, or nil.
func (f *follower) trouble() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lastErr == nil {
		return nil
	}
	return fmt.Errorf("the writer's log cannot be read: %w", f.lastErr)
}

func (f *follower) highest() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.highAck
}

// wait returns when all readers have ended; their context must have ended before.
func (f *follower) wait() { f.group.Wait() }
