package nodeagent

import (
	"context"
	"errors"
	"testing"

	"belay.dev/belay/internal/testing/wait"
)

// TestCloseEndsWaits: nothing will ever end them, and their callers' contexts need not end either.
func TestCloseEndsWaits(t *testing.T) {
	w := newWorld(t)
	l := w.live()
	w.volume("other")
	waiting := w.pod("waiting", "other") // for the attach
	l.agent.SetPod(waiting)
	forever := context.WithoutCancel(t.Context())
	mounted, unmounted := make(chan error, 1), make(chan error, 1)
	go func() { unmounted <- l.agent.WaitUnmounted(forever, l.pod.UID) }()
	go func() {
		_, err := l.agent.WaitMounted(forever, waiting.UID)
		mounted <- err
	}()
	w.untilInUse("h-" + w.name + "-other")
	must(t, l.agent.Close())
	for what, ended := range map[string]chan error{"WaitMounted": mounted, "WaitUnmounted": unmounted} {
		err := wait.For(t, what+" to return", ended)
		if waits, ok := errors.AsType[*WaitError](err); !ok || !errors.Is(err, ErrClosed) || len(waits.Volumes) != 1 {
			t.Errorf("%s returned %v, want a WaitError that wraps %v", what, err, ErrClosed)
		}
	}
	if _, err := l.agent.WaitMounted(forever, waiting.UID); !errors.Is(err, ErrClosed) {
		t.Errorf("WaitMounted after Close: %v", err)
	}
	if mounts, err := l.agent.WaitMounted(forever, l.pod.UID); err != nil || len(mounts) != 1 {
		t.Errorf("WaitMounted of what is mounted, after Close: %v, %v", mounts, err)
	}
}
