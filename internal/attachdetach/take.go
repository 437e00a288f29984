package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"belay.dev/belay/internal/attachment"
)

// tooSlow is how long the other nodes of a shared volume wait for one whose step has no answer.
const tooSlow = time.Second

// stragglers are the nodes of shared volumes at which a step has had no answer for so long that
// the volume is decided on without them, until there is an answer or the connection is lost.
type stragglers struct {
	mu    sync.Mutex
	nodes map[key]map[attachment.NodeName]bool
	queue queue
}

// Start is given the queue in which a volume is looked at again.
func (s *stragglers) Start(_ context.Context, q queue) error {
	s.queue = q
	return nil
}

// without leaves out the steps at stragglers.
func (s *stragglers) without(k key, steps []attachment.Step) []attachment.Step {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[k] == nil { // nearly always
		return steps
	}
	return slices.DeleteFunc(slices.Clone(steps), func(step attachment.Step) bool { return s.nodes[k][nodeOf(step)] })
}

func (s *stragglers) add(k key, node attachment.NodeName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[k] == nil {
		s.nodes[k] = map[attachment.NodeName]bool{}
	}
	s.nodes[k][node] = true
}

// arrive has the volume decided on with the node again.
func (s *stragglers) arrive(k key, node attachment.NodeName, err error) {
	s.mu.Lock()
	delete(s.nodes[k], node)
	if len(s.nodes[k]) == 0 {
		delete(s.nodes, k)
	}
	s.mu.Unlock()
	if err != nil {
		s.queue.AddRateLimited(k)
		return
	}
	s.queue.Add(k)
}

// round is what the steps of one decision came to, at each node.
type round struct {
	mu    sync.Mutex
	left  map[attachment.NodeName]bool
	again bool
	errs  []error
	over  bool // what comes now belongs to a straggler
}

// ends notes what came of the steps at a node, unless the round is over.
func (r *round) ends(node attachment.NodeName, again bool, err error) (inTime bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.left, node)
	if r.over {
		return false
	}
	r.again, r.errs = r.again || again, append(r.errs, err)
	return true
}

// take takes the steps of a decision: those for one node in their order, those for
// different nodes side by side, so that a slow Node does not delay the others. It
// reports whether to decide again at once, because the API server has answered with
// something that the decision asked for. A step that fails ends the steps for its node.
func (w *work) take(ctx context.Context, steps []attachment.Step) (again bool, err error) {
	byNode := map[attachment.NodeName][]attachment.Step{}
	var nodes []attachment.NodeName
	for _, step := range w.stragglers.without(w.key, steps) {
		if _, waits := step.(attachment.Hold); waits {
			continue
		}
		node := nodeOf(step)
		if byNode[node] == nil {
			nodes = append(nodes, node)
		}
		byNode[node] = append(byNode[node], step)
	}
	shared := w.now.want.Shared == attachment.Yes
	switch {
	case len(nodes) == 0:
		return false, nil
	case len(nodes) == 1 && !shared: // nearly always
		return w.takeAt(ctx, byNode[nodes[0]])
	}
	then := *w // w looks again while stragglers go on
	r := &round{left: map[attachment.NodeName]bool{}}
	for _, node := range nodes {
		r.left[node] = true
	}
	all := make(chan struct{})
	go func() {
		defer close(all)
		var group errgroup.Group
		group.SetLimit(w.stepsAtOnce)
		for _, node := range nodes {
			group.Go(func() error {
				again, err := then.takeAt(ctx, byNode[node])
				if !r.ends(node, again, err) {
					then.late(node, err)
				}
				return nil
			})
		}
		_ = group.Wait() // each error is in the round
	}()
	var patience <-chan time.Time // an exclusive volume waits for all: what one has asked for the others must know
	if shared {
		patience = time.After(tooSlow)
	}
	select {
	case <-all:
	case <-patience:
	}
	return w.close(r)
}

// close ends the round. Nodes that have not answered are stragglers from now on.
func (w *work) close(r *round) (again bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	for node := range r.left {
		w.stragglers.add(w.key, node)
		w.loggerAt(node).Info("API server is slow to answer for a node, going on with the others", "after", tooSlow)
	}
	return r.again, errors.Join(r.errs...)
}

// late ends the wait for a straggler.
func (w *work) late(node attachment.NodeName, err error) {
	if err != nil {
		w.loggerAt(node).Error(w.errorOf(err), "Failed to carry out a decision")
	}
	w.stragglers.arrive(w.key, node, err)
}

// takeAt takes the steps for one node.
func (w *work) takeAt(ctx context.Context, steps []attachment.Step) (again bool, err error) {
	for _, step := range steps {
		more, err := w.step(ctx, step)
		if err != nil {
			return again, err
		}
		again = again || more
	}
	return again, nil
}

func nodeOf(step attachment.Step) attachment.NodeName {
	switch s := step.(type) {
	case attachment.Attach:
		return s.Node
	case attachment.Report:
		return s.Node
	case attachment.WithdrawReport:
		return s.Node
	case attachment.Check:
		return s.Node
	case attachment.CheckKubelet:
		return s.Node
	case attachment.Detach:
		return s.Node
	case attachment.ForceDetach:
		return s.Node
	case attachment.Note:
		return s.Node
	case attachment.NoteNode:
		return s.Node
	case attachment.Hold:
		return s.Node
	}
	panic(fmt.Sprintf("attachdetach: unknown step %T", step)) // programmer error
}
