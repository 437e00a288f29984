package attachdetach

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// requestLifetime is how long an abandoned request may still be carried out: the API server aborts a request after its
// --request-timeout, one minute by default, from its arrival. Delays before the arrival, for example by a proxy that
// outlives its client, are not bounded.
const requestLifetime = time.Minute

// pendingCreate is a create without a response.
type pendingCreate struct {
	node  attachment.NodeName
	until time.Time // when it can no longer be carried out
}

// recordPendingCreate records that the create of an attachment failed, if it may have been or may still be carried out.
func (w *work) recordPendingCreate(name string, node attachment.NodeName, err error) {
	if !kube.MayBeCommitted(err) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pendingCreates[w.key] == nil {
		w.pendingCreates[w.key] = map[string]pendingCreate{}
	}
	w.pendingCreates[w.key][name] = pendingCreate{node: node, until: w.clock.Now().Add(requestLifetime)}
}

// readPendingCreates reads the attachments that may have been created before a decision, because an exclusive volume
// could otherwise be attached to a second node (S1). It removes those that can no longer appear.
func (w *work) readPendingCreates(ctx context.Context) error {
	w.mu.Lock()
	attempts := maps.Clone(w.pendingCreates[w.key])
	w.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(attempts)) {
		late := !w.clock.Now().Before(attempts[name].until)
		if err := w.readAttachment(ctx, name); err != nil {
			return err
		}
		if late {
			w.mu.Lock()
			if delete(w.pendingCreates[w.key], name); len(w.pendingCreates[w.key]) == 0 {
				delete(w.pendingCreates, w.key)
			}
			w.mu.Unlock()
		}
	}
	return nil
}

// pending returns the creates of the volume's attachments that may still be carried out.
func (c *Controller) pending(k key) []attachment.Pending {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []attachment.Pending
	for _, name := range slices.Sorted(maps.Keys(c.pendingCreates[k])) {
		a := c.pendingCreates[k][name]
		found = append(found, attachment.Pending{Node: a.node, Until: a.until})
	}
	return found
}

// unanswered holds the resource versions that writes without a response were bound to. Such a write may be carried out
// as long as its version is the newest.
type unanswered[K comparable] struct {
	mu       sync.Mutex
	versions map[K]string
}

func (u *unanswered[K]) add(object K, version string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.versions == nil {
		u.versions = map[K]string{}
	}
	u.versions[object] = version
}

// has reports whether such a write is bound to this, the newest version of the object.
func (u *unanswered[K]) has(object K, version string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	bound, ok := u.versions[object]
	if ok && bound != version {
		delete(u.versions, object)
	}
	return ok && bound == version
}

// forget drops a deleted object.
func (u *unanswered[K]) forget(object K) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.versions, object)
}
