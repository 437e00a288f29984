package worker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// TestSignalIsServedUntilItSucceeds: signals during the work count as one, and a failure is repeated without one.
func TestSignalIsServedUntilItSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		signal, works := NewSignal(), 0
		go signal.Serve(ctx, func(failures int) error {
			if works++; works < 4 {
				signal.Wake()
				signal.Wake()
			}
			if works > 2 && failures < 2 {
				return errors.New("not now")
			}
			return nil
		})
		synctest.Wait()
		if works != 0 {
			t.Errorf("worked %d times without a signal", works)
		}
		signal.Wake()
		<-time.After(time.Second)
		synctest.Wait()
		if works != 5 { // two, the first failure and the signal during it, and what the back-off repeats
			t.Errorf("worked %d times, want 5", works)
		}
	})
}

// TestBackOffIsBounded: from 20 ms to 5 s, and a fifth more.
func TestBackOffIsBounded(t *testing.T) {
	for failures, want := range map[int]time.Duration{1: 20 * time.Millisecond, 2: 40 * time.Millisecond, 8: 2560 * time.Millisecond, 9: 5 * time.Second, 1000: 5 * time.Second} {
		if got := BackOff(failures); got < want || got > want+want/5 {
			t.Errorf("after %d failures: %s, want %s and up to a fifth more", failures, got, want)
		}
	}
}

// TestKeysOfAQueueDoNotWaitForEachOther, and Serve waits for all of them.
func TestKeysOfAQueueDoNotWaitForEachOther(t *testing.T) {
	queue, hanging, quick := workqueue.NewTyped[string](), make(chan struct{}), make(chan struct{})
	served := make(chan struct{})
	go func() {
		defer close(served)
		Serve(queue, func(key string) {
			if key == "hangs" {
				<-hanging
				return
			}
			close(quick)
		})
	}()
	queue.Add("hangs")
	queue.Add("is quick")
	<-quick
	queue.ShutDown()
	select {
	case <-served:
		t.Error("Serve has returned while a key is worked on")
	default:
	}
	close(hanging)
	<-served
}
