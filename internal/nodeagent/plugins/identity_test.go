package plugins

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"belay.dev/belay/internal/csi"
)

// TestCSINodeThatAnotherClientChangesComesBack: the node has no watch of it, and the Node's heartbeats do not show it.
func TestCSINodeThatAnotherClientChangesComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
		client := fake.NewClientset(node)
		api := client.StorageV1().CSINodes()
		who := identityOf(client)
		who.drivers["d"] = csi.NodeInfo{NodeID: "id"}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { who.run(ctx, logr.Discard()) })
		synctest.Wait()
		lists := func() bool {
			object, err := api.Get(ctx, "n", metav1.GetOptions{})
			return err == nil && slices.ContainsFunc(object.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == "d" })
		}
		heartbeats := func() {
			for range 30 {
				current, err := client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
				must(t, err)
				who.observe(current)
				<-time.After(10 * time.Second)
			}
			synctest.Wait()
		}
		for _, test := range []struct {
			what string
			harm func() error
		}{
			{"deleted", func() error { return api.Delete(ctx, "n", metav1.DeleteOptions{}) }},
			{"emptied", func() error {
				object, err := api.Get(ctx, "n", metav1.GetOptions{})
				must(t, err)
				object.Spec.Drivers = nil
				_, err = api.Update(ctx, object, metav1.UpdateOptions{})
				return err
			}},
		} {
			if !lists() {
				t.Fatal("the CSINode does not list the driver")
			}
			must(t, test.harm())
			if heartbeats(); !lists() {
				t.Errorf("%s, the CSINode has not come back after 30 heartbeats", test.what)
			}
		}
		// With the Node, its CSINode goes: nothing is to be written until the Node is back.
		must(t, api.Delete(ctx, "n", metav1.DeleteOptions{}))
		must(t, client.CoreV1().Nodes().Delete(ctx, "n", metav1.DeleteOptions{}))
		synctest.Wait()
		before := len(client.Actions())
		<-time.After(10 * csiNodePeriod)
		synctest.Wait()
		for _, action := range client.Actions()[before:] {
			if action.GetVerb() != "get" {
				t.Errorf("without a Node: %v", action)
			}
		}
		if got := len(client.Actions()) - before; got > 25 {
			t.Errorf("%d requests in 10 periods without a Node", got)
		}
		cancel()
		running.Wait()
	})
}

// TestDriverUnderTrialIsInNoOtherWrite: a driver whose label the API server forbids arrives while another one is being
// registered, and leaves before the answer; neither of them harms the other.
func TestDriverUnderTrialIsInNoOtherWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}})
		reads := make(chan struct{})
		client.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			<-reads
			return false, nil, nil
		})
		who := identityOf(client)
		client.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if !bytes.Contains(action.(clienttesting.PatchAction).GetPatch(), []byte("rack.kubernetes.io/r")) {
				return false, nil, nil
			}
			who.remove("misfit")
			return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), "n", nil)
		})
		who.drivers["misfit"] = csi.NodeInfo{NodeID: "as it was known before"}
		installed := make(chan error, 1)
		go func() {
			installed <- who.install(t.Context(), "good", csi.NodeInfo{NodeID: "good", Topology: map[string]string{"good.example.com/zone": "z"}})
		}()
		synctest.Wait() // it has the slot
		tried := make(chan error, 1)
		go func() {
			tried <- who.install(t.Context(), "misfit", csi.NodeInfo{NodeID: "misfit", Topology: map[string]string{"rack.kubernetes.io/r": "r1"}})
		}()
		synctest.Wait()
		close(reads)
		must(t, <-installed)
		if err := <-tried; !apierrors.IsForbidden(err) {
			t.Errorf("the invalid driver got the error %v", err)
		}
		if diff := cmp.Diff([]string{"good"}, slices.Sorted(maps.Keys(who.drivers))); diff != "" {
			t.Errorf("drivers (-want +got):\n%s", diff)
		}
	})
}
