package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// firstMark and lastMark limit the time between two marks on one object. The first mark is lost only with its request.
	firstMark, lastMark = 1300 * time.Millisecond, 10 * time.Second
	// confirmations is how many objects are read in parallel.
	confirmations = 16
)

// Barrier delays a new leader until its watch caches have reached what the API server knew after the lease was acquired, so that
// all writes of the previous leader are seen. It costs one object and one write per kind, however many objects there are (ADR 17).
type Barrier struct {
	// Live reads from the API server, at quorum.
	Live client.Reader
	// Client writes the marks.
	Client client.Client
	// Caches are the informers to wait for, by the kind of their objects: Nodes and VolumeAttachments, which the previous leader
	// wrote.
	Caches map[schema.GroupVersionKind]cache.SharedIndexInformer
}

// Pass waits until each cache has reached the version of a quorum list that is read now, and returns these versions: the previous
// leader decided on that version or an older one.
func (b *Barrier) Pass(ctx context.Context) (map[schema.GroupVersionKind]string, error) {
	versions := make(map[schema.GroupVersionKind]string, len(b.Caches))
	// In a fixed order, so that logs can be compared and the simulation replayed.
	kinds := slices.SortedFunc(maps.Keys(b.Caches), func(a, b schema.GroupVersionKind) int {
		return cmp.Compare(a.String(), b.String())
	})
	for _, kind := range kinds {
		list, err := listMetadata(ctx, b.Live, kind, client.Limit(1))
		if err != nil {
			return nil, err
		}
		versions[kind] = list.ResourceVersion
		if len(list.Items) == 0 {
			continue // no write of the previous leader is missed
		}
		informer := b.Caches[kind]
		err = AwaitVersion(ctx, informer.GetIndexer(), EventsOf(informer), list.ResourceVersion, func(ctx context.Context) error { return b.mark(ctx, &list.Items[0]) })
		if err != nil {
			return nil, fmt.Errorf("wait for the cache of %s to reach version %s: %w", kind.Kind, list.ResourceVersion, err)
		}
	}
	return versions, nil
}

// AwaitVersion returns when the cache has reached the version of a quorum list of its kind. A cache that sees no event learns that
// version from the next bookmark, about once a minute. mark, if not nil, gives an object of the list a new version, an event that
// brings the cache there at once.
func AwaitVersion(ctx context.Context, store cache.Indexer, events Events, version string, mark func(context.Context) error) error {
	again := firstMark
	return waitFor(ctx, events, func() bool {
		return reached(store.LastStoreSyncResourceVersion(), version)
	}, func() time.Duration {
		if mark == nil {
			return lastMark
		}
		// If the mark cannot be written, the wait still ends, but later: a conflict is an event, and a bookmark needs no mark. So
		// one Node that the API server does not accept blocks nothing.
		marking, cancel := context.WithTimeout(ctx, lastMark)
		defer cancel()
		if err := mark(marking); err != nil {
			klog.FromContext(ctx).V(1).Info("Cannot mark an object for the watch cache", "err", err)
		}
		again = min(2*again, lastMark)
		return again / 2
	})
}

// VersionMark returns a merge patch that gives the object a new version by an annotation.
func VersionMark(object metav1.Object) ([]byte, error) {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": object.GetUID(), "resourceVersion": object.GetResourceVersion(),
		"annotations": map[string]string{LeadingSinceAnnotation: time.Now().UTC().Format(time.RFC3339Nano)},
	}})
	if err != nil {
		return nil, fmt.Errorf("encode the mark of %s: %w", object.GetName(), err)
	}
	return body, nil
}

func (b *Barrier) mark(ctx context.Context, object *metav1.PartialObjectMetadata) error {
	body, err := VersionMark(object)
	if err != nil {
		return err
	}
	patch, name := client.RawPatch(types.MergePatchType, body), metav1.ObjectMeta{Name: object.Name}
	switch object.Kind {
	case "Node": // belay may patch the status only
		return b.Client.Status().Patch(ctx, &corev1.Node{ObjectMeta: name}, patch)
	case "VolumeAttachment":
		return b.Client.Patch(ctx, &storagev1.VolumeAttachment{ObjectMeta: name}, patch)
	}
	return fmt.Errorf("mark a %s: %w", object.Kind, errors.ErrUnsupported)
}

// Confirm waits until the cache shows the named objects as the API server has them now. It reads each of them at quorum.
func Confirm(ctx context.Context, live client.Reader, kind schema.GroupVersionKind, informer cache.SharedIndexInformer, names []string) error {
	var mu sync.Mutex
	var errs []error
	newest, gone := "", map[string]string{} // by name, the version at which it did not exist
	workqueue.ParallelizeUntil(ctx, confirmations, len(names), func(i int) {
		list, err := listMetadata(ctx, live, kind, client.MatchingFields{metav1.ObjectNameField: names[i]})
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil:
			errs = append(errs, err)
		case len(list.Items) == 0:
			gone[names[i]] = list.ResourceVersion
		case newest == "" || !reached(newest, list.Items[0].ResourceVersion):
			newest = list.Items[0].ResourceVersion
		}
	})
	if err := errors.Join(append(errs, context.Cause(ctx))...); err != nil {
		return err
	}
	store := informer.GetIndexer()
	return waitFor(ctx, EventsOf(informer), func() bool {
		if newest != "" && !reached(store.LastStoreSyncResourceVersion(), newest) {
			return false
		}
		for name, version := range gone {
			// A newer object was created since, under the same name.
			item, exists, err := store.GetByKey(name)
			if err != nil || exists && !reached(item.(client.Object).GetResourceVersion(), version) {
				return false
			}
		}
		return true
	}, nil)
}

// listMetadata lists metadata of a cluster-scoped kind at quorum.
func listMetadata(ctx context.Context, live client.Reader, kind schema.GroupVersionKind, options ...client.ListOption) (*metav1.PartialObjectMetadataList, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := live.List(ctx, list, options...); err != nil {
		return nil, fmt.Errorf("list %s at quorum: %w", kind.Kind, err)
	}
	for i := range list.Items {
		list.Items[i].SetGroupVersionKind(kind)
	}
	return list, nil
}

// Events subscribes to the events of a cache: changed receives after them, until stop is called.
type Events func() (changed <-chan struct{}, stop func(), err error)

// EventsOf subscribes to the events of an informer. The informer's other handlers may not have been called yet when it sends.
func EventsOf(informer cache.SharedIndexInformer) Events {
	return func() (<-chan struct{}, func(), error) {
		changed := make(chan struct{}, 1)
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { Signal(changed) },
			UpdateFunc: func(any, any) { Signal(changed) },
			DeleteFunc: func(any) { Signal(changed) },
		})
		if err != nil {
			return nil, nil, fmt.Errorf("watch the cache: %w", err)
		}
		return changed, func() { _ = informer.RemoveEventHandler(registration) }, nil
	}
}

// Signal sends to a channel with room for one, unless it is full.
func Signal(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

// waitFor returns when the condition holds; each event may fulfill it. nudge, if given, is called first and again after the time
// that it returned, and the condition is checked then too, because bookmarks are no events.
func waitFor(ctx context.Context, events Events, holds func() bool, nudge func() time.Duration) error {
	if holds() {
		return nil
	}
	changed, stop, err := events()
	if err != nil {
		return err
	}
	defer stop()
	var again <-chan time.Time
	for !holds() {
		if nudge != nil && again == nil {
			again = time.After(nudge())
			continue
		}
		select {
		case <-changed:
		case <-again:
			again = nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
