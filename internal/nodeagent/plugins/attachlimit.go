package plugins

import (
	"context"
	"fmt"
	"time"

	"belay.dev/belay/internal/csi"
)

// limitRefresh is when to read a driver's attach limit again.
type limitRefresh struct {
	period time.Duration
	next   time.Time
	// exhausted is set when an attach was refused: the limit is due now.
	exhausted bool
}

// refreshLimit reads a driver's attach limit if it is due, and schedules the next time.
func (p *Plugins) refreshLimit(ctx context.Context, name string) {
	d, wait := p.limitDue(name, p.Rules(name).LimitPeriod, time.Now())
	if wait > 0 {
		p.limitsDue.AddAfter(name, wait)
	}
	if d == nil {
		return
	}
	callCtx, cancel := context.WithTimeout(ctx, p.config.RPCTimeout)
	defer cancel()
	info, err := d.client.Info(callCtx)
	if err == nil {
		err = p.identity.refresh(ctx, name, info)
	}
	if err != nil && ctx.Err() == nil {
		p.log.Error(err, "Failed to refresh the allocatable count, retrying after the next period", "driver", name)
	}
}

// planLimits queues all drivers for a check of their limits.
func (p *Plugins) planLimits() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.drivers {
		p.limitsDue.Add(name)
	}
}

// limitDue returns the driver if its limit is due, and the time until the next refresh.
func (p *Plugins) limitDue(name string, period time.Duration, now time.Time) (due *driver, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.drivers[name]
	if d == nil || period == 0 {
		delete(p.limits, name)
		return nil, 0
	}
	refresh := p.limits[name]
	if refresh.period != period { // like kubelet, the first refresh comes after a whole period
		refresh.period, refresh.next = period, now.Add(period)
	}
	if refresh.exhausted || !now.Before(refresh.next) {
		refresh.exhausted, refresh.next, due = false, now.Add(period), d
	}
	p.limits[name] = refresh
	return due, refresh.next.Sub(now)
}

// LimitExhausted has the limit of a driver refreshed at once, because an attach was refused.
func (p *Plugins) LimitExhausted(driver string) {
	p.mu.Lock()
	refresh := p.limits[driver]
	refresh.exhausted = true
	p.limits[driver] = refresh
	p.mu.Unlock()
	p.limitsDue.Add(driver)
}

// refresh publishes a new limit of a known driver. Everything else in NodeGetInfo changes only with a registration.
func (i *identity) refresh(ctx context.Context, driver string, info csi.NodeInfo) error {
	i.mu.Lock()
	known, ok := i.drivers[driver]
	if ok && known.NodeID == info.NodeID {
		known.MaxVolumes = info.MaxVolumes
		i.drivers[driver] = known
	}
	i.mu.Unlock()
	switch {
	case !ok:
		return nil
	case known.NodeID != info.NodeID:
		return fmt.Errorf("driver %s registered this node as %q, but now returns node ID %q", driver, known.NodeID, info.NodeID)
	}
	rejected, err := i.sync(ctx)
	if err == nil {
		err = rejected[driver]
	}
	return err
}
