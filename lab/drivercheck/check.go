// Package drivercheck checks what belay needs of a CSI driver for S1: that it carries out the calls for one volume and node in order, also
// those that their callers have abandoned (docs/drivers.md).
package drivercheck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"belay.dev/belay/internal/csi"
)

// controller is what the check needs of a driver.
type controller interface {
	Capabilities() csi.Capabilities
	Publish(ctx context.Context, r csi.PublishRequest) (map[string]string, error)
	Unpublish(ctx context.Context, r csi.UnpublishRequest) error
	ListVolumes(ctx context.Context, maxEntries int32, token string) (csi.VolumePage, error)
}

// Options are the volume and how the check uses it.
type Options struct {
	// Volume and Node are the handle of a volume that nothing uses, and the CSI node ID of a node that it can be published to.
	Volume, Node string
	// Mode is the access mode of the volume.
	Mode corev1.PersistentVolumeAccessMode
	// Deadlines are after how long a call is abandoned.
	Deadlines []time.Duration
	// Settle is how long the list of the driver is looked at after each pair of calls.
	Settle time.Duration
	// Timeout bounds the retries until the driver has done a call that is not abandoned on purpose. Each try has an eighth of it.
	Timeout time.Duration
	// Progress is called with a line about each step.
	Progress func(format string, args ...any)
}

// pollInterval is the pause between two tries of a call, and between two readings of the driver's list.
const pollInterval = 200 * time.Millisecond

// Verdict is what a round, or all of them, have shown.
type Verdict string

// The verdicts.
const (
	Kept         Verdict = "kept"
	Broken       Verdict = "broken"
	NothingShown Verdict = "nothing shown"
)

// Round is one call that was abandoned, and the one after it.
type Round struct {
	// Call is "publish" or "unpublish".
	Call     string          `json:"call"`
	Deadline metav1.Duration `json:"deadline"`
	// Abandoned: the call was sent, and the driver had not answered by the deadline.
	Abandoned bool `json:"abandoned"`
	// Retries is how often the call after it was refused or had no answer.
	Retries int     `json:"retries"`
	Verdict Verdict `json:"verdict"`
	// Reason says how the order was broken, or why nothing was shown.
	Reason string `json:"reason,omitempty"`
}

// ErrNothingShown means that no call was abandoned in a way that shows anything.
var ErrNothingShown = errors.New("nothing was shown about the driver: choose --deadline values that a call is sent in, and not answered, or slow its storage down")

// Run makes the rounds. It leaves the volume unpublished.
func Run(ctx context.Context, driver controller, o Options) (rounds []Round, err error) {
	if c := driver.Capabilities(); !c.CanListPublished() {
		return nil, errors.New("the driver does not list where its volumes are published (capabilities PUBLISH_UNPUBLISH_VOLUME, LIST_VOLUMES, LIST_VOLUMES_PUBLISHED_NODES): " +
			"the order cannot be seen from outside; look at its storage instead, as docs/drivers.md says")
	}
	c := check{driver, o}
	switch nodes, err := c.publishedTo(ctx); {
	case err != nil:
		return nil, err
	case len(nodes) > 0:
		return nil, fmt.Errorf("volume %s is published to node %s: the check needs one that nothing uses", o.Volume, strings.Join(nodes, ", "))
	}
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.Timeout)
		defer cancel()
		if _, undone := c.until(cleanup, c.unpublish); undone != nil {
			err = errors.Join(err, fmt.Errorf("volume %s may still be published to node %s: %w", o.Volume, o.Node, undone))
		}
	}()
	for _, deadline := range o.Deadlines {
		pair, err := c.pair(ctx, deadline)
		if rounds = append(rounds, pair...); err != nil {
			return rounds, err
		}
	}
	if verdict(rounds) == NothingShown {
		return rounds, ErrNothingShown
	}
	return rounds, nil
}

// verdict sums rounds up.
func verdict(rounds []Round) Verdict {
	for _, v := range []Verdict{Broken, Kept} {
		if slices.ContainsFunc(rounds, func(r Round) bool { return r.Verdict == v }) {
			return v
		}
	}
	return NothingShown
}

// check is one run.
type check struct {
	driver controller
	Options
}

func (c *check) publish(ctx context.Context) error {
	_, err := c.driver.Publish(ctx, csi.PublishRequest{VolumeHandle: c.Volume, NodeID: c.Node, AccessModes: []corev1.PersistentVolumeAccessMode{c.Mode}})
	return err
}

func (c *check) unpublish(ctx context.Context) error {
	return c.driver.Unpublish(ctx, csi.UnpublishRequest{VolumeHandle: c.Volume, NodeID: c.Node})
}

