package attachdetach

import (
	"cmp"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
)

// driverGrace is how long a CSIDriver that was deleted still counts: an upgrade deletes it and creates it again, and
// without one a driver requires attach (k/k#100445).
const driverGrace = 30 * time.Second

// withoutAttach holds the drivers whose last CSIDriver says that they require no attach, and until when that counts
// after its deletion; zero while it exists. A restart forgets the deleted ones.
type withoutAttach struct {
	mu    sync.Mutex
	until map[string]time.Time
}

// seen records what an existing CSIDriver says.
func (a *withoutAttach) seen(driver string, required bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if required {
		delete(a.until, driver)
		return
	}
	if a.until == nil {
		a.until = map[string]time.Time{}
	}
	a.until[driver] = time.Time{}
}

// has reports whether the last answer of a driver, if it counts still, is that it requires no attach.
func (a *withoutAttach) has(driver string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.until[driver]
	return ok
}

// deleted returns until when the answer of a CSIDriver counts that does not exist; zero if it does not.
func (a *withoutAttach) deleted(driver string, now time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	until, ok := a.until[driver]
	switch {
	case !ok:
		return time.Time{}
	case until.IsZero():
		until = now.Add(driverGrace)
		a.until[driver] = until
	case !now.Before(until):
		delete(a.until, driver)
		return time.Time{}
	}
	return until
}

// attachRequired reports whether the driver's volumes are attached.
func (w *clusterState) attachRequired(driver string) bool {
	required, _ := w.attachAnswer(driver)
	return required
}

// attachAnswer reports whether the driver's volumes are attached, and when to ask again if nothing changes; zero for
// never. As upstream, a driver without a CSIDriver requires attach, unless it has just been deleted.
func (w *clusterState) attachAnswer(driver string) (required bool, again time.Time) {
	if d, ok := get[*storagev1.CSIDriver](w.drivers, driver); ok {
		required = kube.AttachRequired(d)
		w.withoutAttach.seen(driver, required)
		return required, time.Time{}
	}
	again = w.withoutAttach.deleted(driver, w.clock.Now())
	return again.IsZero(), again
}

// attachNeeded returns which pods need the volume to be attached. If the driver requires no attach, those do that began
// with one: until the kubelet has mounted the volume, and no longer lists it, the driver may need what the attach did.
// Upstream detaches within a minute of the change, when the kubelet does not list the volume (k/k v1.36.3
// pkg/controller/volume/attachdetach/populator/desired_state_of_world_populator.go findAndRemoveDeletedPods).
func (w *clusterState) attachNeeded(k key) func(*corev1.Pod) bool {
	required := w.attachRequired(k.Driver)
	return func(pod *corev1.Pod) bool {
		if required || kube.VolumesMounted(pod) {
			return required
		}
		va, ok := w.attachments.Get(kube.AttachmentName(k.Handle, k.Driver, pod.Spec.NodeName))
		return ok && va.DeletionTimestamp == nil
	}
}

// driverChanged returns all volumes of a driver whose attachRequired changes, which is rare. After a deletion they are
// asked for again when it counts (attachAnswer).
func (w *clusterState) driverChanged(before, after *storagev1.CSIDriver) []key {
	name := cmp.Or(after, before).Name
	remembered := before == nil && w.withoutAttach.has(name) // of one that was deleted
	w.attachRequired(name)                                   // records the answer
	if required := kube.AttachRequired(before) && !remembered; required == kube.AttachRequired(after) {
		return nil
	}
	var keys []key
	for _, pv := range list[*corev1.PersistentVolume](w.volumes, byDriver, name) {
		keys = append(keys, keysOf(pv)...)
	}
	for _, va := range w.attachments.ByIndex(byDriver, name) {
		keys = append(keys, w.keysOfAttachment(va)...)
	}
	for _, pod := range list[*corev1.Pod](w.pods, byDriver, name) {
		for _, v := range kube.InlineVolumes(pod) {
			keys = append(keys, v.Key)
		}
	}
	return keys
}
