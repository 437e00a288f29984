package kube

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	cachetesting "k8s.io/client-go/tools/cache/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// quorum is the API server past the caches. It holds objects by name, each with its
// version, and counts those that it sends.
type quorum struct {
	client.Client
	objects map[string]string
	version string // of each list
	err     error
	sent    int
	// mark, if set, carries out a patch.
	mark  func(name string) error
	marks int
}

func (q *quorum) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	if q.err != nil {
		return q.err
	}
	found := list.(*metav1.PartialObjectMetadataList)
	o := (&client.ListOptions{}).ApplyOptions(options)
	found.ResourceVersion = q.version
	for name, version := range q.objects {
		if o.FieldSelector != nil && o.FieldSelector.String() != "metadata.name="+name {
			continue
		}
		if o.Limit > 0 && len(found.Items) == int(o.Limit) {
			break
		}
		q.sent++
		found.Items = append(found.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", ResourceVersion: version}})
	}
	return nil
}

func (q *quorum) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	body, err := patch.Data(obj)
	if err != nil {
		return err
	}
	for _, part := range []string{`"uid":"u"`, `"resourceVersion":"1"`, LeadingSinceAnnotation} {
		if !strings.Contains(string(body), part) {
			return errors.New("the mark has no " + part)
		}
	}
	q.marks++
	return q.mark(obj.GetName())
}

func (q *quorum) Status() client.SubResourceWriter { return quorumStatus{quorum: q} }

type quorumStatus struct {
	client.SubResourceWriter
	quorum *quorum
}

func (q quorumStatus) Patch(ctx context.Context, obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	return q.quorum.Patch(ctx, obj, patch)
}

var (
	attachmentKind = storagev1.SchemeGroupVersion.WithKind("VolumeAttachment")
	nodeKind       = corev1.SchemeGroupVersion.WithKind("Node")
	volumeKind     = corev1.SchemeGroupVersion.WithKind("PersistentVolume")
)

// cached runs an informer whose objects come from source.
func cached(t *testing.T, object client.Object, source *cachetesting.FakeControllerSource) cache.SharedIndexInformer {
	t.Helper()
	informer := cache.NewSharedIndexInformer(source, object, 0, cache.Indexers{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); informer.RunWithContext(ctx) }()
	t.Cleanup(func() { cancel(); <-ended; source.Shutdown() })
	synctest.Wait()
	return informer
}

// The leader waits until its cache has reached the version of the list, which no object
// has: the API server counts all kinds together. The mark takes the cache there.
func TestBarrierWaitsForTheCache(t *testing.T) {
	for name, tt := range map[string]struct {
		mark error
		// ends is what lets the leader pass; nil if the mark itself does.
		ends func(source *cachetesting.FakeControllerSource, store cache.Indexer)
	}{
		"mark": {},
		"mark refused, a bookmark comes": {
			mark: apierrors.NewForbidden(schema.GroupResource{}, "x", nil),
			ends: func(_ *cachetesting.FakeControllerSource, store cache.Indexer) { store.Bookmark("3") },
		},
		"mark fails, another writer changes an object": {
			mark: errors.New("none"),
			ends: func(source *cachetesting.FakeControllerSource, _ cache.Indexer) {
				source.Modify(version("x", "u", "", "b"))
			},
		},
	} {
		for kind, object := range map[schema.GroupVersionKind]client.Object{attachmentKind: version("x", "u", "", "a"), nodeKind: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "x", UID: "u"}}} {
			if tt.ends != nil && kind == nodeKind {
				continue
			}
			t.Run(kind.Kind+": "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					source := cachetesting.NewFakeControllerSource()
					source.Add(object) // version 1
					informer := cached(t, object, source)
					source.Modify(object.DeepCopyObject()) // version 2
					api := &quorum{objects: map[string]string{"x": "1", "y": "1", "z": "1"}, version: "3"}
					api.mark = func(string) error {
						if tt.mark == nil {
							source.Modify(object.DeepCopyObject())
						}
						return tt.mark
					}
					barrier := Barrier{Live: api, Client: api, Caches: map[schema.GroupVersionKind]cache.SharedIndexInformer{kind: informer}}
					passed := make(chan map[schema.GroupVersionKind]string, 1)
					go func() {
						versions, err := barrier.Pass(t.Context())
						if err != nil {
							t.Error(err)
						}
						passed <- versions
					}()
					synctest.Wait()
					if tt.ends != nil {
						if len(passed) > 0 {
							t.Fatal("passed with the cache at version 2 of 3")
						}
						tt.ends(source, informer.GetIndexer())
						time.Sleep(lastMark)
						synctest.Wait()
					}
					if len(passed) == 0 {
						t.Fatal("not passed with the cache at version 3 of 3")
					}
					if versions := <-passed; versions[kind] != "3" {
						t.Errorf("version of the list %q, want 3", versions[kind])
					}
					if api.sent != 1 {
						t.Errorf("%d objects were read, want 1", api.sent)
					}
					if tt.mark == nil && api.marks != 1 {
						t.Errorf("%d marks, want 1", api.marks)
					}
				})
			})
		}
	}
}

