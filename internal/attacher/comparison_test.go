package attacher

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// often makes comparisons follow each other quickly.
func often(c *Config) { c.ReconcileSync = 20 * time.Millisecond }

// heldByOthers keeps an attachment that is deleted.
func heldByOthers(va *storagev1.VolumeAttachment) {
	va.Finalizers = append(va.Finalizers, "example.com/keep")
}

// newListingWorld is a world whose driver lists what an array holds.
func newListingWorld(t *testing.T) (*world, *array) {
	t.Helper()
	w := newWorld(t, canList...)
	return w, attachArray(w.driver)
}

// Upstream's cases, by name (pkg/controller/csi_handler_test.go).
func TestCSIHandlerReconcileVA(t *testing.T) {
	recorded := func(w *world) func(*storagev1.VolumeAttachment) {
		return func(va *storagev1.VolumeAttachment) { withFinalizer(w, "id-node1")(va); isAttachedAlready(va) }
	}
	deleted := func(w *world, s *array) string {
		va := w.attachment("pv1", "node1", heldByOthers, withFinalizer(w, "id-node1"))
		w.delete(va)
		w.removeOurFinalizer(va)
		s.put(w.name("pv1"), "id-node1")
		return va
	}
	tests := map[string]struct {
		arrange func(w *world, s *array) string
		want    []string
		changes bool // the status is patched
	}{
		"va attached actual state not attached": {
			func(w *world, _ *array) string { return w.attachment("pv1", "node1", recorded(w)) }, []string{"Publish id-node1"}, true},
		"va attached actual state not attached, volume listed": {
			func(w *world, s *array) string {
				s.put(w.name("pv1"), "")
				return w.attachment("pv1", "node1", recorded(w))
			}, []string{"Publish id-node1"}, true},
		"va attached actual state attached": {
			func(w *world, s *array) string {
				s.put(w.name("pv1"), "id-node1")
				return w.attachment("pv1", "node1", recorded(w))
			}, nil, false},
		"va not attached actual state attached": {deleted, []string{"Unpublish id-node1"}, false},
		"no volume attachments but existing lister response results in no action": {
			func(w *world, s *array) string { s.put(w.name("pv1"), "id-node1"); return "" }, nil, false},
		"of two attachments that name one node's volume the one that is let go is left alone": {
			func(w *world, s *array) string {
				va := deleted(w, s)
				w.attachment("pv1", "node1", recorded(w), func(va *storagev1.VolumeAttachment) { va.Name = w.name("by-hand") })
				return va
			}, nil, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w, s := newListingWorld(t)
			inner := w.driver.Answer
			w.driver.SetAnswer(func(ctx context.Context, c call, nth int) (map[string]string, error) {
				_, err := inner(ctx, c, nth)
				return map[string]string{"device": "anew"}, err
			})
			w.node("node1")
			w.volume("pv1", func(pv *corev1.PersistentVolume) {
				pv.Finalizers = []string{"external-attacher/" + strings.ReplaceAll(w.driver.Name, ".", "-")}
			})
			va := tt.arrange(w, s)
			var before *storagev1.VolumeAttachment
			if va != "" {
				before = w.get(va)
			}
			w.start(often)
			w.driver.WaitCalls(len(tt.want))
			w.driver.WaitLists(6)
			w.wantCalls(tt.want...)
			if va == "" {
				return
			}
			if tt.changes {
				w.until(va, "refreshed", func(va *storagev1.VolumeAttachment) bool { return va.Status.AttachmentMetadata["device"] == "anew" })
			} else {
				w.wantUnchanged(before)
			}
		})
	}
}

