package scenario

import (
	"context"
	"fmt"
	"time"
)

// Replay cuts the power of the writer's node, lets a person act, and waits for at most limit until the writer runs elsewhere. It returns how
// long that took since the power cut. If act waits for the node to be NotReady, that is part of it: a person sees nothing before.
func (s *Scene) Replay(ctx context.Context, limit time.Duration, act func(ctx context.Context, from string) error) (time.Duration, error) {
	from, err := s.WriterNode()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := s.Cluster.PowerOff(from); err != nil {
		return 0, fmt.Errorf("cut the power of %s: %w", from, err)
	}
	if err := act(ctx, from); err != nil {
		return 0, err
	}
	for {
		_, err := s.awaitWriter(ctx, from, nothing)
		if err == nil || time.Since(start) > limit {
			return time.Since(start), err
		}
	}
}

// AwaitNotReady waits until the cluster takes a node for dead.
func (s *Scene) AwaitNotReady(ctx context.Context, name string) error {
	return s.await(ctx, notReadyLimit, name+" to be taken for dead (Ready not True)", func() (bool, error) {
		node, err := s.state.Core().V1().Nodes().Lister().Get(name)
		return err == nil && !ready(node), nil
	})
}
