package labdisk

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
)

// faultSet is the faults that are set, oldest first. Its owner's lock guards it.
type faultSet struct {
	next    uint64
	active  []Fault
	cleared map[string]chan struct{} // closed when the fault of that id is cleared
}

func (s *faultSet) load(faults []Fault, next uint64) {
	s.active, s.next, s.cleared = faults, max(next, 1), map[string]chan struct{}{}
	for _, f := range faults {
		s.cleared[f.ID] = make(chan struct{})
	}
}

func (s *faultSet) list() []Fault { return slices.Clone(s.active) }

func (s *faultSet) add(f Fault) Fault {
	f.ID, f.Hits = strconv.FormatUint(s.next, 10), 0
	s.next++
	s.active = append(s.active, f)
	s.cleared[f.ID] = make(chan struct{})
	return f
}

// unknown is the first of the ids that no fault has, empty if there is none.
func (s *faultSet) unknown(ids []string) string {
	for _, id := range ids {
		if _, ok := s.cleared[id]; !ok {
			return id
		}
	}
	return ""
}

// clear takes out the faults of the ids, or all, and releases the calls that hang in them.
func (s *faultSet) clear(ids []string) {
	for id, ch := range s.cleared {
		if len(ids) == 0 || slices.Contains(ids, id) {
			close(ch)
			delete(s.cleared, id)
		}
	}
	s.active = slices.DeleteFunc(s.active, func(f Fault) bool { return len(ids) == 0 || slices.Contains(ids, f.ID) })
}

// hit finds the first fault that matches the call and counts it. One that has hit its Count matches no more, but calls
// that hang in it continue to hang until it is cleared.
func (s *faultSet) hit(c Call, volumeName string, held func(driver, node string) int) (Fault, bool) {
	for i := range s.active {
		f := &s.active[i]
		if !f.matches(c, volumeName) || f.Count > 0 && f.Hits >= f.Count {
			continue
		}
		if f.Effect == EffectLimit && (c.Method != "ControllerPublishVolume" || held(c.Driver, c.Node) < f.Limit) {
			continue
		}
		f.Hits++
		hit := *f
		if f.Count > 0 && f.Hits >= f.Count && f.Effect != EffectHang {
			close(s.cleared[f.ID])
			delete(s.cleared, f.ID)
			s.active = slices.Delete(s.active, i, i+1)
		}
		return hit, true
	}
	return Fault{}, false
}

func (f Fault) matches(c Call, volumeName string) bool {
	is := func(want string, have ...string) bool { return want == "" || slices.Contains(have, want) }
	return is(f.Method, c.Method) && is(f.Driver, c.Driver) && is(f.Node, c.Node) && is(f.Volume, c.Volume, volumeName)
}

// begin records the start of a call and says which fault it meets, if any.
func (f *fabric) begin(ctx context.Context, c Call) (Call, *Fault, error) {
	f.mu.Lock()
	name := c.Volume
	if v := f.volumes[c.Volume]; v != nil {
		name = v.Name
	}
	fault, hit := f.faults.hit(c, name, func(driver, node string) int { return f.countHeld(driver, node, c.Volume) })
	f.mu.Unlock()
	if !hit {
		return f.record.begin(ctx, c), nil, nil
	}
	c.Fault = fault.ID
	if fault.Effect == EffectLimit {
		fault.Effect, fault.Code = EffectError, codes.ResourceExhausted.String()
	}
	return f.record.begin(ctx, c), &fault, f.save()
}

// end records the end of a call.
func (f *fabric) end(c Call) { f.record.finish(c) }

// waitCleared returns nil when the fault is cleared.
func (f *fabric) waitCleared(ctx context.Context, id string) error {
	f.mu.Lock()
	ch := f.faults.cleared[id]
	f.mu.Unlock()
	if ch == nil {
		return nil
	}
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (f *fabric) setFault(fault Fault) (Fault, error) {
	if err := fault.check(); err != nil {
		return Fault{}, err
	}
	f.mu.Lock()
	fault = f.faults.add(fault)
	f.mu.Unlock()
	slog.Info("Fault set", "fault", fault.ID, "effect", fault.Effect, "method", fault.Method, "driver", fault.Driver, "volume", fault.Volume, "node", fault.Node)
	return fault, f.save()
}

func (f *fabric) clearFaults(ids []string) error {
	f.mu.Lock()
	unknown := f.faults.unknown(ids)
	if unknown == "" {
		f.faults.clear(ids)
	}
	f.mu.Unlock()
	if unknown != "" { // nothing was cleared: a typing error is not half done
		return fmt.Errorf("clear fault %q: %w", unknown, errFaultNotFound)
	}
	slog.Info("Faults cleared", "faults", ids, "all", len(ids) == 0)
	return f.save()
}

// parseCode reads the name of a gRPC code that is an error, in either of the two spellings in use: ResourceExhausted, RESOURCE_EXHAUSTED.
func parseCode(name string) (codes.Code, error) {
	plain := strings.ToLower(strings.ReplaceAll(name, "_", ""))
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		if strings.ToLower(c.String()) == plain {
			return c, nil
		}
	}
	return codes.Unknown, fmt.Errorf("--code is %q, but must be one of %s", name, strings.Join(codeNames(), ", "))
}
