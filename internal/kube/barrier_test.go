package kube

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	cachetesting "k8s.io/client-go/tools/cache/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// quorum answers lists as the API server does past the caches, in two pages.
type quorum struct {
	client.Reader
	pages []metav1.PartialObjectMetadataList
	err   error
}

func (q *quorum) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if q.err != nil {
		return q.err
	}
	page := list.(*metav1.PartialObjectMetadataList)
	kind := page.GroupVersionKind()
	*page = q.pages[0]
	page.SetGroupVersionKind(kind)
	q.pages = q.pages[1:]
	return nil
}

func page(listed, more string, versions ...string) metav1.PartialObjectMetadataList {
	list := metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: listed, Continue: more}}
	for _, v := range versions {
		list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: v}})
	}
	return list
}

func TestBarrierWaitsForTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kind := storagev1.SchemeGroupVersion.WithKind("VolumeAttachment")
		source := cachetesting.NewFakeControllerSource()
		informer := cache.NewSharedIndexInformer(source, &storagev1.VolumeAttachment{}, 0, cache.Indexers{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); informer.RunWithContext(ctx) }()
		defer func() { cancel(); <-ended; source.Shutdown() }()
		source.Add(version("x", "u", "", "a")) // version 1
		synctest.Wait()

		barrier := Barrier{
			// The newest object stands on the second page. The list as such is newer
			// than any object, as the API server counts all kinds together.
			Reader: &quorum{pages: []metav1.PartialObjectMetadataList{page("900", "more", "1"), page("900", "", "3", "2")}},
			Caches: map[schema.GroupVersionKind]cache.SharedIndexInformer{kind: informer},
		}
		passed := make(chan map[schema.GroupVersionKind]string, 1)
		go func() {
			versions, err := barrier.Pass(t.Context())
			if err != nil {
				t.Error(err)
			}
			passed <- versions
		}()
		step := func(what string, want bool) {
			t.Helper()
			synctest.Wait()
			if got := len(passed) == 1; got != want {
				t.Fatalf("%s: passed %v, want %v", what, got, want)
			}
		}
		step("cache at version 1 of 3", false)
		source.Modify(version("x", "u", "", "a"))
		step("cache at version 2 of 3", false)
		source.Modify(version("x", "u", "", "a"))
		step("cache at version 3 of 3", true)
		if versions := <-passed; versions[kind] != "900" {
			t.Errorf("version of the list %q, want 900", versions[kind])
		}
	})
}

// asked keeps what a list was asked for.
type asked struct {
	quorum
	options client.ListOptions
}

func (a *asked) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	a.options = client.ListOptions{}
	a.options.ApplyOptions(options)
	return a.quorum.List(ctx, list, options...)
}

// TestBarrierListsWhatIsWatched lists the pods that the cache will see: it would wait for
// ever for one that runs nowhere.
func TestBarrierListsWhatIsWatched(t *testing.T) {
	kind := corev1.SchemeGroupVersion.WithKind("Pod")
	reader := &asked{quorum: quorum{pages: []metav1.PartialObjectMetadataList{page("9", "")}}}
	if _, _, err := (&Barrier{Reader: reader}).list(t.Context(), kind); err != nil {
		t.Fatal(err)
	}
	var watched fields.Selector
	for obj, options := range CacheOptions().ByObject {
		if _, ok := obj.(*corev1.Pod); ok {
			watched = options.Field
		}
	}
	if watched == nil || reader.options.FieldSelector == nil || reader.options.FieldSelector.String() != watched.String() {
		t.Errorf("lists %v, watches %v", reader.options.FieldSelector, watched)
	}
	for name, want := range map[string]bool{"": false, "n": true} {
		if got := watched.Matches(fields.Set{"spec.nodeName": name}); got != want {
			t.Errorf("a pod on node %q is watched: %v", name, got)
		}
	}
}

func TestBarrierHoldsWithoutAnAnswer(t *testing.T) {
	lost := errors.New("no quorum")
	kind := storagev1.SchemeGroupVersion.WithKind("VolumeAttachment")
	barrier := Barrier{
		Reader: &quorum{err: lost},
		Caches: map[schema.GroupVersionKind]cache.SharedIndexInformer{kind: nil},
	}
	if _, err := barrier.Pass(t.Context()); !errors.Is(err, lost) {
		t.Errorf("error %v, want %v", err, lost)
	}
}
