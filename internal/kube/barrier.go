package kube

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pageSize bounds one answer of a quorum list.
const pageSize = 1000

// Barrier holds a new leader back until its watch caches have reached what the API
// server knew after the lease was won. Whatever the leader before wrote is then seen.
type Barrier struct {
	// Reader reads past the caches.
	Reader client.Reader
	// Caches are the informers to wait for, by the kind of their objects.
	Caches map[schema.GroupVersionKind]cache.SharedIndexInformer
}

// Pass lists each kind at quorum, waits until each cache has seen the newest object
// of its list, and returns for each kind the version of the list: whatever the
// leader before decided was decided on that version or an older one.
func (b *Barrier) Pass(ctx context.Context) (map[schema.GroupVersionKind]string, error) {
	versions := make(map[schema.GroupVersionKind]string, len(b.Caches))
	// Always in the same order: what is done can be told from a log, and played again.
	kinds := slices.SortedFunc(maps.Keys(b.Caches), func(a, b schema.GroupVersionKind) int {
		return cmp.Compare(a.String(), b.String())
	})
	for _, kind := range kinds {
		informer := b.Caches[kind]
		listed, newest, err := b.list(ctx, kind)
		if err != nil {
			return nil, err
		}
		if err := await(ctx, informer, newest); err != nil {
			return nil, fmt.Errorf("wait for the cache of %s to reach version %s: %w", kind.Kind, newest, err)
		}
		versions[kind] = listed
	}
	return versions, nil
}

// list returns the version of a quorum list of the kind, and the newest version of
// any object in it. The list's own version may be one that the cache never sees:
// the API server counts all kinds together.
func (b *Barrier) list(ctx context.Context, kind schema.GroupVersionKind) (listed, newest string, err error) {
	page := &metav1.PartialObjectMetadataList{}
	page.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	for {
		options := []client.ListOption{client.Limit(pageSize), client.Continue(page.Continue)}
		if selector := selectorOf(kind.Kind); selector != nil { // the cache never sees the others
			options = append(options, client.MatchingFieldsSelector{Selector: selector})
		}
		if err := b.Reader.List(ctx, page, options...); err != nil {
			return "", "", fmt.Errorf("list %s at quorum: %w", kind.Kind, err)
		}
		if listed == "" {
			listed = page.ResourceVersion
		}
		for i := range page.Items {
			if version := page.Items[i].ResourceVersion; newest == "" || !reached(newest, version) {
				newest = version
			}
		}
		if page.Continue == "" {
			return listed, newest, nil
		}
	}
}

// await returns when the informer's store has seen the version.
func await(ctx context.Context, informer cache.SharedIndexInformer, version string) error {
	store := informer.GetIndexer()
	seen := func() bool { return version == "" || reached(store.LastStoreSyncResourceVersion(), version) }
	if seen() {
		return nil
	}
	changed := make(chan struct{}, 1)
	signal := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { signal() },
		UpdateFunc: func(any, any) { signal() },
		DeleteFunc: func(any) { signal() },
	})
	if err != nil {
		return fmt.Errorf("watch the cache: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }()
	for !seen() {
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
