package kube

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// The machine of a standby is suspended for an hour (a VM that is migrated, a laptop): the
// monotonic clock of Linux stands. It then leads, and dates a request; its successor is
// an hour ahead of it, and forces an hour early. invariants.md: "A new leader forces early by
// as much as the clock of its API server was ahead ... and by up to one second".
func TestHostileSuspendedProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var leader, successor ServerClock
		date := time.Now().Truncate(time.Second)
		leader.Heed(date.UTC().Format(http.TimeFormat))
		// Suspended: time.Since does not move, the API server's clock does. The next answer
		// that either of them gets has this date.
		date = date.Add(time.Hour)
		leader.Heed(date.UTC().Format(http.TimeFormat))
		successor.Heed(date.UTC().Format(http.TimeFormat))
		if apart := successor.Now().Sub(leader.Now()); apart > time.Second {
			t.Errorf("two processes with the same API server are %v apart", apart)
		}
	})
}
