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

// slowAfter is how long a worker waits for a node before it moves on.
const slowAfter = time.Second

// slowNodes holds the nodes with a step in flight for longer than slowAfter, whose worker has moved on. Until the step
// ends, a shared volume is processed without these nodes. An exclusive volume waits, because the step affects its other
// nodes.
type slowNodes struct {
	mu    sync.Mutex
	nodes map[key]map[attachment.NodeName]bool
	// answers are the resource versions of Nodes in late responses.
	answers map[key]map[attachment.NodeName]string
	queue   queue
}

// Start sets the queue that volumes are added to.
func (s *slowNodes) Start(_ context.Context, q queue) error {
	s.queue = q
	return nil
}

// without removes the steps that must not be taken now.
func (s *slowNodes) without(k key, shared bool, steps []attachment.Step) []attachment.Step {
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

func (s *slowNodes) add(k key, node attachment.NodeName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[k] == nil {
		s.nodes[k] = map[attachment.NodeName]bool{}
	}
	s.nodes[k][node] = true
}

// resolve removes a node and enqueues the volume. The version is the resource version of the Node in the response, if
// any.
func (s *slowNodes) resolve(k key, node attachment.NodeName, version string, err error) {
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

// take removes and returns the late responses.
func (s *slowNodes) take(k key) map[attachment.NodeName]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	answers := s.answers[k]
	delete(s.answers, k)
	return answers
}

// round is the progress of the steps of one decision.
type round struct {
	mu     sync.Mutex
	left   int // nodes without a started step
	begun  map[attachment.NodeName]bool
	again  bool
	failed map[attachment.NodeName]error
	over   bool // starts no more steps; those in flight belong to slowNodes
}

// begin reports whether a step at the node may start.
func (r *round) begin(node attachment.NodeName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over && !r.begun[node] {
		r.begun[node] = true
		r.left--
	}
	return !r.over
}

// end records the result of the steps at a node, and reports whether it was in time.
func (r *round) end(node attachment.NodeName, again bool, err error) bool {
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

// act carries out the steps of a decision: those for one node in order, those for different nodes concurrently. It
// reports whether to decide again at once, because the API server returned a state that the decision asked for. A
// failed step stops the other steps at its node.
func (w *work) act(ctx context.Context, steps []attachment.Step) (again bool) {
	byNode := map[attachment.NodeName][]attachment.Step{}
	var nodes []attachment.NodeName
	for _, step := range w.slowNodes.without(w.key, w.now.want.Shared == attachment.Yes, steps) {
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
	then := *w // w decides again while slow steps continue
	r := &round{left: len(nodes), begun: map[attachment.NodeName]bool{}, failed: map[attachment.NodeName]error{}}
	all := make(chan struct{})
	go func() {
		defer close(all)
		var group errgroup.Group
		group.SetLimit(w.stepsAtOnce)
		for _, node := range nodes {
			group.Go(func() error {
				if again, err := then.actAt(ctx, r, byNode[node]); !r.end(node, again, err) {
					then.finishLate(node, err)
				}
				return nil
			})
		}
		_ = group.Wait() // each error is in the round
	}()
	patience := time.NewTimer(slowAfter)
	defer patience.Stop()
	select {
	case <-all:
	case <-patience.C:
	}
	return w.close(r)
}

// close ends the round. Nodes with a step in flight become slowNodes; those without a started step are decided on
// again.
func (w *work) close(r *round) (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	for node := range r.begun {
		w.slowNodes.add(w.key, node)
		w.loggerAt(node).Info("Waiting for a response of the API server", "waited", slowAfter)
	}
	maps.Copy(w.failed, r.failed)
	return r.again || r.left > 0
}

// finishLate ends the wait for a slow node.
func (w *work) finishLate(node attachment.NodeName, err error) {
	version := ""
	if err != nil {
		w.loggerAt(node).Error(w.errorOf(err), "Failed to carry out a decision, deciding again")
	} else if answered, missing := w.reads.get(node); answered && !missing {
		if n, ok := w.state.nodes.Get(string(node)); ok {
			version = n.ResourceVersion
		}
	}
	w.slowNodes.resolve(w.key, node, version, err)
}

// applyLateAnswers adds late responses to the reads of this Reconcile, if the Node has not changed since.
func (w *work) applyLateAnswers() {
	for node, version := range w.slowNodes.take(w.key) {
		if n, ok := w.state.nodes.Get(string(node)); ok && n.ResourceVersion == version {
			w.reads.record(node, outcome{answered: true})
		}
	}
}

// actAt carries out the steps for one node.
func (w *work) actAt(ctx context.Context, r *round, steps []attachment.Step) (again bool, err error) {
	for _, step := range steps {
		if !r.begin(step.OnNode()) {
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
