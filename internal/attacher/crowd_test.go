package attacher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/status"

	"belay.dev/belay/internal/publication"
)

// crowd is many volumes that want slots, in fake time. The driver is a function.
type crowd struct {
	t     *testing.T
	slots *slots
	wg    sync.WaitGroup
	stop  context.CancelFunc
	ctx   context.Context

	mu    sync.Mutex
	wakes map[publication.Key]chan struct{}
	most  int // calls in flight
	now   int
}

const crowdTimeout = 15 * time.Second

func newCrowd(t *testing.T, limit int) *crowd {
	t.Helper()
	c := &crowd{t: t, wakes: map[publication.Key]chan struct{}{}}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.slots = newSlots(limit, crowdTimeout, time.Second, func(key publication.Key) {
		c.mu.Lock()
		defer c.mu.Unlock()
		select {
		case c.wakes[key] <- struct{}{}:
		default:
		}
	})
	return c
}

// end ends the bubble's goroutines.
func (c *crowd) end() {
	c.stop()
	c.wg.Wait()
}

// takes is a driver that takes so long for each call.
func takes(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return status.FromContextError(context.DeadlineExceeded).Err()
		}
	}
}

// never is a driver that does not answer.
func never(ctx context.Context) error { return takes(time.Hour)(ctx) }

// begin lets a volume call until it is answered; done is closed then.
func (c *crowd) begin(w want, driver func(context.Context) error) (done chan struct{}) {
	done = make(chan struct{})
	wake := make(chan struct{}, 1)
	c.mu.Lock()
	c.wakes[w.key] = wake
	c.mu.Unlock()
	c.wg.Go(func() {
		defer close(done)
		for failures := 0; c.ctx.Err() == nil; {
			taken, no := c.slots.take(time.Now(), w)
			if taken == nil {
				var at <-chan time.Time
				if !no.until.IsZero() {
					at = time.After(time.Until(no.until))
				}
				select {
				case <-wake:
				case <-at:
				case <-c.ctx.Done():
				}
				continue
			}
			c.count(1)
			ctx, cancel := context.WithTimeout(c.ctx, crowdTimeout)
			err := driver(ctx)
			cancel()
			c.count(-1)
			w.suspect = c.slots.end(time.Now(), taken, err)
			if err == nil {
				return
			}
			select {
			case <-time.After(min(5*time.Minute, time.Second<<failures)):
				failures++
			case <-c.ctx.Done():
			}
		}
	})
	return done
}

func (c *crowd) count(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += n
	c.most = max(c.most, c.now)
}

// within fails the test if done is not closed by then.
func (c *crowd) within(d time.Duration, what string, done ...chan struct{}) {
	c.t.Helper()
	late := time.After(d)
	for _, one := range done {
		select {
		case <-one:
		case <-late:
			c.t.Errorf("%s: not after %v (flow: %+v)", what, d, c.slots.flow(time.Now()))
			return
		}
	}
}

// As shipped, 200 volumes of a driver that takes two seconds are attached in two.
func TestTwoHundredVolumesFromAColdStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, defaultWorkerThreads)
		var done []chan struct{}
		for i := range 200 {
			done = append(done, c.begin(attachOf(fmt.Sprint("v", i)), takes(2*time.Second)))
		}
		c.within(2*time.Second+time.Millisecond, "200 volumes attached", done...)
		c.end()
	})
}

// However long volumes hang and however many are detached, a healthy volume is not
// held up, and the number of calls in flight is bounded.
func TestHealthyVolumeBesideTrouble(t *testing.T) {
	tests := map[string]struct {
		hang, detach int
		before       time.Duration // how long the ones hang before the others detach
	}{
		"none":                              {0, 0, 0},
		"hanging and detaching at once":     {150, 300, 0},
		"hanging for a second":              {150, 300, time.Second},
		"hanging for half a minute":         {150, 300, 30 * time.Second},
		"hanging for an hour":               {150, 300, time.Hour},
		"detaching only":                    {0, 3000, 0},
		"ten times as many, for an hour":    {1500, 3000, time.Hour},
		"more than the limit, for a minute": {700, 0, time.Minute},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd(t, defaultWorkerThreads)
				for i := range tt.hang {
					c.begin(attachOf(fmt.Sprint("hung", i)), never)
				}
				time.Sleep(tt.before)
				for i := range tt.detach {
					c.begin(detachOf(fmt.Sprint("gone", i)), takes(2*time.Second))
				}
				for n := range 20 { // at any moment
					time.Sleep(130 * time.Millisecond)
					done := c.begin(attachOf(fmt.Sprint("healthy", n)), takes(time.Second))
					c.within(time.Second+time.Millisecond, "healthy volume attached", done)
				}
				if c.most > 2*defaultWorkerThreads {
					t.Errorf("%d calls in flight at once", c.most)
				}
				c.end()
			})
		})
	}
}

// Detaches go on beside volumes that hang: at the driver's pace.
func TestDetachesBesideHungVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, defaultWorkerThreads)
		for i := range 150 {
			c.begin(attachOf(fmt.Sprint("hung", i)), never)
		}
		time.Sleep(time.Minute)
		var done []chan struct{}
		for i := range 380 {
			done = append(done, c.begin(detachOf(fmt.Sprint("gone", i)), takes(2*time.Second)))
		}
		c.within(2*time.Second+time.Millisecond, "380 volumes detached", done...)
		c.end()
	})
}

// A volume that hung and is well again goes on by itself and counts as any other.
func TestHungVolumeRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 1)
		var well atomic.Bool
		slow := c.begin(attachOf("slow"), func(ctx context.Context) error {
			if !well.Load() {
				return never(ctx)
			}
			return errors.Join(ctx.Err())
		})
		time.Sleep(time.Minute)
		well.Store(true)
		c.within(time.Minute, "volume that hung", slow)
		c.end()
		if c.slots.counts != [classes]int{} {
			t.Errorf("slots are still taken: %v", c.slots.counts)
		}
	})
}
