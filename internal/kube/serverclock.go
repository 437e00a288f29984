package kube

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// ServerClock is the API server's time as this process knows it. A standby follows each
// Date: its machine may be suspended, and the monotonic clock with it. A leader counts on
// by its monotonic clock from the last Date before it began: no API server whose clock is
// ahead makes it judge a wait too early. Two leaders disagree by as much as the clocks of
// their API servers did when they began, and one second, the resolution of Date.
type ServerClock struct {
	mu     sync.Mutex
	leads  bool
	first  reading // and, in a standby, the last
	newest reading
}

// reading is one Date, and when it came, with the monotonic reading.
type reading struct{ date, received time.Time }

func (r reading) now() time.Time {
	if r.date.IsZero() {
		return time.Now()
	}
	return r.date.Add(time.Since(r.received))
}

// Now is the API server's time. Before the first answer it is the process's own.
func (c *ServerClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.first.now()
}

// Newest is the latest that it may be by the answers so far: what is written down with it
// is not too early for a successor, whether this machine was suspended or the clock of
// another API server is ahead. Here it makes a wait longer, never shorter.
func (c *ServerClock) Newest() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest.now()
}

// Lead is called when this process begins to lead: Now heeds no Date from then on.
func (c *ServerClock) Lead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leads = true
}

// Observe takes the Date header of an answer that came just now.
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

// Follow lets the clock see the answers that a client of the config gets.
func (c *ServerClock) Follow(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return clockReader{c, next} })
	return config
}

type clockReader struct {
	clock *ServerClock
	next  http.RoundTripper
}

// RoundTrip passes the request on and reads the answer's date.
func (r clockReader) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := r.next.RoundTrip(request)
	if err == nil {
		r.clock.Observe(answer.Header.Get("Date"))
	}
	return answer, err
}
