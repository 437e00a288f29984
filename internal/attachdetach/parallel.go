package attachdetach

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"belay.dev/belay/internal/attachment"
)

// tooSlow is how long a volume keeps its worker for a node whose step has no answer.
const tooSlow = time.Second

// stragglers are the nodes at which a step has had no answer for so long that its volume was
// put down, until there is one or the connection is lost. Meanwhile a shared volume is decided
// on without them. An exclusive one waits: what was asked for there the others must know.
type stragglers struct {
	mu    sync.Mutex
	nodes map[key]map[attachment.NodeName]bool
	// answers are the versions of Nodes that came as late answers, for the next look.
	answers map[key]map[attachment.NodeName]string
	queue   queue
}

// Start is given the queue in which a volume is looked at again.
func (s *stragglers) Start(_ context.Context, q queue) error {
	s.queue = q
	return nil
}

// without leaves out the steps that must not be taken now.
func (s *stragglers) without(k key, shared bool, steps []attachment.Step) []attachment.Step {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[k] == nil { // nearly always
		return steps
	}
	return slices.DeleteFunc(slices.Clone(steps), func(step attachment.Step) bool {
		_, waits := step.(attachment.Wait)
		return !waits && !shared || s.nodes[k][step.OnNode()]
	})
}

func (s *stragglers) add(k key, node attachment.NodeName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[k] == nil {
		s.nodes[k] = map[attachment.NodeName]bool{}
	}
	s.nodes[k][node] = true
}

// arrive has the volume decided on with the node again. The version is that of the Node in
// the answer, empty if it has none.
func (s *stragglers) arrive(k key, node attachment.NodeName, version string, err error) {
	s.mu.Lock()
	if delete(s.nodes[k], node); len(s.nodes[k]) == 0 {
		delete(s.nodes, k)
	}
	if version != "" {
		if s.answers[k] == nil {
			s.answers[k] = map[attachment.NodeName]string{}
		}
		s.answers[k][node] = version
	}
	s.mu.Unlock()
	if err != nil {
		s.queue.AddRateLimited(k)
		return
	}
	s.queue.Add(k)
}

// take hands out the late answers.
func (s *stragglers) take(k key) map[attachment.NodeName]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	answers := s.answers[k]
	delete(s.answers, k)
	return answers
}

// round is what the steps of one decision came to, at each node.
type round struct {
	mu     sync.Mutex
	left   int // nodes at which nothing was begun yet
	begun  map[attachment.NodeName]bool
	again  bool
	failed map[attachment.NodeName]error
	over   bool // no step of it is begun any more, and what ends belongs to a straggler
}

// begins reports whether a step at the node may still be taken.
func (r *round) begins(node attachment.NodeName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over && !r.begun[node] {
		r.begun[node] = true
		r.left--
	}
	return !r.over
}

// ends notes what came of the steps at a node, and reports whether that was in time.
func (r *round) ends(node attachment.NodeName, again bool, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	begun := r.begun[node]
	delete(r.begun, node)
	if r.over {
		return !begun
	}
	if r.again = r.again || again; err != nil {
		r.failed[node] = err
	}
	return true
}

// act takes the steps of a decision: those for one node in their order, those for
// different nodes side by side, so that a slow Node does not delay the others. It
// reports whether to decide again at once, because the API server has answered with
// something that the decision asked for. A step that fails ends the work at its node.
func (w *work) act(ctx context.Context, steps []attachment.Step) (again bool) {
	byNode := map[attachment.NodeName][]attachment.Step{}
	var nodes []attachment.NodeName
	for _, step := range w.stragglers.without(w.key, w.shared(), steps) {
		node := step.OnNode()
		if _, waits := step.(attachment.Wait); waits || w.failed[node] != nil {
			continue
		}
		if byNode[node] == nil {
			nodes = append(nodes, node)
		}
		byNode[node] = append(byNode[node], step)
	}
	if len(nodes) == 0 {
		return false
	}
	then := *w // w looks again while stragglers go on
	r := &round{left: len(nodes), begun: map[attachment.NodeName]bool{}, failed: map[attachment.NodeName]error{}}
	all := make(chan struct{})
	go func() {
		defer close(all)
		var group errgroup.Group
		group.SetLimit(w.stepsAtOnce)
		for _, node := range nodes {
			group.Go(func() error {
				if again, err := then.actAt(ctx, r, byNode[node]); !r.ends(node, again, err) {
					then.late(node, err)
				}
				return nil
			})
		}
		_ = group.Wait() // each error is in the round
	}()
	patience := time.NewTimer(tooSlow)
	defer patience.Stop()
	select {
	case <-all:
	case <-patience.C:
	}
	return w.close(r)
}

// shared: what is asked for at one node does not matter to the others.
func (w *work) shared() bool { return w.now.want.Shared == attachment.Yes }

// close ends the round. Nodes that have not answered are stragglers from now on; those whose
// turn had not come are decided on anew.
func (w *work) close(r *round) (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	for node := range r.begun {
		w.stragglers.add(w.key, node)
		w.loggerAt(node).Info("Waiting for the API server's answer", "after", tooSlow)
	}
	maps.Copy(w.failed, r.failed)
	return r.again || r.left > 0
}

// late ends the wait for a straggler.
func (w *work) late(node attachment.NodeName, err error) {
	version := ""
	if err != nil {
		w.loggerAt(node).Error(w.errorOf(err), "Failed to carry out a decision")
	} else if answered, missing := w.at.said(node); answered && !missing {
		if n, ok := w.state.nodes.Get(string(node)); ok {
			version = n.ResourceVersion
		}
	}
	w.stragglers.arrive(w.key, node, version, err)
}

// heedLate takes what came late for an answer of this turn, where the Node has not changed
// since.
func (w *work) heedLate() {
	for node, version := range w.stragglers.take(w.key) {
		if n, ok := w.state.nodes.Get(string(node)); ok && n.ResourceVersion == version {
			w.at.heed(node, outcome{answered: true})
		}
	}
}

// actAt takes the steps for one node.
func (w *work) actAt(ctx context.Context, r *round, steps []attachment.Step) (again bool, err error) {
	for _, step := range steps {
		if !r.begins(step.OnNode()) {
			return again, nil
		}
		more, err := w.step(ctx, step)
		if err != nil {
			return again, err
		}
		again = again || more
	}
	return again, nil
}
