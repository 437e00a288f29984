package nodes

import (
	"context"
	"log/slog"
	"testing"
	"time"
)

// TestStoppedChildStaysStopped: a child that was stopped is not started again until it is asked for; one that ended by itself is.
func TestStoppedChildStaysStopped(t *testing.T) {
	kept := newChildren(t.TempDir(), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		kept.keep(ctx, child{name: ChildAgent, path: "/bin/sleep", args: []string{"1000"}})
	}()
	reaped := make(chan struct{})
	go func() { // as node-init does at each signal
		defer close(reaped)
		for {
			kept.reapOne()
			select {
			case <-ended:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	starts := func() int {
		for _, s := range kept.states() {
			return s.Starts
		}
		return 0
	}
	await := func(what string, done func() bool) {
		t.Helper()
		if within(10*time.Second, done); !done() {
			t.Fatalf("%s: %+v", what, kept.states())
		}
	}
	if err := kept.stop(ChildAgent + "-2"); err == nil {
		t.Error("a child that does not exist was stopped")
	}
	await("it is started", func() bool { return kept.pid(ChildAgent) != 0 })
	if err := kept.stop(ChildAgent); err != nil || kept.pid(ChildAgent) != 0 {
		t.Fatalf("stopped: %v, %+v", err, kept.states())
	}
	if within(10*shortestRest, func() bool { return starts() > 1 }); starts() != 1 {
		t.Errorf("it was started again: %+v", kept.states())
	}
	if err := kept.startAgain(ChildAgent); err != nil {
		t.Fatal(err)
	}
	await("it is started again", func() bool { return kept.pid(ChildAgent) != 0 && starts() == 2 })
	cancel()
	endChild(kept, ChildAgent, time.Second)
	<-ended
	<-reaped
}
