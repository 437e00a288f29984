package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/lab/informer"
)

// labelOld is on what was there before a bench's planes and is not observed: with 100,000 volumes, the observer would cost more
// than they do.
const labelOld = "bench.belay.dev/old"

// fact is something that was seen in the API server: "pod p bound", "volume v reported on n".
type fact string

func podBound(pod string) fact                { return fact("pod " + pod + " is bound") }
func podGone(pod string) fact                 { return fact("pod " + pod + " is gone") }
func volumeReported(node, volume string) fact { return fact(volume + " is reported on " + node) }
func volumeWithdrawn(node, volume string) fact {
	return fact(volume + " is not reported on " + node)
}
func volumeInUse(node, volume string) fact    { return fact(volume + " is in use on " + node) }
func volumeFree(node, volume string) fact     { return fact(volume + " is not in use on " + node) }
func volumeHeld(node, volume string) fact     { return fact(volume + " has an attachment to " + node) }
func volumeDetached(node, volume string) fact { return fact(volume + " has no attachment to " + node) }
func volumeAttached(node, volume string) fact { return fact(volume + " is attached to " + node) }
func volumeUnattached(node, volume string) fact {
	return fact(volume + " is not attached to " + node)
}

// observer watches the API server and notes when each fact was first seen to hold. All planes
// are timed by its clock alone, with the same way for news to come in.
type observer struct {
	mu      sync.Mutex
	since   map[fact]time.Time
	waiting map[fact][]chan struct{}
	stop    context.CancelFunc
	factory informers.SharedInformerFactory
}

// observe watches everything without labelOld until close is called; ctx bounds the start alone.
func observe(ctx context.Context, client kubernetes.Interface) (*observer, error) {
	o := &observer{
		since: map[fact]time.Time{}, waiting: map[fact][]chan struct{}{},
		factory: informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.LabelSelector = "!" + labelOld
		})),
	}
	_, pods := informer.OnChange(o.factory.Core().V1().Pods().Informer(), o.pod)
	_, nodes := informer.OnChange(o.factory.Core().V1().Nodes().Informer(), o.node)
	_, attachments := informer.OnChange(o.factory.Storage().V1().VolumeAttachments().Informer(), o.attachment)
	if err := errors.Join(pods, nodes, attachments); err != nil {
		return nil, fmt.Errorf("watching the API server: %w", err)
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	o.stop = stop
	o.factory.StartWithContext(running)
	if result := o.factory.WaitForCacheSyncWithContext(ctx); result.Err != nil {
		o.close()
		return nil, fmt.Errorf("watching the API server: %w", result.Err)
	}
	return o, nil
}

func (o *observer) close() {
	o.stop()
	o.factory.Shutdown()
}

func (o *observer) pod(before, after *corev1.Pod) {
	switch {
	case after == nil:
		o.saw(podGone(before.Name), podBound(before.Name))
	case after.Spec.NodeName != "":
		o.saw(podBound(after.Name), podGone(after.Name))
	}
}

func (o *observer) node(before, after *corev1.Node) {
	if before == nil {
		before = &corev1.Node{}
	}
	if after == nil {
		after = &corev1.Node{}
		after.Name = before.Name
	}
	compare(reported(before), reported(after), func(volume string, is bool) {
		o.turned(is, volumeReported(after.Name, volume), volumeWithdrawn(after.Name, volume))
	})
	compare(inUse(before), inUse(after), func(volume string, is bool) {
		o.turned(is, volumeInUse(after.Name, volume), volumeFree(after.Name, volume))
	})
}

func (o *observer) attachment(before, after *storagev1.VolumeAttachment) {
	is, va := after != nil, after
	if !is {
		va = before
	}
	if (before == nil) != (after == nil) {
		o.turned(is, volumeHeld(va.Spec.NodeName, sourceOf(va)), volumeDetached(va.Spec.NodeName, sourceOf(va)))
	}
	attached := is && va.Status.Attached
	o.turned(attached, volumeAttached(va.Spec.NodeName, sourceOf(va)), volumeUnattached(va.Spec.NodeName, sourceOf(va)))
}

// compare calls turned for what is in one of the lists only.
func compare(before, after []string, turned func(volume string, is bool)) {
	for _, volume := range before {
		if !slices.Contains(after, volume) {
			turned(volume, false)
		}
	}
	for _, volume := range after {
		if !slices.Contains(before, volume) {
			turned(volume, true)
		}
	}
}

func (o *observer) turned(is bool, yes, no fact) {
	if !is {
		yes, no = no, yes
	}
	o.saw(yes, no)
}

// saw notes a fact, and that its opposite no longer holds.
func (o *observer) saw(is, opposite fact) {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.since, opposite)
	if _, known := o.since[is]; known {
		return
	}
	o.since[is] = now
	for _, waiter := range o.waiting[is] {
		close(waiter)
	}
	delete(o.waiting, is)
}

// forget makes facts unseen: only what is seen from now on counts.
func (o *observer) forget(facts ...fact) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range facts {
		delete(o.since, f)
	}
}

// when waits until a fact is seen, and returns since when.
func (o *observer) when(ctx context.Context, f fact) (time.Time, error) {
	o.mu.Lock()
	at, known := o.since[f]
	if known {
		o.mu.Unlock()
		return at, nil
	}
	seen := make(chan struct{})
	o.waiting[f] = append(o.waiting[f], seen)
	o.mu.Unlock()
	select {
	case <-seen:
	case <-ctx.Done():
		return time.Time{}, fmt.Errorf("waiting until %s: %w", f, context.Cause(ctx))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.since[f], nil
}

// last waits until all facts are seen, and returns when the last of them was.
func (o *observer) last(ctx context.Context, facts []fact) (time.Time, error) {
	var last time.Time
	for _, f := range facts {
		at, err := o.when(ctx, f)
		if err != nil {
			return last, err
		}
		if at.After(last) {
			last = at
		}
	}
	return last, nil
}
