package plugins

import (
	"bytes"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"belay.dev/belay/internal/csi"
)

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
