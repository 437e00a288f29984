package attacher

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
	"belay.dev/belay/internal/testing/fixture"
)

// An attachment that is deleted while it is observed is observed once: as another object, it would stand for the calls of the one that is
// gone, and they would be forgotten (S1).
func TestDeletedWhileObserved(t *testing.T) {
	api := newMemoryAPI()
	clients, err := api.client()
	must(t, err)
	a, err := New(Config{Client: clients, Driver: bubbleDriver, Controller: &csi.Controller{}, WorkerThreads: 1})
	must(t, err)
	must(t, a.objects.volumeInformer.GetStore().Add(fixture.PersistentVolume("v", bubbleDriver, "v")))
	va := fixture.Attachment(bubbleName("v", "node-a"), bubbleDriver, "node-a", "v")
	va.UID, va.ResourceVersion, va.Annotations = "uid-a", "1", map[string]string{kube.PublishedHandleAnnotation: "v"}
	key := publication.Key{Volume: "v"}
	a.calls.begin(attempt{key: key, uid: va.UID, attachment: va, volume: identity{handle: "v"}, node: "node-a", verb: publication.Publish, nodeID: "id-a"},
		func() bool { return false })
	store, stop := a.objects.attachmentInformer.GetStore(), make(chan struct{})
	toggling := make(chan struct{})
	go func() {
		defer close(toggling)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_, _ = store.Add(va), store.Delete(va) // fail only for an object without a name
		}
	}()
	for range 20000 {
		seen := map[types.UID]int{}
		for _, one := range a.observe(key).seen.Attachments {
			seen[types.UID(one.UID)]++
		}
		if n := seen[va.UID]; n > 1 { // it may be missing, because here, unlike in a cluster, the UID comes back
			t.Errorf("observed %d times", n)
			break
		}
	}
	close(stop)
	<-toggling
	a.shutDown()
}
