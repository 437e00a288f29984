package attachdetach

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// heldWrites is an API server that answers each write of a Node when it is let to.
type heldWrites struct {
	client.SubResourceWriter

	answer  chan struct{}
	then    func()     // called after an answer, nil for nothing
	reports [][]string // the volumes of each write
}

type heldClient struct {
	client.Client

	writes *heldWrites
}

func (c heldClient) Status() client.SubResourceWriter { return c.writes }

func (h *heldWrites) Patch(ctx context.Context, obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	body, err := patch.Data(obj)
	if err != nil {
		return err
	}
	node := obj.(*corev1.Node)
	if err := json.Unmarshal(body, node); err != nil {
		return err
	}
	var volumes []string
	for _, v := range node.Status.VolumesAttached {
		volumes = append(volumes, string(v.Name))
	}
	h.reports = append(h.reports, volumes)
	select {
	case <-h.answer:
		if h.then != nil {
			h.then()
		}
		node.ResourceVersion += "0" // newer
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// newHeldReporter is a reporter with one Node, n, whose writes wait, and what makes a change of it.
func newHeldReporter(t *testing.T) (r *reporter, api *heldWrites, report func(ctx context.Context, volume string) error) {
	t.Helper()
	m := newModel(t)
	m.put(aNode("n", isReady))
	node, _ := m.nodes.Get("n")
	api = &heldWrites{answer: make(chan struct{})}
	r = newReporter(heldClient{writes: api}, nil, m.clusterState)
	return r, api, func(ctx context.Context, volume string) error {
		return r.change(ctx, "n", change{volume: volume, kind: reporting, uid: node.UID}).err
	}
}

// Changes of a Node that arrive while it is written are the next write: without one whose caller has left, and without those that are
// made because of the first.
func TestChangesOfANodeAreWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, api, report := newHeldReporter(t)
		must := func(ctx context.Context, volumes ...string) {
			for _, volume := range volumes {
				if err := report(ctx, volume); err != nil {
					t.Errorf("report %s: %v", volume, err)
				}
			}
		}
		go must(t.Context(), "first", "follows")
		synctest.Wait()
		leaving, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() { left <- report(leaving, "left") }()
		synctest.Wait()
		for _, volume := range []string{"second", "third"} {
			go must(t.Context(), volume)
			synctest.Wait()
		}
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("error of a caller that left: %v", err)
		}
		for range 3 {
			api.answer <- struct{}{}
			synctest.Wait()
		}
		var wrote, before []string
		for _, volumes := range api.reports {
			added := slices.DeleteFunc(slices.Clone(volumes), func(v string) bool { return slices.Contains(before, v) })
			wrote, before = append(wrote, strings.Join(added, "+")), volumes
		}
		if want := []string{"first", "second+third", "follows"}; !slices.Equal(wrote, want) {
			t.Errorf("wrote %v, want %v", wrote, want)
		}
		if n := len(r.queues); n != 0 {
			t.Errorf("%d queues are left", n)
		}
	})
}

// A caller that leaves when it is its turn to write blocks no other one, and no other one fails for it.
func TestCallerThatLeavesBlocksNoOther(t *testing.T) {
	for range 50 { // whether it leaves before it is its turn or after that is up to chance
		synctest.Test(t, func(t *testing.T) {
			r, api, report := newHeldReporter(t)
			outcomes := make(chan error, 2)
			start := func(ctx context.Context, volume string, outcomes chan<- error) {
				go func() { outcomes <- report(ctx, volume) }()
				synctest.Wait()
			}
			start(t.Context(), "first", outcomes)
			leaving, leave := context.WithCancel(t.Context())
			left := make(chan error, 1)
			start(leaving, "leaves", left)
			start(t.Context(), "second", outcomes)
			api.then = leave
			api.answer <- struct{}{}
			synctest.Wait()
			api.then = nil
			select {
			case api.answer <- struct{}{}:
				synctest.Wait()
			default:
			}
			if err := <-left; !errors.Is(err, context.Canceled) {
				t.Errorf("error of the caller that left: %v", err)
			}
			if len(outcomes) < 2 || len(r.queues) > 0 {
				t.Fatalf("%d of 2 other callers have an outcome, %d queues are left", len(outcomes), len(r.queues))
			}
			for range 2 {
				if err := <-outcomes; err != nil {
					t.Errorf("error of another caller: %v", err)
				}
			}
		})
	}
}
