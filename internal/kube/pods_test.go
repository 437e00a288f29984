package kube

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	cachetesting "k8s.io/client-go/tools/cache/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// podInformer is the informer of Pods as the manager's cache makes and runs it.
func podInformer(t *testing.T, source cache.ListerWatcher) cache.SharedIndexInformer {
	t.Helper()
	options := CacheOptions()
	newInformer := options.NewInformer
	if newInformer == nil {
		newInformer = cache.NewSharedIndexInformer
	}
	informer := newInformer(source, &corev1.Pod{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for obj, o := range options.ByObject {
		if _, ok := obj.(*corev1.Pod); ok {
			if err := informer.SetTransform(o.Transform); err != nil {
				t.Fatal(err)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); informer.RunWithContext(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return informer
}

// TestBytesPerPod measures what pods cost in their cache, the store and its indexes
// included, listed and watched.
func TestBytesPerPod(t *testing.T) {
	const pods = 4000
	for name, tt := range map[string]struct {
		make  func(i int) client.Object
		bound int64 // bytes, about a tenth above what is measured
	}{
		"with a volume":   {fullPod, 2600},
		"without volumes": {plainPod, 20},
	} {
		t.Run(name, func(t *testing.T) {
			events := watch.NewFakeWithChanSize(pods, false)
			source := &cache.ListWatch{
				ListWithContextFunc: func(context.Context, metav1.ListOptions) (apiruntime.Object, error) {
					list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
					for i := range pods / 2 {
						list.Items = append(list.Items, *tt.make(i).(*corev1.Pod))
					}
					return list, nil
				},
				WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
					if o.SendInitialEvents != nil {
						return nil, fmt.Errorf("this server streams no lists")
					}
					return events, nil
				},
			}
			before := heapInUse()
			informer := podInformer(t, source)
			for i := pods / 2; i < pods; i++ {
				events.Add(tt.make(i).(*corev1.Pod))
			}
			last := fullPod(pods).(*corev1.Pod)
			events.Add(last)
			if !cache.WaitForCacheSync(t.Context().Done(), func() bool {
				_, seen, err := informer.GetStore().Get(last)
				return seen && err == nil
			}) {
				t.Fatal("the last pod is not seen")
			}
			kept := (heapInUse() - before) / pods
			runtime.KeepAlive(informer)
			t.Logf("%d bytes kept per pod", kept)
			if kept > tt.bound {
				t.Errorf("keeps %d bytes per pod, want at most %d", kept, tt.bound)
			}
		})
	}
}

func heapInUse() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// Each pod with a volume is seen from its first event to its last, and no other one; a
// pod may come back under its name with a volume, or without.
func TestPodsAreSeenWhileTheyHaveVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := cachetesting.NewFakeControllerSource()
		t.Cleanup(source.Shutdown) // runs after the informer has ended: Shutdown leaves the source locked, and an informer that watches again would block
		pod := func(name string, volume corev1.VolumeSource) *corev1.Pod {
			return &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
				Spec:       corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: volume}}},
			}
		}
		none := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
		claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
		source.Add(pod("plain", none))
		source.Add(pod("claim", claim))
		source.Add(pod("ephemeral", corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}))
		source.Add(pod("inline", corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}))
		source.Add(pod("fc", corev1.VolumeSource{FC: &corev1.FCVolumeSource{}}))
		informer := podInformer(t, podLists{source})
		sees := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			got := informer.GetStore().ListKeys()
			seen := map[string]bool{}
			for _, name := range got {
				seen[name] = true
			}
			for _, name := range want {
				if !seen["ns/"+name] {
					t.Errorf("%s: pod %s is not seen", when, name)
				}
			}
			if len(got) != len(want) {
				t.Errorf("%s: sees %v, want %v", when, got, want)
			}
		}
		sees("at the start", "claim", "ephemeral", "inline", "fc")
		source.Modify(pod("plain", none))
		source.Add(pod("plain-2", none))
		source.Add(pod("claim-2", claim))
		sees("new pods", "claim", "ephemeral", "inline", "fc", "claim-2")
		source.Delete(pod("claim", claim))
		source.Add(pod("claim", none))
		source.Delete(pod("plain", none))
		source.Add(pod("plain", claim))
		sees("pods that came back", "plain", "ephemeral", "inline", "fc", "claim-2")
		source.Delete(pod("plain-2", none))
		source.Delete(pod("claim-2", claim))
		sees("pods that are gone", "plain", "ephemeral", "inline", "fc")
	})
}

// podLists gives lists of their own type, as the API server does.
type podLists struct {
	*cachetesting.FakeControllerSource
}

func (p podLists) List(options metav1.ListOptions) (apiruntime.Object, error) {
	list, err := p.FakeControllerSource.List(options)
	if err != nil {
		return nil, err
	}
	pods := &corev1.PodList{}
	if accessor, err := apimeta.ListAccessor(list); err == nil {
		pods.ResourceVersion = accessor.GetResourceVersion()
	}
	return pods, apimeta.EachListItem(list, func(obj apiruntime.Object) error {
		pods.Items = append(pods.Items, *obj.(*corev1.Pod))
		return nil
	})
}
