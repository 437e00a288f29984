package nodeagent

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/nodevolume"
)

// driverCalls makes the calls to the drivers of volumes.
type driverCalls struct {
	*volumeSet

	config  Config
	reports *reports
}

// callDriver calls a volume's driver. Until it returns, waits for the volume name the call, and after a while an event does.
func (c *driverCalls) callDriver(ctx context.Context, v *volume, pending pendingCall, call func(context.Context) error) error {
	pending.timeout = c.config.RPCTimeout
	if c.config.callTimeout != nil {
		pending.timeout = c.config.callTimeout(pending.method)
	}
	ctx, cancel := context.WithTimeout(ctx, pending.timeout)
	defer cancel()
	pending.since = time.Now()
	c.mu.Lock()
	v.pending = &pending
	c.mu.Unlock()
	slow := time.AfterFunc(c.config.waitEventDelay, func() { c.reports.emitPendingCall(v, &pending) })
	ctx, span := c.config.Traces.StartCall(ctx, "csi.v1.Node", pending.method)
	err := call(ctx)
	span.End(err)
	slow.Stop()
	c.mu.Lock()
	v.pending = nil
	c.mu.Unlock()
	return csi.Unanswered(ctx, err, csi.NoAnswerError{Driver: v.driver, Call: pending.method, Timeout: pending.timeout})
}

// reply translates a driver's error for nodevolume.
func reply(err error) nodevolume.Reply {
	switch csi.NodeOutcomeOf(err) {
	case csi.Done:
		return nodevolume.OK
	case csi.Failed:
		return nodevolume.Refused
	default:
		return nodevolume.NoAnswer
	}
}

// isGone reports whether the driver does not know the inline volume to unpublish. Such a volume is used by one pod only, so there is
// nothing left to undo; tidy finds a remaining mount. For a persistent volume NOT_FOUND proves nothing: the driver may have lost its
// state, but not the mount.
func isGone(inline bool, err error) bool {
	code, ok := csi.Code(err)
	return inline && ok && code == codes.NotFound
}
