package kube

import (
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

const byNodeName = "node"

var attachmentIndexers = cache.Indexers{byNodeName: func(obj any) ([]string, error) {
	return []string{obj.(*storagev1.VolumeAttachment).Spec.NodeName}, nil
}}

func version(name, uid, resourceVersion, node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), ResourceVersion: resourceVersion},
		Spec:       storagev1.VolumeAttachmentSpec{NodeName: node},
	}
}

func TestNewest(t *testing.T) {
	type state struct {
		Version  string
		Deleting bool
	}
	for name, tc := range map[string]struct {
		do   func(store cache.Indexer, n *Newest[*storagev1.VolumeAttachment])
		want map[string]state // what is known at node "a"
	}{
		"only the cache knows": {
			func(s cache.Indexer, _ *Newest[*storagev1.VolumeAttachment]) { _ = s.Add(version("x", "u", "5", "a")) },
			map[string]state{"x": {Version: "5"}},
		},
		"made by us, the cache has not heard": {
			func(_ cache.Indexer, n *Newest[*storagev1.VolumeAttachment]) { n.Wrote(version("x", "u", "5", "a")) },
			map[string]state{"x": {Version: "5"}},
		},
		"changed by us, the cache is older": {
			func(s cache.Indexer, n *Newest[*storagev1.VolumeAttachment]) {
				_ = s.Add(version("x", "u", "5", "a"))
				n.Wrote(version("x", "u", "7", "a"))
			},
			map[string]state{"x": {Version: "7"}},
		},
		"changed by us, the cache is newer": {
			func(s cache.Indexer, n *Newest[*storagev1.VolumeAttachment]) {
				n.Wrote(version("x", "u", "7", "a"))
				_ = s.Add(version("x", "u", "9", "a"))
			},
			map[string]state{"x": {Version: "9"}},
		},
		"9 is older than 10": {
			func(s cache.Indexer, n *Newest[*storagev1.VolumeAttachment]) {
				_ = s.Add(version("x", "u", "9", "a"))
				n.Wrote(version("x", "u", "10", "a"))
			},
			map[string]state{"x": {Version: "10"}},
		},
		"made by us, and gone by the time the cache got there": {
			func(s cache.Indexer, n *Newest[*storagev1.VolumeAttachment]) {
				n.Wrote(version("x", "u", "5", "a"))
				_ = s.Add(version("x", "u", "5", "a"))
				_ = s.Delete(version("x", "u", "6", "a"))
			},
			map[string]state{},
		},
		"made by us, the cache has seen only others since": {
			func(s cache.Indexer, n *Newest[*storagev1.VolumeAttachment]) {
				n.Wrote(version("x", "u", "5", "a"))
				_ = s.Add(version("y", "v", "4", "b"))
			},
			map[string]state{"x": {Version: "5"}},
		},
		"a late answer does not hide a newer one": {
			func(_ cache.Indexer, n *Newest[*storagev1.VolumeAttachment]) {
				n.Wrote(version("x", "u", "7", "a"))
				n.Wrote(version("x", "u", "6", "a"))
			},
			map[string]state{"x": {Version: "7"}},
		},
		"deleted by us, the cache has not heard": {
			func(s cache.Indexer, n *Newest[*storagev1.VolumeAttachment]) {
				_ = s.Add(version("x", "u", "5", "a"))
				n.Deleted("x", "u")
			},
			map[string]state{"x": {Version: "5", Deleting: true}},
		},
		"ended by us, the cache has not heard": {
			func(s cache.Indexer, n *Newest[*storagev1.VolumeAttachment]) {
				_ = s.Add(version("x", "u", "5", "a"))
				n.Wrote(version("x", "u", "6", "a"))
				n.Ended(version("x", "u", "7", "a"))
			},
			map[string]state{},
		},
		"ended by this process, and recreated by another client": {
			func(s cache.Indexer, n *Newest[*storagev1.VolumeAttachment]) {
				_ = s.Add(version("x", "u", "5", "a"))
				n.Ended(version("x", "u", "7", "a"))
				_ = s.Delete(version("x", "u", "7", "a"))
				_ = s.Add(version("x", "u2", "8", "a"))
			},
			map[string]state{"x": {Version: "8"}},
		},
		"recreated by another client, and then the answer of the end": {
			func(s cache.Indexer, n *Newest[*storagev1.VolumeAttachment]) {
				_ = s.Add(version("x", "u2", "8", "a"))
				n.Ended(version("x", "u", "7", "a"))
			},
			map[string]state{"x": {Version: "8"}},
		},
		"gone before the answer of the write": {
			func(s cache.Indexer, n *Newest[*storagev1.VolumeAttachment]) {
				_ = s.Add(version("x", "u", "5", "a"))
				_ = s.Delete(version("x", "u", "8", "a"))
				n.Wrote(version("x", "u", "7", "a"))
				n.Ended(version("x", "u", "7", "a"))
			},
			map[string]state{},
		},
		"changed by another client since this process's write, and seen in between": {
			func(s cache.Indexer, n *Newest[*storagev1.VolumeAttachment]) {
				_ = s.Add(version("x", "u", "5", "a"))
				n.Wrote(version("x", "u", "7", "a"))
				_ = s.Update(version("x", "u", "6", "a"))
				n.CaughtUp("x")
			},
			map[string]state{"x": {Version: "7"}},
		},
		"deleted by this process, and recreated by another client": {
			func(s cache.Indexer, n *Newest[*storagev1.VolumeAttachment]) {
				n.Deleted("x", "u")
				_ = s.Add(version("x", "u2", "8", "a"))
			},
			map[string]state{"x": {Version: "8"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, attachmentIndexers)
			n := NewNewest[*storagev1.VolumeAttachment](store, attachmentIndexers)
			tc.do(store, n)
			for range 2 { // reading changes nothing
				for _, va := range n.All() {
					if newest, ok := n.Get(va.Name); !ok || newest.ResourceVersion != va.ResourceVersion || (newest.DeletionTimestamp != nil) != (va.DeletionTimestamp != nil) {
						t.Errorf("All() has %v, Get() %v, %v", va, newest, ok)
					}
				}
				for _, name := range store.ListKeys() {
					if _, ok := n.Get(name); ok != slices.ContainsFunc(n.All(), func(va *storagev1.VolumeAttachment) bool { return va.Name == name }) {
						t.Errorf("Get(%s) finds it: %v; All() does not agree", name, ok)
					}
				}
				got := map[string]state{}
				for name, va := range n.ByIndex(byNodeName, "a") {
					got[name] = state{va.ResourceVersion, va.DeletionTimestamp != nil}
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Fatalf("by index (-want +got):\n%s", diff)
				}
			}
			for _, name := range slices.Sorted(maps.Keys(tc.want)) {
				va, ok := n.Get(name)
				if !ok || va.ResourceVersion != tc.want[name].Version || (va.DeletionTimestamp != nil) != tc.want[name].Deleting {
					t.Errorf("Get(%s) = %v, %v, want %v", name, va, ok, tc.want[name])
				}
			}
			if len(n.written.List()) > 0 && len(tc.want) == 0 {
				t.Errorf("answers are kept forever: %v", n.written.List())
			}
		})
	}
}

