package kube

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// ServerClock is the API server's time as this process knows it: the Date of the first
// answer, and from then on the monotonic clock of the process. No step of any clock
// changes it while the process lives. Two processes disagree by as much as the clocks of
// their API servers did when they started, and one second, the resolution of Date.
type ServerClock struct {
	mu       sync.Mutex
	date     time.Time // of the first answer
	received time.Time // when that came, with the monotonic reading
}

// Now is the API server's time. Before the first answer it is the process's own.
func (c *ServerClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.date.IsZero() {
		return time.Now()
	}
	return c.date.Add(time.Since(c.received))
}

// Heed takes the Date header of an answer that came just now. Only the first counts.
func (c *ServerClock) Heed(header string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.date.IsZero() {
		return
	}
	if date, err := http.ParseTime(header); err == nil {
		c.date, c.received = date, time.Now()
	}
}

// Read lets the clock see the answers that a client of the config gets.
func (c *ServerClock) Read(config *rest.Config) *rest.Config {
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
		r.clock.Heed(answer.Header.Get("Date"))
	}
	return answer, err
}