// removeOurFinalizer takes our finalizer off, as after a confirmed unpublish.
func (w *world) removeOurFinalizer(va string) {
	w.t.Helper()
	patch := []byte(`{"metadata":{"finalizers":["example.com/keep"]}}`)
	if _, err := w.client.StorageV1().VolumeAttachments().Patch(w.t.Context(), va, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// The storage unpublishes a volume from its node without the attacher: the attacher publishes it again, once, with its
// secrets.
func TestThirdPartyDetachIsRepaired(t *testing.T) {
	w, s := newListingWorld(t)
	w.node("node1")
	w.secret("secret", map[string][]byte{"key": []byte("value")})
	w.volume("pv1", withSecret(w, "secret"))
	w.volume("pv2")
	w.start(often)
	va := w.attachment("pv1", "node1")
	w.until(va, "attached", isAttached)
	w.until(w.attachment("pv2", "node1"), "attached", isAttached)
	w.driver.WaitLists(4)
	if n := len(w.driver.Made()); n != 2 {
		t.Fatalf("calls before anything drifted: %v", w.driver.Made())
	}
	s.take(w.name("pv1"), "id-node1")
	calls := w.driver.WaitCalls(3)
	if c := calls[2]; c.Method != "Publish" || c.Volume != w.name("pv1") || c.Secrets["key"] != "value" {
		t.Errorf("%s %s with secrets %v, want a publish of pv1 with its secrets", c.Method, c.Volume, c.Secrets)
	}
	w.driver.WaitLists(8)
	if n := len(w.driver.Made()); n != 3 {
		t.Errorf("calls: %v, want one publish again", w.driver.Made())
	}
	if stored := w.get(va); !stored.Status.Attached || stored.Status.AttachError != nil {
		t.Errorf("status %+v", stored.Status)
	}
	w.delete(va)
	w.until(va, "gone", isGone)
}

// A repeated publish that fails is reported and retried with the usual back-off until it succeeds (the retry of
// csi-attacher does nothing).
func TestPublishAgainThatFailsIsRetried(t *testing.T) {
	w, s := newListingWorld(t)
	w.node("node1")
	w.volume("pv1")
	w.start(often)
	va := w.attachment("pv1", "node1")
	w.until(va, "attached", isAttached)
	inner, fails := w.driver.Answer, &trouble{method: "Publish", fail: always(status.Error(codes.Internal, "array is away"))}
	w.driver.SetAnswer(func(ctx context.Context, c call, nth int) (map[string]string, error) {
		if _, err := fails.answer(ctx, c, nth); err != nil {
			return nil, err
		}
		return inner(ctx, c, nth)
	})
	s.take(w.name("pv1"), "id-node1")
	if stored := w.untilWas(va, "failed", hasAttachError("array is away")); !stored.Status.Attached || *stored.Status.AttachError.ErrorCode != int32(codes.Internal) {
		t.Errorf("status %+v, want attached with the error's code", stored.Status)
	}
	// It is not the next list that has it tried again.
	w.driver.SetList(func(context.Context, *csispec.ListVolumesRequest) (*csispec.ListVolumesResponse, error) {
		return nil, status.Error(codes.Unavailable, "no list")
	})
	fails.over.Store(true)
	w.until(va, "mended", func(va *storagev1.VolumeAttachment) bool { return isAttached(va) && va.Status.AttachError == nil })
	w.driver.WaitLists(4)
	w.wantCalls(slices.Repeat([]string{"Publish id-node1"}, 1+int(fails.calls.Load())+1)...)
}

// A list that leaves volumes out, or names no nodes, or names nodes in another form, costs few
// calls, and those ever fewer (external-attacher#291, #416).
func TestIncompleteListDoesNotStorm(t *testing.T) {
	const volumes = 60
	tests := map[string]struct {
		lie  func(s *array)
		most int // publishes beyond one for each volume, and beyond one for each list
	}{
		"volumes are left out":               {func(s *array) { s.hides = func(string) bool { return true } }, firstMends},
		"nodes are named in another form":    {func(s *array) { s.renames = strings.ToUpper }, 0},
		"some of the volumes are left out":   {func(s *array) { s.hides = func(v string) bool { return strings.HasSuffix(v, "7") } }, firstMends},
		"the list is right, and much is new": {func(*array) {}, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w, s := newListingWorld(t)
			tt.lie(s)
			w.node("node1")
			for i := range volumes {
				w.volume(fmt.Sprint("pv", i))
			}
			w.start(often)
			for i := range volumes {
				w.attachment(fmt.Sprint("pv", i), "node1")
			}
			for _, va := range w.list() {
				w.until(va.Name, "attached", isAttached)
			}
			const passes = 15
			w.driver.WaitLists(passes)
			surplus := len(w.driver.Made()) - volumes
			w.driver.Lock()
			lists := w.driver.Lists // read last: each may be followed by a call
			w.driver.Unlock()
			t.Logf("%d surplus calls in %d lists of %d volumes", surplus, lists, volumes)
			if tt.most > 0 {
				tt.most += lists
			}
			if surplus > tt.most {
				t.Errorf("%d surplus calls, want at most %d", surplus, tt.most)
			}
			if w.driver.Overlaps != 0 {
				t.Errorf("%d calls overlapped on one volume", w.driver.Overlaps)
			}
		})
	}
}

// firstMends is publication's limit: how many drifts are repaired before one repair was seen to help.
const firstMends = 10

// S1: an exclusive volume that another client moved to another node is not published here as well.
func TestVolumeMovedByThirdPartyIsLeftAlone(t *testing.T) {
	w, s := newListingWorld(t)
	w.node("node1")
	w.node("node2")
	w.volume("pv1")
	w.start(often)
	w.until(w.attachment("pv1", "node1"), "attached", isAttached)
	s.move(w.name("pv1"), "id-node1", "id-node2")
	w.driver.WaitLists(8)
	w.wantCalls("Publish id-node1")
	s.take(w.name("pv1"), "id-node2") // and back: now it may
	w.driver.WaitCalls(2)
	w.wantCalls("Publish id-node1", "Publish id-node1")
}

// The storage still has a volume at a node whose VolumeAttachment was removed. The volume is unpublished from that node
// once it is wanted elsewhere and the driver refuses the publish; otherwise nothing would end the wait.
func TestAbandonedVolumeIsFreed(t *testing.T) {
	w, s := newListingWorld(t)
	w.driver.SetAnswer(func(_ context.Context, c call, _ int) (map[string]string, error) {
		if c.Method == "Publish" && s.heldElsewhere(c.Volume, c.Node) {
			return nil, status.Error(codes.FailedPrecondition, "held by another node")
		}
		s.serve(c)
		return nil, nil
	})
	w.node("node1")
	w.node("node2")
	w.volume("pv1")
	w.driver.SetList(func(context.Context, *csispec.ListVolumesRequest) (*csispec.ListVolumesResponse, error) {
		return nil, status.Error(codes.Unavailable, "no list before the refusal was seen")
	})
	w.start(often)
	s.put(w.name("pv1"), "id-node1")
	va := w.attachment("pv1", "node2")
	w.untilRefused(va, "held by another node")
	w.driver.SetList(s.list)
	w.until(va, "attached", isAttached)
	if got := w.driver.Made(); got[len(got)-1] != "Publish id-node2" || !slices.Contains(got, "Unpublish id-node1") {
		t.Errorf("calls: %v", got)
	}
}

// The handle of a migrated volume leaves out what the driver's list has
// (external-attacher#247).
func TestGCEPDIsFoundInTheList(t *testing.T) {
	w := newWorld(t, canList...)
	w.driver.Name = "pd.csi.storage.gke.io" // fixed, so this runs alone on it
	s := attachArray(w.driver)
	const here, full = "projects/p/zones/testZone/instances/node1", "projects/p/zones/testZone/disks/reconciled"
	s.put(full, here)
	w.nodeWithID("node1", here)
	w.volume("pv1", func(pv *corev1.PersistentVolume) {
		pv.Labels = map[string]string{"topology.kubernetes.io/zone": "testZone"}
		pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "reconciled"}}
	})
	va := w.attachment("pv1", "node1", withFinalizer(w, here), isAttachedAlready)
	w.start(often)
	w.driver.WaitLists(6)
	w.wantCalls()
	s.take(full, here)
	if c := w.driver.WaitCalls(1)[0]; c.Volume != "projects/UNSPECIFIED/zones/testZone/disks/reconciled" {
		t.Errorf("published %s, want the handle as the PersistentVolume has it", c.Volume)
	}
	s.put(full, here)
	w.driver.WaitLists(3)
	w.delete(va)
	w.until(va, "gone", isGone)
}

