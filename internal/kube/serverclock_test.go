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
		c.Heed("no date at all")
		// This process's own clock is an hour ahead.
		server := time.Now().Add(-time.Hour).Truncate(time.Second)
		c.Heed(server.UTC().Format(http.TimeFormat))
		time.Sleep(6 * time.Minute)
		// The API server's clock is set an hour ahead.
		c.Heed(time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		if got, want := c.Now(), server.Add(6*time.Minute); !got.Equal(want) {
			t.Errorf("after six minutes: %v, want %v", got, want)
		}
	})
}
