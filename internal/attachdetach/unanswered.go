package attachdetach

import (
	"context"
	"maps"
	"slices"
	"time"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// requestLife is how long a request that was given up may still be carried out: the API
// server ends each after its --request-timeout, one minute by default, counted from its
// arrival. A request that is held up before it arrives, by a proxy that outlives its
// client, is not bounded by anything.
const requestLife = time.Minute

// attempt is a create that went without an answer.
type attempt struct {
	node  attachment.NodeName
	until time.Time // when it can no longer be carried out
}

// unsure notes that the create of an attachment failed, unless it certainly changed
// nothing: it may exist, or come into being later.
func (w *work) unsure(name string, node attachment.NodeName, err error) {
	if !kube.MayBeCommitted(err) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.attempted[w.key] == nil {
		w.attempted[w.key] = map[string]attempt{}
	}
	w.attempted[w.key][name] = attempt{node: node, until: w.clock.Now().Add(requestLife)}
}

// lookForAttempts reads the attachments that may have been created, before anything is
// decided: else an exclusive volume might be attached to a second node (S1). It forgets
// those that can no longer come.
func (w *work) lookForAttempts(ctx context.Context) error {
	w.mu.Lock()
	attempts := maps.Clone(w.attempted[w.key])
	w.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(attempts)) {
		late := !w.clock.Now().Before(attempts[name].until)
		if err := w.readAttachment(ctx, name); err != nil {
			return err
		}
		if late {
			w.mu.Lock()
			if delete(w.attempted[w.key], name); len(w.attempted[w.key]) == 0 {
				delete(w.attempted, w.key)
			}
			w.mu.Unlock()
		}
	}
	return nil
}

// pending are the creates of the volume's attachments that may still be carried out.
func (c *Controller) pending(k key) []attachment.Pending {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []attachment.Pending
	for _, name := range slices.Sorted(maps.Keys(c.attempted[k])) {
		a := c.attempted[k][name]
		found = append(found, attachment.Pending{Node: a.node, Until: a.until})
	}
	return found
}
