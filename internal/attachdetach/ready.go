package attachdetach

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

var errNotCaughtUp = errors.New("leading, but the caches have not caught up with the previous leader")

// readyz tells whether the process does its part: a standby has read everything and can
// take over at once, a leader has caught up with the one before and acts.
func (c *Controller) readyz(elected <-chan struct{}) func(*http.Request) error {
	return func(*http.Request) error {
		if err := c.rivals.check(); err != nil {
			return err
		}
		var reading []string
		for kind, informer := range c.state.informers {
			if !informer.HasSynced() {
				reading = append(reading, kind.Kind)
			}
		}
		if len(reading) > 0 {
			slices.Sort(reading)
			return fmt.Errorf("the caches are not synced yet: %s", strings.Join(reading, ", "))
		}
		select {
		case <-elected:
		default:
			return nil
		}
		select {
		case <-c.ready:
			return nil
		default:
			return errNotCaughtUp
		}
	}
}
