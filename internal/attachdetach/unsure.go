package attachdetach

import (
	"context"
	"maps"
	"slices"

	"belay.dev/belay/internal/kube"
)

// unsure notes that the create of an attachment failed, unless the API server itself said
// that nothing was made: it may exist, and the caches may not have heard of it.
func (c *Controller) unsure(k key, name string, err error) {
	if !kube.IsAnswer(err) {
		c.attempt(k, name)
	}
}

// attempt notes an attachment that may exist, to be read before the next decision.
func (c *Controller) attempt(k key, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.attempted[k] == nil {
		c.attempted[k] = map[string]bool{}
	}
	c.attempted[k][name] = true
}

// lookForAttempts reads the attachments that may exist, before anything is decided: else
// an exclusive volume might be attached to a second node (S1).
func (w *work) lookForAttempts(ctx context.Context) error {
	w.mu.Lock()
	names := slices.Sorted(maps.Keys(w.attempted[w.key]))
	delete(w.attempted, w.key)
	w.mu.Unlock()
	for i, name := range names {
		if err := w.readAttachment(ctx, name); err != nil {
			for _, left := range names[i:] {
				w.attempt(w.key, left)
			}
			return err
		}
	}
	return nil
}
