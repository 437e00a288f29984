package nodeagent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodevolume"
)

// AttachLimitReason is the reason with which kubelet rejects a pod whose volumes do not
// fit on the node any more (KEP-4876).
const AttachLimitReason = "VolumeAttachmentLimitExceeded"

// AttachLimitError says that the storage refuses to attach another volume to this node.
type AttachLimitError struct {
	Volume  string // the PersistentVolume's name
	Driver  string
	Problem string // the attachError's message
}

// Error is the problem, begun as kubelet begins it.
func (e *AttachLimitError) Error() string {
	return explain.AttachLimit(e.Volume, e.Driver, e.Problem)
}

// How long a volume waits to be attached before its attachError is looked at, and until
// it is looked at again. A node cannot watch VolumeAttachments.
const (
	attachErrorAfter = 5 * time.Second
	attachErrorAgain = 30 * time.Second
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
func (a *Agent) limitPeriod(driver string) time.Duration {
	object, ok, err := a.csiDrivers.GetStore().GetByKey(driver)
	if err != nil || !ok {
		return 0
	}
	seconds := object.(*storagev1.CSIDriver).Spec.NodeAllocatableUpdatePeriodSeconds
	if seconds == nil {
		return 0
	}
	return time.Duration(*seconds) * a.config.second
}

// refreshLimit asks a driver for its limit when that is due, and plans when to ask again.
func (a *Agent) refreshLimit(ctx context.Context, name string) {
	d, wait := a.limitDue(name, a.limitPeriod(name), time.Now())
	if wait > 0 {
		a.chores.AddAfter(chore{refreshLimit, name}, wait)
	}
	if d == nil {
		return
	}
	asking, cancel := context.WithTimeout(ctx, a.config.RPCTimeout)
	defer cancel()
	info, err := d.client.Info(asking)
	if err == nil {
		err = a.identity.refresh(ctx, name, info)
	}
	if err != nil && ctx.Err() == nil {
		a.log.Info("Allocatable count not refreshed", "driver", name, "problem", err.Error())
	}
}

// limitDue returns the driver if it is to be asked now, and how long until the next time.
func (a *Agent) limitDue(name string, period time.Duration, now time.Time) (due *driver, wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.drivers[name]
	if d == nil || period == 0 {
		delete(a.limits, name)
		return nil, 0
	}
	upkeep := a.limits[name]
	if upkeep.period != period { // the first comes after a whole period, as kubelet's
		upkeep.period, upkeep.next = period, now.Add(period)
	}
	if upkeep.exhausted || !now.Before(upkeep.next) {
		upkeep.exhausted, upkeep.next, due = false, now.Add(period), d
	}
	a.limits[name] = upkeep
	return due, upkeep.next.Sub(now)
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
		return fmt.Errorf("driver %s registered this node as %q and calls it %q now", driver, known.NodeID, info.NodeID)
	}
	misfits, err := i.sync(ctx)
	if err == nil {
		err = misfits[driver]
	}
	return err
}

// planAttachError has the attachError of a volume read when it waits long to be attached
// and its driver wants its limit kept. The caller holds mu.
func (a *Agent) planAttachError(v *volume) {
	if !v.waitsForAttach() {
		v.attachLimit = nil
		return
	}
	if !v.attachErrorPlanned && a.limitPeriod(v.driver) > 0 {
		v.attachErrorPlanned = true
		a.chores.AddAfter(chore{readAttachError, v.name}, a.config.attachErrorAfter)
	}
}

func (v *volume) waitsForAttach() bool {
	for _, hold := range v.holds {
		if hold.reason == nodevolume.NotAttached {
			return true
		}
	}
	return false
}

// readAttachError looks why a volume is not attached. If the storage says that the node is
// full its limit is refreshed at once, and the pods that wait are told.
func (a *Agent) readAttachError(ctx context.Context, name string) {
	a.mu.Lock()
	v := a.volumes[name]
	if v == nil {
		a.mu.Unlock()
		return
	}
	v.attachErrorPlanned = v.waitsForAttach() && a.limitPeriod(v.driver) > 0
	goOn := v.attachErrorPlanned
	a.mu.Unlock()
	if !goOn {
		return
	}
	defer a.chores.AddAfter(chore{readAttachError, name}, attachErrorAgain)
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	va, err := a.client.StorageV1().VolumeAttachments().Get(ctx, kube.AttachmentName(v.handle, v.driver, a.config.NodeName), metav1.GetOptions{})
	if err != nil {
		return // nothing new is known
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !v.waitsForAttach() {
		return
	}
	problem := va.Status.AttachError
	if problem == nil || problem.ErrorCode == nil || codes.Code(*problem.ErrorCode) != codes.ResourceExhausted {
		v.attachLimit = nil
		return
	}
	v.attachLimit = &AttachLimitError{Volume: v.specName(), Driver: v.driver, Problem: problem.Message}
	a.tellAttachLimit(v)
	if problem.Time.Equal(&v.exhaustedAt) {
		return // this one has been acted upon
	}
	v.exhaustedAt = problem.Time
	upkeep := a.limits[v.driver]
	upkeep.exhausted = true
	a.limits[v.driver] = upkeep
	a.chores.Add(chore{refreshLimit, v.driver})
}

// tellAttachLimit tells each pod that waits, once. The caller holds mu.
func (a *Agent) tellAttachLimit(v *volume) {
	text := v.attachLimit.Error()
	for key, hold := range v.holds {
		i := slices.IndexFunc(v.pods, func(p *publication) bool { return p.key == key })
		if hold.reason != nodevolume.NotAttached || i < 0 || !v.pods[i].told.news(text, time.Now()) {
			continue
		}
		a.events.Event(v.pods[i].podOf(), corev1.EventTypeWarning, AttachLimitReason, text)
	}
}
