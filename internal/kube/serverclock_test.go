package kube

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

func TestServerClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c ServerClock
		if got := c.Now(); !got.Equal(time.Now()) {
			t.Errorf("before the first answer: %v", got)
		}
		c.Observe("no date at all")
		// This process's own clock is an hour ahead.
		server := time.Now().Add(-time.Hour).Truncate(time.Second)
		c.Observe(server.UTC().Format(http.TimeFormat))
		c.Lead()
		time.Sleep(6 * time.Minute)
		// Another API server's clock is an hour ahead of the first one's: no wait may be
		// judged by that, and none that is written down may be too early by it.
		c.Observe(server.Add(6*time.Minute + time.Hour).UTC().Format(http.TimeFormat))
		time.Sleep(time.Minute)
		c.Observe(server.Add(7 * time.Minute).UTC().Format(http.TimeFormat))
		if got, want := c.Now(), server.Add(7*time.Minute); !got.Equal(want) {
			t.Errorf("after seven minutes: %v, want %v", got, want)
		}
		if got, want := c.Newest(), server.Add(7*time.Minute+time.Hour); !got.Equal(want) {
			t.Errorf("the newest after seven minutes: %v, want %v", got, want)
		}
	})
}

// The machine of a process is suspended for an hour (a VM that is migrated, a laptop): the
// monotonic clock of Linux stands. If it led, it dates rightly all the same; a standby has
// the right time when it leads. A successor would otherwise force an hour early.
func TestServerClockOfASuspendedMachine(t *testing.T) {
	for name, leads := range map[string]bool{"leader": true, "standby": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var suspended, successor ServerClock
				date := time.Now().Truncate(time.Second)
				suspended.Observe(date.UTC().Format(http.TimeFormat))
				if leads {
					suspended.Lead()
				}
				// time.Since does not move, the API server's clock does.
				date = date.Add(time.Hour)
				for _, c := range []*ServerClock{&suspended, &successor} {
					c.Observe(date.UTC().Format(http.TimeFormat))
				}
				if apart := successor.Now().Sub(suspended.Newest()); apart > time.Second {
					t.Errorf("it dates %v too early", apart)
				}
				if apart := successor.Now().Sub(suspended.Now()); !leads && apart > time.Second {
					t.Errorf("it is %v behind", apart)
				}
			})
		})
	}
}
