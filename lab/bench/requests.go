package bench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"belay.dev/belay/lab/audit"
	"belay.dev/belay/lab/cluster"
)

// quiet is how long after a step requests still count for it: events come a little later.
const quiet = time.Second

// usersOf are the users of a plane's controller at the API server.
func usersOf(plane string) []string {
	if plane == planeUpstream {
		return []string{cluster.UserUpstreamController, cluster.UserUpstreamManager}
	}
	return []string{cluster.UserController}
}

// span is one step of a volume, for the requests that were sent meanwhile.
type span struct {
	from, to time.Time
	attach   bool
}

// requests counts, in the API server's audit log, what one attach and one detach cost it.
func requests(ctx context.Context, size Size, r *rig) ([]*Figure, error) {
	for i := range 2 {
		if err := r.node(ctx, nodeName(i)); err != nil {
			return nil, err
		}
	}
	// Volumes of their own: the attacher puts its finalizer on a volume once.
	volumes := len(planes()) * (size.Cycles + 1)
	if err := each(ctx, volumes, func(ctx context.Context, i int) error { return r.volume(ctx, volumeName(i)) }); err != nil {
		return nil, err
	}
	tallies := map[string]tally{}
	for i, plane := range planes() {
		t, err := r.requestsOf(ctx, size, plane, i*(size.Cycles+1))
		if err != nil {
			return nil, fmt.Errorf("requests of %s: %w", plane, err)
		}
		tallies[plane] = t
		r.say("requests: %s done", plane)
	}
	return requestFigures(tallies), nil
}

func (r *rig) requestsOf(ctx context.Context, size Size, plane string, first int) (tally, error) {
	if err := r.start(plane); err != nil {
		return nil, err
	}
	if err := r.cycle(ctx, first, &samples{}); err != nil {
		return nil, err
	}
	// What the start asks for is not part of any attach.
	if err := pause(ctx, settle); err != nil {
		return nil, err
	}
	began := time.Now()
	var spans []span
	for i := range size.Cycles {
		more, err := r.countedCycle(ctx, first+i+1)
		if err != nil {
			return nil, err
		}
		spans = append(spans, more...)
	}
	if err := r.stop(ctx); err != nil {
		return nil, err
	}
	all, err := r.lab.Requests(ctx, began, time.Time{})
	if err != nil {
		return nil, err
	}
	return count(all, spans, usersOf(plane)), nil
}

// countedCycle attaches and detaches one volume and returns the time of each.
func (r *rig) countedCycle(ctx context.Context, i int) ([]span, error) {
	volume, node := volumeName(i), nodeName(i%2)
	pod, err := r.newPod(ctx, volume)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if _, err := r.attach(ctx, pod, volume, node); err != nil {
		return nil, err
	}
	if err := pause(ctx, quiet); err != nil {
		return nil, err
	}
	if err := r.mount(ctx, volume, node); err != nil {
		return nil, err
	}
	if err := r.unmount(ctx, volume, node); err != nil {
		return nil, err
	}
	middle := time.Now()
	if _, err := r.detach(ctx, pod, volume, node); err != nil {
		return nil, err
	}
	if err := pause(ctx, quiet); err != nil {
		return nil, err
	}
	return []span{{start, middle, true}, {middle, time.Now(), false}}, nil
}

// tally counts requests per attach or detach, by kind of requests (figure) and by right.
type tally map[string]map[string]float64

// count leaves out what is independent of volumes: leases, and watches that are opened again.
func count(all []audit.Request, spans []span, controller []string) tally {
	t := tally{}
	attaches := len(slices.DeleteFunc(slices.Clone(spans), func(s span) bool { return !s.attach }))
	for _, request := range all {
		if request.Resource == "" || request.Resource == "leases" || request.Verb == "watch" {
			continue
		}
		for _, s := range spans {
			if request.At.Before(s.from) || !request.At.Before(s.to) {
				continue
			}
			figure := s.figure(request, controller)
			if figure == "" {
				continue
			}
			if t[figure] == nil {
				t[figure] = map[string]float64{}
			}
			t[figure][request.Right()] += 1 / float64(attaches)
		}
	}
	return t
}

// figure that a request of this step counts for; empty for those of others.
func (s span) figure(request audit.Request, controller []string) string {
	attach, detach := "", ""
	switch {
	case slices.Contains(controller, request.User) && request.Resource == "events":
		attach, detach = figureEventsAttach, figureEventsDetach
	case slices.Contains(controller, request.User):
		attach, detach = figureRequestsAttach, figureRequestsDetach
	case request.User == cluster.UserAttacher:
		attach, detach = figureAttacherAttach, figureAttacherDetach
	}
	if s.attach {
		return attach
	}
	return detach
}

func requestFigures(tallies map[string]tally) []*Figure {
	var figures []*Figure
	for _, kind := range []struct {
		name  string
		limit float64
		text  string
	}{
		{figureRequestsAttach, 2, "<= 2: attachment, report"},
		{figureEventsAttach, 1, "<= 1"},
		{figureRequestsDetach, 2, "<= 2: withdrawal, delete"},
		{figureEventsDetach, 2, "<= 2: start, success"},
		{figureAttacherAttach, 3, "<= 3: two finalizers, status"},
		{figureAttacherDetach, 1, "<= 1: finalizer"},
	} {
		values, parts := map[string][]float64{}, map[string]map[string]float64{}
		for plane, t := range tallies {
			sum := 0.0
			for _, n := range t[kind.name] {
				sum += n
			}
			// Of so many thirds and sevenths a sum may miss a whole number by a hair.
			values[plane], parts[plane] = []float64{math.Round(sum*1e6) / 1e6}, t[kind.name]
		}
		f := numbers(kind.name, "requests", values).limit(kind.text, kind.limit)
		f.Parts = parts
		figures = append(figures, f)
	}
	return figures
}