// pair abandons a publish and an unpublish.
func (c *check) pair(ctx context.Context, deadline time.Duration) (rounds []Round, err error) {
	published, err := c.round(ctx, "publish", deadline)
	if err != nil {
		return nil, err
	}
	if _, err := c.until(ctx, c.publish); err != nil {
		if published.Verdict == Kept { // one that the driver refuses has no effect, in order or not
			published.Verdict, published.Reason = NothingShown, "the driver has not carried out a publish that was not abandoned"
		}
		return []Round{published}, fmt.Errorf("publish volume %s to node %s: %w", c.Volume, c.Node, err)
	}
	unpublished, err := c.round(ctx, "unpublish", deadline)
	if err != nil {
		return []Round{published}, err
	}
	return []Round{published, unpublished}, nil
}

// round abandons a call, has the opposite one done, and looks whether it stays done.
func (c *check) round(ctx context.Context, name string, deadline time.Duration) (Round, error) {
	r := Round{Call: name, Deadline: metav1.Duration{Duration: deadline}, Verdict: NothingShown}
	call, opposite := c.publish, c.unpublish
	if name == "unpublish" {
		call, opposite = c.unpublish, c.publish
	}
	sent := new(atomic.Bool)
	hasty, cancel := context.WithTimeout(context.WithValue(ctx, sentKey{}, sent), deadline)
	err := call(hasty)
	cancel()
	code, _ := csi.Code(err)
	switch {
	case ctx.Err() != nil:
		return r, context.Cause(ctx)
	case csi.OutcomeOf(err) == csi.Failed:
		return r, fmt.Errorf("%s volume %s at node %s: %w", name, c.Volume, c.Node, err)
	case err == nil:
		r.Reason = "the driver answered in time"
	case code != codes.DeadlineExceeded && code != codes.Canceled:
		r.Reason = fmt.Sprintf("the driver answered with an error: %v", err)
	case !sent.Load():
		r.Reason = "the call was not sent by its deadline"
	default:
		r.Abandoned, r.Verdict = true, Kept
	}
	c.Progress("%s of %s at %s with a deadline of %v: abandoned %v", name, c.Volume, c.Node, deadline, r.Abandoned)
	undone := err != nil && sent.Load()
	if r.Retries, err = c.until(ctx, opposite); err != nil || !undone {
		return r, err
	}
	return r, c.watch(ctx, &r)
}

// watch looks whether the call of a round takes effect after the next one.
func (c *check) watch(ctx context.Context, r *Round) error {
	after := time.Now()
	err := wait.PollUntilContextTimeout(ctx, min(pollInterval, c.Settle/10), c.Settle, true, func(context.Context) (bool, error) {
		nodes, err := c.publishedTo(ctx)
		if err == nil && slices.Contains(nodes, c.Node) == (r.Call == "publish") {
			r.Verdict = Broken
			r.Reason = fmt.Sprintf("%v after the driver had answered the next call, the %s that had been abandoned took effect", time.Since(after).Round(time.Millisecond), r.Call)
		}
		return r.Verdict == Broken, err
	})
	if ctx.Err() == nil && wait.Interrupted(err) {
		err = nil // it was watched for as long as it had to be
	}
	return err
}

// until repeats a call until the driver has done it, and returns how often it had not.
func (c *check) until(ctx context.Context, call func(context.Context) error) (retries int, err error) {
	var last error
	err = wait.PollUntilContextTimeout(ctx, pollInterval, c.Timeout, true, func(ctx context.Context) (bool, error) {
		if last = c.try(ctx, call); csi.OutcomeOf(last) == csi.Failed {
			return false, last
		}
		if last != nil {
			retries++
		}
		return last == nil, nil
	})
	if wait.Interrupted(err) {
		err = fmt.Errorf("the driver has not done it within %v: %w", c.Timeout, last)
	}
	return retries, err
}

func (c *check) try(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout/8)
	defer cancel()
	return call(ctx)
}

// publishedTo reads the nodes of the volume from the driver's list.
func (c *check) publishedTo(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout/8)
	defer cancel()
	for token := ""; ; {
		page, err := c.driver.ListVolumes(ctx, 0, token)
		if err != nil {
			return nil, fmt.Errorf("list volumes: %w", err)
		}
		for _, v := range page.Published {
			switch {
			case v.VolumeHandle != c.Volume:
			case !v.Known:
				return nil, fmt.Errorf("the driver's list does not show where volume %s is published", c.Volume)
			default:
				return v.NodeIDs, nil
			}
		}
		if token = page.Next; token == "" {
			return nil, fmt.Errorf("the driver does not list volume %s: create it first", c.Volume)
		}
	}
}
