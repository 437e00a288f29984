package simulation

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/kube"
)

// errLost is what a client sees of a request whose answer did not come.
var errLost = errors.New("read tcp: connection reset by peer")

// actor is one process, as the API server sees it.
type actor struct {
	name string
	net  *network
	// dead: the process has crashed, and the rest of its goroutines has no network.
	dead bool
	// began is the version at which it started.
	began int
	// deposed: its lease was not renewed, so its client refuses to write (kube.Lease).
	deposed bool
	// heard is the version at which the API server last answered about each Node.
	heard map[string]int
	// looks is, for each volume, the version up to which it had seen the attachments when it
	// last began to look at the volume.
	looks map[string]int
	// sawNodes is the same of the Nodes.
	sawNodes map[string]int
	// dated, if set, is given the date in each answer that arrives, and when its request
	// was sent: all that a process learns of the API server's time.
	dated func(sent, date time.Time)
}

// request is in flight from a process to the API server.
type request struct {
	by   *actor
	what string
	// heard is, for each Node, by.heard when the request was sent.
	heard map[string]int
	// looks is, for each volume, the version up to which its process had seen the attachments
	// when it began to look at the volume that it is at work on.
	looks, sawNodes map[string]int
	// sent is the version of the API server at that time.
	sent int
	// late: its sender has timed out, at gaveUp.
	late   atomic.Bool
	gaveUp time.Time
	// bound reports whether it carries the UID and the version of what was decided on.
	do    func(r *request) (any, error)
	reply chan reply
}

type reply struct {
	answer any
	err    error
	date   time.Time // of an answer of the API server
}

// network holds the requests that wait for the scheduler.
type network struct {
	mu      sync.Mutex
	version func() int
	pending []*request
	late    []*request
}

// send puts a request in flight and waits for what the scheduler makes of it.
func (a *actor) send(ctx context.Context, what string, read bool, do func(r *request) (any, error)) (any, error) {
	interrupt()
	r := &request{by: a, what: what, do: do, reply: make(chan reply, 1), heard: map[string]int{}}
	a.net.mu.Lock()
	switch {
	case a.dead:
		a.net.mu.Unlock()
		return nil, errLost
	case a.deposed && !read:
		a.net.mu.Unlock()
		return nil, kube.ErrNotLeading
	}
	maps.Copy(r.heard, a.heard)
	r.looks, r.sawNodes, r.sent = maps.Clone(a.looks), maps.Clone(a.sawNodes), a.net.version()
	a.net.pending = append(a.net.pending, r)
	a.net.mu.Unlock()
	sent := time.Now()
	select {
	case out := <-r.reply:
		if a.dated != nil && !out.date.IsZero() {
			a.dated(sent, out.date)
		}
		return out.answer, out.err
	case <-ctx.Done():
		a.net.mu.Lock()
		defer a.net.mu.Unlock()
		r.giveUp()
		return nil, context.Cause(ctx)
	}
}

// waiting are the requests in flight, in an order that does not depend on how Go schedules.
func (n *network) waiting() []*request {
	interrupt()
	n.mu.Lock()
	defer n.mu.Unlock()
	slices.SortStableFunc(n.pending, func(a, b *request) int {
		return cmp.Or(cmp.Compare(a.by.name, b.by.name), cmp.Compare(a.what, b.what))
	})
	return slices.Clone(n.pending)
}

func (n *network) take(r *request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pending = slices.DeleteFunc(n.pending, func(other *request) bool { return other == r })
}

// serve ends one request, in a way that the seed chooses. Requests that are alike end
// alike: nothing tells them apart.
func (s *sim) serve(r *request) {
	fate := s.rng.IntN(100)
	if strings.HasPrefix(r.what, "LIST") && s.chance(90) {
		fate = 100 // leaders are not there to list
	}
	for _, other := range s.net.waiting() {
		if other.by == r.by && other.what == r.what {
			s.net.take(other)
			s.end(other, fate)
			synctest.Wait() // those who asked run one after another
		}
	}
}

func (s *sim) end(r *request, fate int) {
	switch {
	case s.calm || fate >= s.losses:
		s.carryOut(r)
	case fate%3 == 0:
		s.say("%s: %s: done, answer lost", r.by.name, r.what)
		_, _ = r.do(r)
		r.reply <- reply{err: errLost}
	case fate%3 == 1:
		s.say("%s: %s: slow, timed out", r.by.name, r.what)
		r.giveUp()
		s.net.late = append(s.net.late, r)
		r.reply <- reply{err: errLost}
	default:
		s.say("%s: %s: lost", r.by.name, r.what)
		r.reply <- reply{err: errLost}
	}
}

// giveUp handles the requests whose senders have timed out: some never arrive, some do later.
func (s *sim) giveUp() {
	for _, r := range s.net.waiting() {
		if !r.late.Load() {
			continue
		}
		s.net.take(r)
		if s.calm || s.chance(70) {
			s.say("%s: %s: no answer in time, lost", r.by.name, r.what)
			continue
		}
		s.say("%s: %s: no answer in time, slow", r.by.name, r.what)
		s.net.late = append(s.net.late, r)
	}
}

func (s *sim) carryOut(r *request) {
	answer, err := r.do(r)
	s.say("%s: %s: %s", r.by.name, r.what, outcome(err))
	if node, ok := answer.(*corev1.Node); ok {
		r.by.heard[node.Name] = s.api.version
	}
	r.reply <- reply{answer: answer, err: err, date: date()}
}

func outcome(err error) string {
	if err != nil {
		return err.Error()
	}
	return "ok"
}

// requestTimeout is how long after its sender timed out a request may still be carried out: the API server itself abandons it after
// that (kube-apiserver --request-timeout).
const requestTimeout = time.Minute

func (r *request) giveUp() {
	r.gaveUp = time.Now()
	r.late.Store(true)
}

// sleep lets time pass. Abandoned requests arrive before their time is up, or never.
func (s *sim) sleep(d time.Duration) {
	for i := 0; i < len(s.net.late); {
		switch r := s.net.late[i]; {
		case time.Since(r.gaveUp)+d < requestTimeout:
			i++
		case s.chance(50):
			s.arrive(i)
		default:
			s.say("from %s: %s: never arrives", r.by.name, r.what)
			s.net.late = slices.Delete(s.net.late, i, i+1)
		}
	}
	s.settleDown()
	s.takeEffect(time.Now().Add(d))
	s.passing(d)
	time.Sleep(d)
	synctest.Wait() // what becomes due at the same moment does so first, in every run of the seed
	s.passed(d)
}

// arrive carries out one request whose sender has timed out.
func (s *sim) arrive(i int) {
	r := s.net.late[i]
	s.net.late = slices.Delete(s.net.late, i, i+1)
	_, err := r.do(r)
	s.say("late, from %s: %s: %s", r.by.name, r.what, outcome(err))
}

// crash ends a process: some of its requests are still in flight, and the rest of it has no network.
func (s *sim) crash(a *actor) {
	s.net.mu.Lock()
	a.dead = true
	s.net.mu.Unlock()
	for _, r := range s.net.waiting() {
		if r.by != a {
			continue
		}
		s.net.take(r)
		if s.rng.IntN(100) < 70 {
			s.say("in flight from %s: %s", a.name, r.what)
			r.giveUp()
			s.net.late = append(s.net.late, r)
		}
		r.reply <- reply{err: errLost}
	}
}
