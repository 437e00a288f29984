package scenario

import (
	"context"
	"fmt"
	"time"

	"belay.dev/belay/lab/timeline"
)

// askForCalls is how often the driver is asked for its calls while a step that is a
// call is awaited: the record of calls has no watch.
const askForCalls = 2 * time.Millisecond

// OnStep returns a channel that receives the node of the first sign of a step in a
// move that begins now. It must be asked for before the move.
func (s *Scene) OnStep(ctx context.Context, step timeline.StepName, from string) (<-chan string, error) {
	sign, ok := timeline.SignOf(step)
	if !ok {
		return nil, fmt.Errorf("there is no step %q", step)
	}
	volume, err := s.Record.Volume(ClaimKey)
	if err != nil {
		return nil, err
	}
	node := make(chan string, 1)
	if sign.Method != "" {
		go s.askForCall(ctx, sign, volume, from, time.Now(), node)
		return node, nil
	}
	change, stop := s.Record.Next(func(c timeline.Change) bool { return sign.InChange(c, volume, from) })
	go func() {
		defer stop()
		select {
		case c := <-change:
			node <- c.Node
		case <-ctx.Done():
		}
	}()
	return node, nil
}

// askForCall looks for a call that began at or after since, in flight or done.
func (s *Scene) askForCall(ctx context.Context, sign timeline.Sign, v timeline.Volume, from string, since time.Time, node chan<- string) {
	ask := time.NewTicker(askForCalls)
	defer ask.Stop()
	for {
		calls, err := s.Calls(ctx, since)
		if err != nil && ctx.Err() != nil {
			return
		}
		for _, c := range calls {
			if sign.InCall(c, v, from) {
				node <- c.Node
				return
			}
		}
		select {
		case <-ask.C:
		case <-ctx.Done():
			return
		}
	}
}
