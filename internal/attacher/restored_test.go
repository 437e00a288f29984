package attacher

import (
	"strings"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
)

// A VolumeAttachment of a deleted node is unpublished by its recorded ID where an attacher wrote that ID. One that another client made, and whose
// ID no node has, may be another cluster's: nothing is called for it, its own volume waits, and a person ends it.
func TestRestoredAttachment(t *testing.T) {
	tests := map[string]struct {
		by   string
		node string // the CSI node ID that a node has
		held bool
	}{
		"csi-attacher wrote it":                     {"csi-attacher", "", false},
		"belay-attacher wrote it":                   {"belay-attacher", "", false},
		"an attacher of another name wrote it":      {"vendor-external-attacher", "", false},
		"who wrote it is not known":                 {"", "", false},
		"restored":                                  {"velero-server", "", true},
		"restored by a person":                      {"kubectl-create", "", true},
		"restored, and its node is in this cluster": {"velero-server", "id-node1", false},
		"restored, and another node has the ID":     {"velero-server", "id-other", true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 10, func(b *bubble) {
				b.node("node1", tt.node)
				b.attach("v", "node1", worked, func(va *storagev1.VolumeAttachment) {
					if tt.by != "" {
						owns(va, tt.by, kube.NodeIDAnnotation)
					}
					va.Annotations[kube.NodeIDAnnotation] = "id-node1"
				})
				b.pass(time.Minute)
				b.detach("v", "node1")
				b.attach("v", "node2")
				b.attach("other", "node2")
				b.pass(10 * time.Minute)
				if b.isGone("v", "node1") == tt.held || b.isAttached("v", "node2") == tt.held || !b.isAttached("other", "node2") {
					t.Fatalf("gone %v, its volume attached elsewhere %v, another volume attached %v", b.isGone("v", "node1"), b.isAttached("v", "node2"), b.isAttached("other", "node2"))
				}
				if !tt.held {
					return
				}
				if calls := b.received("v"); len(calls) > 0 {
					t.Errorf("calls: %v", calls)
				}
				if e := b.attachment("v", "node1").Status.DetachError; e == nil || !strings.Contains(e.Message, "declare-gone va/"+bubbleName("v", "node1")) {
					t.Errorf("detachError: %+v", e)
				}
				b.declare("v", "node1")
				b.within(time.Second, "ended by the declaration", func() bool { return b.isGone("v", "node1") && b.isAttached("v", "node2") })
			})
		})
	}
}

// The volume of a restored VolumeAttachment whose PersistentVolume is another one now is not known. A declaration ends it too.
func TestRestoredAttachmentOfAnUnknownVolume(t *testing.T) {
	inBubble(t, 10, func(b *bubble) {
		b.volume("v")
		b.attach("v", "node1", worked, func(va *storagev1.VolumeAttachment) {
			va.Name = bubbleName("earlier", "node1")
			owns(va, "velero-server", kube.NodeIDAnnotation)
		})
		b.node("node1", "")
		b.attach("v", "node2")
		b.pass(time.Minute)
		b.detach("earlier", "node1")
		b.pass(time.Minute)
		if b.isGone("earlier", "node1") || len(b.received("earlier")) > 0 || !b.isAttached("v", "node2") {
			t.Fatalf("gone %v, calls %v, the present volume attached %v", b.isGone("earlier", "node1"), b.received(""), b.isAttached("v", "node2"))
		}
		b.declare("earlier", "node1")
		b.within(time.Second, "ended by the declaration", func() bool { return b.isGone("earlier", "node1") })
	})
}

// The API server tells a restore from an attacher's own write: the field manager of the node ID.
func TestRestoredAttachmentOfAnAPIServer(t *testing.T) {
	for manager, held := range map[string]bool{"velero-server": true, "csi-attacher": false} {
		t.Run(manager, func(t *testing.T) {
			w := newWorld(t)
			w.volume("pv1")
			va := fixture.Attachment(kube.AttachmentName(w.name("pv1"), w.driver.Name, w.name("gone")), w.driver.Name, w.name("gone"), w.name("pv1"))
			withFinalizer(w, "id-gone")(va)
			created, err := w.client.StorageV1().VolumeAttachments().Create(t.Context(), va, metav1.CreateOptions{FieldManager: manager})
			must(t, err)
			w.delete(created.Name)
			w.start()
			if held {
				w.until(created.Name, "held", hasDetachError(`"velero-server" wrote it`))
				w.wantCalls()
				return
			}
			w.until(created.Name, "gone", isGone)
			w.wantCalls("Unpublish id-gone")
		})
	}
}

// What another cluster's attacher unpublished is no record of this cluster's.
func TestRestoredRecordOfUnpublishes(t *testing.T) {
	for manager, want := range map[string]string{"velero-server": "", "belay-attacher": `["id-old"]`} {
		va := fixture.Attachment("va", bubbleDriver, "node1", "v")
		va.Annotations = map[string]string{kube.NodeIDAnnotation: "id-node1", kube.UnpublishedFromAnnotation: `["id-old"]`}
		owns(va, manager, kube.NodeIDAnnotation)
		if got := trimAnnotations(va)[kube.UnpublishedFromAnnotation]; got != want {
			t.Errorf("%s: %q, want %q", manager, got, want)
		}
	}
}
