package simulation

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
)

// clockBound is how much too early the unmount timeout may run out. What a process knows of
// the API server's time it has from a header with whole seconds.
const clockBound = 2 * time.Second

// requests is the oracle's own clock: since when, by what the API server stores, no pod has
// wanted a volume at a node where a detach could wait. It does not read what the controller
// writes down.
type requests struct {
	mu      sync.Mutex // workers of the controllers call sawWanted
	demands map[demand]*span
	// made is, by volume and node, when the attachment was made, or the report written of a
	// volume that has none.
	made  map[place]time.Time
	known map[types.UID]int // the versions at which attachments were made
	// ended are the versions at which their deletion began, but for those that the plane began.
	ended map[types.UID]int
}

// place is a volume at a node.
type place struct{ handle, node string }

// demand is a pod that wants a volume at its node.
type demand struct {
	pod types.UID
	place
}

// span is how long a demand lasted.
type span struct {
	lasts bool
	until time.Time
	// seen: a controller looked at the volume without a failure while it had the pod in its
	// caches. A pod that comes and goes while no controller leads, or while its writes fail,
	// leaves no trace that the next one could know of.
	seen bool
}

func newRequests() *requests {
	return &requests{demands: map[demand]*span{}, made: map[place]time.Time{}, known: map[types.UID]int{}, ended: map[types.UID]int{}}
}

// since is when a detach of the volume from the node may first have been asked for.
func (r *requests) since(d *disk, node string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := place{d.handle, node}
	latest := r.made[at]
	for wanted, span := range r.demands {
		switch {
		case wanted.place != at || !span.seen:
		case span.lasts:
			return time.Now()
		case span.until.After(latest):
			latest = span.until
		}
	}
	return latest
}

// observe is called after each write to the API server.
func (s *sim) observe(e event) {
	switch k := kindOf(e.object); {
	case k == pods || k == claims || k == volumes:
		s.requests.update(list[*corev1.Pod](s.api), s.stored(claims), s.stored(volumes))
	case k == nodes && !e.deleted:
		s.shows(e.object.(*corev1.Node))
	case k == attachments && s.requests.known[e.object.GetUID()] == 0:
		va := e.object.(*storagev1.VolumeAttachment)
		s.requests.known[va.UID] = e.version
		if s.byHand[va.Name] == nil { // those the controller leaves alone
			s.requests.attached(s.diskOf(va), va.Spec.NodeName)
		}
	}
}

// shows ends what a machine had without anything that showed it: it is reported, and in use.
func (s *sim) shows(node *corev1.Node) {
	for handle, v := range s.machines[node.Name].local {
		v.lost = v.lost && (!reports(node, handle) || !listsInUse(node, handle))
	}
}

func (r *requests) update(all []*corev1.Pod, claim, volume func(name string) client.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := map[demand]bool{}
	for _, pod := range all {
		for _, d := range demandsOf(pod, claim, volume) {
			now[d] = true
			if r.demands[d] == nil {
				r.demands[d] = &span{}
			}
		}
	}
	for d, span := range r.demands {
		if span.lasts && !now[d] {
			span.until = time.Now()
		}
		span.lasts = now[d]
	}
}

// demandsOf follows a pod through its claims to the volumes.
func demandsOf(pod *corev1.Pod, claimNamed, volumeNamed func(name string) client.Object) (found []demand) {
	for _, name := range claimsOf(pod) {
		if handle := boundTo(name, claimNamed, volumeNamed); handle != "" {
			found = append(found, demand{pod: pod.UID, place: place{handle: handle, node: pod.Spec.NodeName}})
		}
	}
	return found
}

// boundTo is the volume of a claim, empty if there is none.
func boundTo(name string, claimNamed, volumeNamed func(name string) client.Object) (handle string) {
	claim, ok := claimNamed(namespace + "/" + name).(*corev1.PersistentVolumeClaim)
	if !ok || claim.Status.Phase != corev1.ClaimBound {
		return ""
	}
	volume, ok := volumeNamed(claim.Spec.VolumeName).(*corev1.PersistentVolume)
	if !ok || volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID {
		return ""
	}
	if key, ok := kube.KeyOfVolume(volume); ok {
		return handleOf(key)
	}
	return ""
}

// demands are the pods that want the volume, as the controller's caches show it.
func (c *controller) demands(key volumeKey) map[demand]bool {
	cached := func(k kind) func(string) client.Object {
		return func(name string) client.Object {
			if obj, ok, err := c.caches.informers[k].store.GetByKey(name); err == nil && ok {
				return obj.(client.Object)
			}
			return nil
		}
	}
	found := map[demand]bool{}
	for _, obj := range c.caches.informers[pods].store.List() {
		for _, d := range demandsOf(obj.(*corev1.Pod), cached(claims), cached(volumes)) {
			if d.handle == handleOf(key) {
				found[d] = true
			}
		}
	}
	return found
}

// sawWanted notes the demands that were in the caches of a controller from when it took a
// volume up to when it had nothing left to do for it.
func (r *requests) sawWanted(before, after map[demand]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for d := range before {
		if span := r.demands[d]; span != nil && after[d] {
			span.seen = true
		}
	}
}

// attached notes that from now on there is something that a detach may be asked of.
func (r *requests) attached(d *disk, node string) { r.made[place{d.handle, node}] = time.Now() }