// What the cache has come past is forgotten, although nothing reads the object again, and
// in whichever order the answer and the event come.
func TestNewestForgetsWhatTheCacheHas(t *testing.T) {
	event := func(s cache.Indexer, n *Newest[*storagev1.VolumeAttachment], va *storagev1.VolumeAttachment) {
		_ = s.Update(va)
		n.CaughtUp(va.Name)
	}
	for name, do := range map[string]func(store cache.Indexer, n *Newest[*storagev1.VolumeAttachment]){
		"event after the answer": func(s cache.Indexer, n *Newest[*storagev1.VolumeAttachment]) {
			event(s, n, version("x", "u", "5", "a"))
			n.Wrote(version("x", "u", "7", "a"))
			event(s, n, version("x", "u", "7", "a"))
		},
		"event before the answer": func(s cache.Indexer, n *Newest[*storagev1.VolumeAttachment]) {
			event(s, n, version("x", "u", "7", "a"))
			n.Wrote(version("x", "u", "7", "a"))
		},
		"end after the answer": func(s cache.Indexer, n *Newest[*storagev1.VolumeAttachment]) {
			event(s, n, version("x", "u", "5", "a"))
			n.Wrote(version("x", "u", "6", "a"))
			n.Ended(version("x", "u", "7", "a"))
			_ = s.Delete(version("x", "u", "7", "a"))
			n.CaughtUp("x")
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, attachmentIndexers)
			n := NewNewest[*storagev1.VolumeAttachment](store, attachmentIndexers)
			do(store, n)
			if left := n.written.List(); len(left)+len(n.ending) > 0 {
				t.Errorf("left behind: %v, %v", left, n.ending)
			}
		})
	}
}

