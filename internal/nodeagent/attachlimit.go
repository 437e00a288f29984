package nodeagent

import (
	"context"
	"fmt"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/csi"
)

// limitUpkeep is when a driver is asked again how many volumes the node can have.
type limitUpkeep struct {
	period time.Duration
	next   time.Time
	// exhausted: an attach was refused; do not wait for next.
	exhausted bool
}

// limitPeriod is how often the driver's CSIDriver wants the allocatable count refreshed;
// 0 for never, also not when an attach was refused.
func (p *plugins) limitPeriod(driver string) time.Duration {
	object, ok, err := p.csiDrivers.GetStore().GetByKey(driver)
	if err != nil || !ok {
		return 0
	}
	seconds := object.(*storagev1.CSIDriver).Spec.NodeAllocatableUpdatePeriodSeconds
	if seconds == nil {
		return 0
	}
	return time.Duration(*seconds) * p.config.second
}

// refreshLimit asks a driver for its limit when that is due, and plans when to ask again.
func (p *plugins) refreshLimit(ctx context.Context, name string) {
	d, wait := p.limitDue(name, p.limitPeriod(name), time.Now())
	if wait > 0 {
		p.limitsDue.AddAfter(name, wait)
	}
	if d == nil {
		return
	}
	asking, cancel := context.WithTimeout(ctx, p.config.RPCTimeout)
	defer cancel()
	info, err := d.client.Info(asking)
	if err == nil {
		err = p.identity.refresh(ctx, name, info)
	}
	if err != nil && ctx.Err() == nil {
		p.log.Error(err, "Failed to refresh the allocatable count", "driver", name)
	}
}

// planLimits has the limits of all drivers looked after.
func (p *plugins) planLimits() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.drivers {
		p.limitsDue.Add(name)
	}
}

// limitDue returns the driver if it is to be asked now, and how long until the next time.
func (p *plugins) limitDue(name string, period time.Duration, now time.Time) (due *driver, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.drivers[name]
	if d == nil || period == 0 {
		delete(p.limits, name)
		return nil, 0
	}
	upkeep := p.limits[name]
	if upkeep.period != period { // the first comes after a whole period, as kubelet's
		upkeep.period, upkeep.next = period, now.Add(period)
	}
	if upkeep.exhausted || !now.Before(upkeep.next) {
		upkeep.exhausted, upkeep.next, due = false, now.Add(period), d
	}
	p.limits[name] = upkeep
	return due, upkeep.next.Sub(now)
}

// exhausted: the storage says that the node is full. The limit is refreshed at once if that is wanted at all.
func (p *plugins) exhausted(driver string) {
	p.mu.Lock()
	upkeep := p.limits[driver]
	upkeep.exhausted = true
	p.limits[driver] = upkeep
	p.mu.Unlock()
	p.limitsDue.Add(driver)
}

// refresh takes in a new limit of a driver that is known. All else that a driver says of
// itself changes with a registration.
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
	misfits, err := i.sync(ctx)
	if err == nil {
		err = misfits[driver]
	}
	return err
}
