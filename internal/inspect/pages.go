package inspect

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/diagnosis"
)

const (
	// pageSize is the number of objects in a page: 20,000 VolumeAttachments are ten pages of about 2 MB. Pods are several times as large.
	pageSize, pageOfPods = 2000, 1000
	// pageOfNamespace is that of the pods of one namespace. They are read for those that use one claim, for which the API server has no
	// index: few are kept, and an explanation is to stay under 40 requests also where one namespace has 50,000 pods.
	pageOfNamespace = 4000
	// pagesAtOnce limits the pages that are read and decoded at a time. More are no faster, and need more memory.
	pagesAtOnce = 3
	// pagedAttempts is how often a list is read in pages. The API server keeps the state that the pages show for five minutes or less; then
	// the next page fails, and what was read before is not of one state. The last attempt is one request for all.
	pagedAttempts = 2
)

// list reads objects, and reports whether all were read: otherwise, what it stored is some of them.
func list[T any](ctx context.Context, r *run, ref diagnosis.Ref, options metav1.ListOptions, read pager[T], store func(*diagnosis.Snapshot, *T)) bool {
	part := &diagnosis.Snapshot{}
	n := 0
	add := func(object *T) {
		cut(object)
		store(part, object)
		n++
	}
	var err error
	for attempt := range pagedAttempts + 1 {
		*part, n = diagnosis.Snapshot{}, 0
		switch {
		case attempt == pagedAttempts:
			options.Limit = 0
		case ref.Resource == diagnosis.Pods && ref.Namespace != "":
			options.Limit = pageOfNamespace
		case ref.Resource == diagnosis.Pods:
			options.Limit = pageOfPods
		default:
			options.Limit = pageSize
		}
		err = eachPage(ctx, r, options, func(ctx context.Context, options metav1.ListOptions) (next string, err error) {
			next, err = read(ctx, options, add)
			r.progress(string(ref.Resource), n)
			return next, err
		})
		if !apierrors.IsResourceExpired(err) {
			break
		}
	}
	r.merge(part)
	if err != nil {
		r.failed(ref, "list", err)
		return false
	}
	return true
}

// eachPage reads the pages of a list, one after another.
func eachPage(ctx context.Context, r *run, options metav1.ListOptions, read func(context.Context, metav1.ListOptions) (next string, err error)) error {
	one := func() (next string, err error) {
		select {
		case r.pages <- struct{}{}:
		case <-ctx.Done():
			return "", ctx.Err()
		}
		defer func() { <-r.pages }()
		return read(ctx, options)
	}
	for {
		next, err := one()
		if err != nil || next == "" {
			return err
		}
		options.Continue = next
	}
}

// merge adds a list to the snapshot.
func (r *run) merge(part *diagnosis.Snapshot) {
	r.add(func(s *diagnosis.Snapshot) {
		for _, pod := range part.Pods {
			if !r.podsKept[pod.UID] {
				r.podsKept[pod.UID] = true
				s.Pods = append(s.Pods, pod)
			}
		}
		s.Claims, s.Volumes = extend(s.Claims, part.Claims), extend(s.Volumes, part.Volumes)
		s.Attachments, s.Nodes, s.CSINodes = extend(s.Attachments, part.Attachments), extend(s.Nodes, part.Nodes), extend(s.CSINodes, part.CSINodes)
		s.Leases, s.Drivers, s.Events = extend(s.Leases, part.Leases), extend(s.Drivers, part.Drivers), extend(s.Events, part.Events)
		s.Classes, s.Capacities, s.Workloads = extend(s.Classes, part.Classes), extend(s.Capacities, part.Capacities), extend(s.Workloads, part.Workloads)
		s.Fences, s.FenceSources = extend(s.Fences, part.Fences), extend(s.FenceSources, part.FenceSources)
	})
}

// extend appends, without a copy where there is nothing to append to.
func extend[T any](to, from []T) []T {
	if len(to) == 0 {
		return from
	}
	return append(to, from...)
}