// interruptedIndexer is a store that an event reaches while a reader has the previous version. Its handler runs if a reader may.
type interruptedIndexer struct {
	cache.Indexer
	n     *Newest[*storagev1.VolumeAttachment]
	event *storagev1.VolumeAttachment
}

func (i *interruptedIndexer) GetByKey(name string) (any, bool, error) {
	item, ok, err := i.Indexer.GetByKey(name)
	i.interrupt()
	return item, ok, err
}

func (i *interruptedIndexer) ByIndex(index, value string) ([]any, error) {
	items, err := i.Indexer.ByIndex(index, value)
	i.interrupt()
	return items, err
}

func (i *interruptedIndexer) interrupt() {
	event := i.event
	if event == nil {
		return
	}
	i.event = nil
	_ = i.Update(event)
	if i.n.mu.TryLock() {
		i.n.mu.Unlock()
		i.n.CaughtUp(event.Name)
	}
}

// No reader sees a version that is older than an own write, also while another one sees that the cache has caught up with it.
func TestNewestNeverGoesBack(t *testing.T) {
	type newest = Newest[*storagev1.VolumeAttachment]
	deleting := version("x", "u", "7", "a")
	deleting.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	for ownName, own := range map[string]struct {
		make  func(n *newest)
		event *storagev1.VolumeAttachment
	}{
		"write":  {func(n *newest) { n.Wrote(version("x", "u", "7", "a")) }, version("x", "u", "7", "a")},
		"delete": {func(n *newest) { n.Deleted("x", "u") }, deleting},
	} {
		for readName, read := range map[string]func(n *newest) *storagev1.VolumeAttachment{
			"name":  func(n *newest) *storagev1.VolumeAttachment { va, _ := n.Get("x"); return va },
			"index": func(n *newest) *storagev1.VolumeAttachment { return n.ByIndex(byNodeName, "a")["x"] },
		} {
			t.Run(ownName+", by "+readName, func(t *testing.T) {
				store := &interruptedIndexer{Indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, attachmentIndexers)}
				store.n = NewNewest[*storagev1.VolumeAttachment](store, attachmentIndexers)
				_ = store.Add(version("x", "u", "5", "a"))
				own.make(store.n)
				store.event = own.event
				for range 2 {
					if va := read(store.n); va == nil || va.ResourceVersion != "7" && va.DeletionTimestamp == nil {
						t.Errorf("read %+v, older than the own write", va)
					}
				}
			})
		}
	}
}

// Values that share a bucket of a coarse index are kept apart, and those of no object are
// found nowhere.
func TestCoarse(t *testing.T) {
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, Coarse(attachmentIndexers))
	n := NewCoarse[*storagev1.VolumeAttachment](store, attachmentIndexers)
	const many = 4 * buckets // each bucket has some
	name := strconv.Itoa
	for i := range many {
		if va := version(name(i), "u", name(i+1), name(i)); i%2 == 0 {
			_ = store.Add(va)
		}
	}
	for i := range many {
		n.Wrote(version(name(i), "u", name(many+1), name(i)))
	}
	for i := range many {
		if found := n.ByIndex(byNodeName, name(i)); len(found) != 1 || found[name(i)] == nil {
			t.Fatalf("%d objects with value %d: %v", len(found), i, found)
		}
	}
	if found := n.ByIndex(byNodeName, "none"); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}

func TestDeletedDoesNotTouchTheCache(t *testing.T) {
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, attachmentIndexers)
	cached := version("x", "u", "5", "a")
	_ = store.Add(cached)
	n := NewNewest[*storagev1.VolumeAttachment](store, attachmentIndexers)
	n.Deleted("x", "u")
	if _, ok := n.Get("x"); !ok || cached.DeletionTimestamp != nil {
		t.Error("marked the shared object")
	}
	deleting := cached.DeepCopy()
	deleting.ResourceVersion, deleting.DeletionTimestamp = "6", &metav1.Time{Time: time.Unix(1, 0)}
	_ = store.Update(deleting)
	if va, _ := n.Get("x"); va != deleting {
		t.Error("the cache has caught up, and is not used")
	}
}
