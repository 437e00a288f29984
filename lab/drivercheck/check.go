// Package drivercheck checks what belay needs of a CSI driver for S1: that it carries out the calls for one volume and node in order, also
// those that their callers have abandoned (docs/drivers.md).
package drivercheck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
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

// Round is one call that was abandoned, and the one after it.
type Round struct {
	// Call is "publish" or "unpublish".
	Call     string        `json:"call"`
	Deadline time.Duration `json:"deadline"`
	// Abandoned: the driver had not answered by the deadline. Otherwise the round shows nothing.
	Abandoned bool `json:"abandoned"`
	// Retries is how often the call after it was refused or had no answer.
	Retries int `json:"retries"`
	// Broken says how the order was broken, and is empty if it was kept.
	Broken string `json:"broken,omitempty"`
}

// ErrNothingShown means that the driver has answered each call before its deadline.
var ErrNothingShown = errors.New("no call could be abandoned before the driver had answered it: choose shorter --deadline values, or slow its storage down")

// Run makes the rounds. It leaves the volume unpublished.
func Run(ctx context.Context, driver controller, o Options) (rounds []Round, err error) {
	if c := driver.Capabilities(); !c.CanListPublished() {
		return nil, errors.New("the driver does not list where its volumes are published (capabilities PUBLISH_UNPUBLISH_VOLUME, LIST_VOLUMES, LIST_VOLUMES_PUBLISHED_NODES): " +
			"the order cannot be seen from outside; look at its storage instead, as docs/drivers.md says")
	}
	c := check{driver, o}
	published, err := c.isPublished(ctx)
	switch {
	case err != nil:
		return nil, err
	case published:
		return nil, fmt.Errorf("volume %s is published to node %s: the check needs one that nothing uses", o.Volume, o.Node)
	}
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.Timeout)
		defer cancel()
		if _, undone := c.until(cleanup, c.unpublish); undone != nil {
			err = errors.Join(err, fmt.Errorf("volume %s may still be published to node %s: %w", o.Volume, o.Node, undone))
		}
	}()
	shown := false
	for _, deadline := range o.Deadlines {
		for _, call := range []string{"publish", "unpublish"} {
			r, err := c.round(ctx, call, deadline)
			if err != nil {
				return rounds, err
			}
			rounds, shown = append(rounds, r), shown || r.Abandoned
		}
	}
	if !shown {
		return rounds, ErrNothingShown
	}
	return rounds, nil
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

// round abandons a call, has the opposite one done, and looks whether it stays done.
func (c *check) round(ctx context.Context, name string, deadline time.Duration) (Round, error) {
	r := Round{Call: name, Deadline: deadline}
	call, opposite, want := c.publish, c.unpublish, false
	if name == "unpublish" {
		call, opposite, want = c.unpublish, c.publish, true
		if _, err := c.until(ctx, c.publish); err != nil {
			return r, err
		}
	}
	hasty, cancel := context.WithTimeout(ctx, deadline)
	err := call(hasty)
	cancel()
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	if csi.OutcomeOf(err) == csi.Failed {
		return r, fmt.Errorf("%s volume %s at node %s: %w", name, c.Volume, c.Node, err)
	}
	r.Abandoned = err != nil
	c.Progress("%s of %s at %s with a deadline of %v: abandoned %v", name, c.Volume, c.Node, deadline, r.Abandoned)
	if r.Retries, err = c.until(ctx, opposite); err != nil {
		return r, err
	}
	if !r.Abandoned {
		return r, nil
	}
	after := time.Now()
	err = wait.PollUntilContextTimeout(ctx, min(pollInterval, c.Settle/10), c.Settle, true, func(context.Context) (bool, error) {
		is, err := c.isPublished(ctx)
		if err == nil && is != want {
			r.Broken = fmt.Sprintf("%v after the driver had answered the next call, the %s that had been abandoned took effect", time.Since(after).Round(time.Millisecond), name)
		}
		return r.Broken != "", err
	})
	if ctx.Err() == nil && wait.Interrupted(err) {
		err = nil // it was watched for as long as it had to be
	}
	return r, err
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

// isPublished reads the driver's list.
func (c *check) isPublished(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout/8)
	defer cancel()
	for token := ""; ; {
		page, err := c.driver.ListVolumes(ctx, 0, token)
		if err != nil {
			return false, fmt.Errorf("list volumes: %w", err)
		}
		for _, v := range page.Published {
			if v.VolumeHandle == c.Volume {
				return slices.Contains(v.NodeIDs, c.Node), nil
			}
		}
		if token = page.Next; token == "" {
			return false, fmt.Errorf("the driver does not list volume %s: create it first", c.Volume)
		}
	}
}