// Of a kind without objects nothing can be missed.
func TestBarrierPassesWithoutObjects(t *testing.T) {
	api := &quorum{version: "7"}
	versions, err := (&Barrier{Live: api, Client: api, Caches: map[schema.GroupVersionKind]cache.SharedIndexInformer{nodeKind: nil}}).Pass(t.Context())
	if err != nil || versions[nodeKind] != "7" {
		t.Errorf("versions %v, error %v", versions, err)
	}
}

func TestBarrierHoldsWithoutAnAnswer(t *testing.T) {
	lost := errors.New("no quorum")
	barrier := Barrier{
		Live:   &quorum{err: lost},
		Caches: map[schema.GroupVersionKind]cache.SharedIndexInformer{attachmentKind: nil},
	}
	if _, err := barrier.Pass(t.Context()); !errors.Is(err, lost) {
		t.Errorf("error %v, want %v", err, lost)
	}
	if err := Confirm(t.Context(), &quorum{err: lost}, volumeKind, nil, []string{"x"}); !errors.Is(err, lost) {
		t.Errorf("error %v, want %v", err, lost)
	}
}

// Confirm waits for the newest version of each named object, and for the end of those
// that are gone; of others it reads nothing.
func TestConfirmWaitsForTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := cachetesting.NewFakeControllerSource()
		volume := func(name string) *corev1.PersistentVolume {
			return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
		}
		for _, name := range []string{"changed", "gone", "other"} {
			source.Add(volume(name)) // versions 1 to 3
		}
		informer := cached(t, &corev1.PersistentVolume{}, source)
		api := &quorum{objects: map[string]string{"changed": "4", "other": "9"}}
		passed := make(chan error, 1)
		go func() {
			passed <- Confirm(t.Context(), api, volumeKind, informer, []string{"changed", "gone"})
		}()
		step := func(what string, want bool) {
			t.Helper()
			synctest.Wait()
			if got := len(passed) == 1; got != want {
				t.Fatalf("%s: passed %v, want %v", what, got, want)
			}
		}
		step("nothing seen", false)
		source.Modify(volume("changed")) // version 4
		step("the change seen", false)
		source.Delete(volume("gone"))
		step("the end seen", true)
		if err := <-passed; err != nil {
			t.Error(err)
		}
		if api.sent != 1 {
			t.Errorf("%d objects were read, want 1", api.sent)
		}
		if err := Confirm(t.Context(), api, volumeKind, informer, nil); err != nil {
			t.Error(err)
		}
	})
}

// remade is a quorum read that comes between the end of an object and its successor of the
// same name (kubectl replace --force).
type remade struct {
	*quorum
	then func()
}

func (r remade) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	err := r.quorum.List(ctx, list, options...)
	r.then()
	return err
}

// A new leader reads a shared PersistentVolume while it does not exist for a moment. The
// cache then has its successor, newer than the read: there is nothing left to wait for. The
// leader waits for that object to go, and does nothing in the whole cluster meanwhile.
func TestConfirmOfARecreatedObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := cachetesting.NewFakeControllerSource()
		volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "first"}}
		source.Add(volume) // version 1
		informer := cached(t, &corev1.PersistentVolume{}, source)
		live := remade{&quorum{objects: map[string]string{}, version: "2"}, func() {
			source.Delete(volume)
			volume = volume.DeepCopy()
			volume.UID = "second"
			source.Add(volume)
			time.Sleep(time.Second)
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := Confirm(ctx, live, volumeKind, informer, []string{"v"}); err != nil {
			t.Errorf("after an hour: %v", err)
		}
	})
}

// A pod that runs nowhere needs no volume: it is not watched.
func TestPodsWithoutNodeAreNotWatched(t *testing.T) {
	for obj, options := range CacheOptions().ByObject {
		if _, ok := obj.(*corev1.Pod); !ok {
			continue
		}
		for name, want := range map[string]bool{"": false, "n": true} {
			if got := options.Field.Matches(fields.Set{"spec.nodeName": name}); got != want {
				t.Errorf("a pod on node %q is watched: %v", name, got)
			}
		}
		return
	}
	t.Error("no pods are watched")
}
