package kube

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// ServerClock is the API server's time as this process knows it. A standby follows each Date header: its machine may be suspended,
// and the monotonic clock with it. A leader counts with its monotonic clock from the last Date before it started to lead, so an API
// server whose clock is ahead cannot end a wait too early. Two leaders differ by as much as the clocks of their API servers did
// when they started, and by one second, the resolution of Date.
type ServerClock struct {
	mu     sync.Mutex
	leads  bool
	first  reading // in a standby, the last one
	newest reading
}

// reading is a Date header, and when it was received, with the monotonic clock.
type reading struct{ date, received time.Time }

func (r reading) now() time.Time {
	if r.date.IsZero() {
		return time.Now()
	}
	return r.date.Add(time.Since(r.received))
}

// Now is the API server's time. Before the first answer it is the time of this process.
func (c *ServerClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.first.now()
}

// Newest is the latest time that the answers so far allow. A time that is stored with it is not too early for the next leader, even
// if this machine was suspended or the clock of another API server is ahead. Here it makes a wait longer, never shorter.
func (c *ServerClock) Newest() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest.now()
}

// Lead is called when this process starts to lead: from then on Date headers do not change Now.
func (c *ServerClock) Lead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leads = true
}

// Observe records the Date header of an answer that was just received.
func (c *ServerClock) Observe(header string) {
	date, err := http.ParseTime(header)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at := reading{date, time.Now()}
	switch {
	case !c.leads || c.first.date.IsZero():
		c.first, c.newest = at, at
	case date.After(c.newest.now()):
		c.newest = at
	}
}

// Follow lets the clock observe the answers to the clients of the config.
func (c *ServerClock) Follow(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return clockReader{c, next} })
	return config
}

type clockReader struct {
	clock *ServerClock
	next  http.RoundTripper
}

// WrappedRoundTripper lets client-go find the transport that can cancel a request.
func (r clockReader) WrappedRoundTripper() http.RoundTripper { return r.next }

// RoundTrip passes the request on and reads the answer's date.
func (r clockReader) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := r.next.RoundTrip(request)
	if err == nil {
		r.clock.Observe(answer.Header.Get("Date"))
	}
	return answer, err
}
