package nodeagent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
)

// scriptedEnds plays the agent and the runtime of podTerminations.
type scriptedEnds struct {
	// stuckUnmount and stuckRuntime are the pods whose unmount, or whose query of the runtime, never ends.
	stuckUnmount, stuckRuntime types.UID

	mu   sync.Mutex
	said []string // guarded by mu
}

func (s *scriptedEnds) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = append(s.said, fmt.Sprintf(format, args...))
}

func (s *scriptedEnds) has(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.said, what)
}

func (s *scriptedEnds) PodEnding(types.UID, error) bool { return true }
func (s *scriptedEnds) RemovePod(uid types.UID)         { s.note("removed %s", uid) }

func (s *scriptedEnds) WaitUnmounted(ctx context.Context, uid types.UID) error {
	if uid == s.stuckUnmount {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (s *scriptedEnds) Ended(ctx context.Context, uid string) (func(), error) {
	if types.UID(uid) == s.stuckRuntime {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return func() { s.note("released %s", uid) }, nil
}

// TestStuckPodBlocksNoOtherTermination, nor the end of the agent: neither a pod that is never unmounted, nor one for
// which the runtime never answers. What is locked stays locked until it is unmounted.
func TestStuckPodBlocksNoOtherTermination(t *testing.T) {
	for name, script := range map[string]*scriptedEnds{"never unmounted": {stuckUnmount: "stuck"}, "never answered for": {stuckRuntime: "stuck"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ends := newPodTerminations(script, script, logr.Discard())
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { ends.run(ctx) })
				ends.begin("stuck")
				synctest.Wait()
				for i := range 20 {
					ends.begin(types.UID(fmt.Sprint(i)))
				}
				synctest.Wait()
				for i := range 20 {
					if !script.has(fmt.Sprintf("removed %d", i)) || !script.has(fmt.Sprintf("released %d", i)) {
						t.Errorf("pod %d waits for another one: %v", i, script.said)
					}
				}
				if script.has("released stuck") {
					t.Error("unlocked, and still mounted")
				}
				cancel()
				running.Wait() // or the bubble is deadlocked
				if left := len(ends.pods); script.stuckUnmount != "" && left > 0 {
					t.Errorf("%d pods are still waited for", left)
				}
			})
		})
	}
}