// A standby asks for no list, and a driver that cannot list where its volumes are published is
// never asked.
func TestOnlyTheLeaderListsAndOnlyWhatCanBeListed(t *testing.T) {
	for _, missing := range []csispec.ControllerServiceCapability_RPC_Type{
		csispec.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csispec.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
		csispec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csispec.ControllerServiceCapability_RPC_UNKNOWN, // none: and the attacher is a standby
	} {
		t.Run(missing.String(), func(t *testing.T) {
			capabilities := slices.DeleteFunc(slices.Clone(canList), func(c csispec.ControllerServiceCapability_RPC_Type) bool { return c == missing })
			w := newWorld(t, capabilities...)
			attachArray(w.driver)
			w.node("node1")
			w.volume("pv1")
			if missing == csispec.ControllerServiceCapability_RPC_UNKNOWN {
				a, err := New(Config{Client: w.client, Driver: w.driver.Name, WorkerThreads: 1, Controller: w.controller(), ReconcileSync: time.Millisecond})
				must(t, err)
				a.Warm(t.Context())
				for _, synced := range a.objects.synced() {
					for !synced() {
						<-time.After(time.Millisecond)
					}
				}
			} else {
				w.start(func(c *Config) { c.ReconcileSync = time.Millisecond })
				w.until(w.attachment("pv1", "node1"), "attached", isAttached)
			}
			w.driver.Lock()
			defer w.driver.Unlock()
			if w.driver.Lists != 0 {
				t.Errorf("driver was asked for %d lists", w.driver.Lists)
			}
		})
	}
}
