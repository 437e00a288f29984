package attacher

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
)

// owns makes a field manager the only owner of an annotation, as the API server records it.
func owns(va *storagev1.VolumeAttachment, manager, annotation string) {
	fields := `{"f:metadata":{"f:annotations":{"f:` + annotation + `":{}}}}`
	va.ManagedFields = append(va.ManagedFields, metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)})
}

// declare writes a declaration as the command does.
func (b *bubble) declare(volume, node string, change ...func(*kube.Declaration, *storagev1.VolumeAttachment)) {
	b.change(volume, node, func(va *storagev1.VolumeAttachment) {
		d := kube.Declaration{UID: va.UID, ResourceVersion: va.ResourceVersion, NodeID: va.Annotations[kube.NodeIDAnnotation], By: "ada", Reason: "terminated", At: time.Now()}
		owns(va, kube.DeclarationManager, kube.DeclaredGoneAnnotation)
		for _, f := range change {
			f(&d, va)
		}
		text, err := json.Marshal(d)
		must(b.t, err)
		metav1.SetMetaDataAnnotation(&va.ObjectMeta, kube.DeclaredGoneAnnotation, string(text))
	})
}

// A person's word that the machine and its attachment are gone ends the wait of an attachment that is being deleted, without a restart, and another node
// gets the volume. Any other word ends nothing.
func TestDeclaredGone(t *testing.T) {
	type edit = func(*kube.Declaration, *storagev1.VolumeAttachment)
	tests := map[string]struct {
		before func(b *bubble)
		edit   edit
		ends   bool
	}{
		"the machine is gone": {nil, nil, true},
		"a person edited it": {nil, func(_ *kube.Declaration, va *storagev1.VolumeAttachment) {
			va.ManagedFields[0].Manager = "kubectl-edit"
		}, false},
		"nobody is known for it": {nil, func(_ *kube.Declaration, va *storagev1.VolumeAttachment) { va.ManagedFields = nil }, false},
		"another node ID":        {nil, func(d *kube.Declaration, _ *storagev1.VolumeAttachment) { d.NodeID = "id-node2" }, false},
		"of an earlier object":   {nil, func(d *kube.Declaration, _ *storagev1.VolumeAttachment) { d.UID = "earlier" }, false},
		"two days old":           {nil, func(d *kube.Declaration, _ *storagev1.VolumeAttachment) { d.At = d.At.Add(-48 * time.Hour) }, false},
		"of the future":          {nil, func(d *kube.Declaration, _ *storagev1.VolumeAttachment) { d.At = d.At.Add(time.Hour) }, false},
		"the node is back":       {func(b *bubble) { b.node("node1", "id-node1") }, nil, false},
		"a node has that ID":     {func(b *bubble) { b.node("node3", "id-node1") }, nil, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 10, func(b *bubble) {
				b.answers(func(_ context.Context, c call) error {
					if c.Node == "id-node1" && c.Method == "Unpublish" {
						return status.Error(codes.NotFound, "no such machine")
					}
					return nil
				})
				b.attach("v", "node1")
				b.pass(time.Second)
				b.node("node1", "")
				b.detach("v", "node1")
				b.attach("v", "node2")
				b.pass(10 * time.Minute)
				if tt.before != nil {
					tt.before(b)
					b.pass(time.Second)
				}
				var edits []edit
				if tt.edit != nil {
					edits = append(edits, tt.edit)
				}
				b.declare("v", "node1", edits...)
				b.pass(time.Second)
				if b.isGone("v", "node1") != tt.ends || b.isAttached("v", "node2") != tt.ends {
					t.Errorf("gone %v, attached elsewhere %v, want %v", b.isGone("v", "node1"), b.isAttached("v", "node2"), tt.ends)
				}
				before := len(b.received("v"))
				b.pass(20 * time.Minute)
				if after := len(b.received("v")); tt.ends && after != before {
					t.Errorf("%d calls after the end", after-before)
				}
			})
		})
	}
}

// What was published to another node ID than the declared one is unpublished there, and a declaration on a wanted attachment ends nothing.
func TestDeclaredGoneIsForOneNodeID(t *testing.T) {
	inBubble(t, 10, func(b *bubble) {
		b.attach("v", "node1", worked, attached)
		b.node("node1", "id-new")
		b.answers(func(_ context.Context, c call) error {
			if c.Node == "id-node1" {
				return status.Error(codes.NotFound, "no such machine")
			}
			return nil
		})
		b.declare("v", "node1")
		b.pass(time.Minute)
		if b.isGone("v", "node1") || len(b.attachment("v", "node1").Finalizers) != 1 {
			t.Fatal("a declaration on an attachment that is wanted ended it")
		}
		b.detach("v", "node1")
		b.pass(time.Minute)
		if calls := strings.Join(b.received("v"), ", "); !b.isGone("v", "node1") || calls != "Unpublish id-new" {
			t.Errorf("gone %v after %s", b.isGone("v", "node1"), calls)
		}
	})
}

// The log names who made the declaration, and why. The status of an object that stays for another finalizer says detached.
func TestDeclaredGoneIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.answers(func(context.Context, call) error { return status.Error(codes.NotFound, "no such machine") })
		b.attach("v", "node1", worked, attached, heldByOthers)
		b.node("node1", "")
		defer b.start()()
		b.detach("v", "node1")
		b.pass(time.Minute)
		b.declare("v", "node1")
		b.pass(time.Second)
		lines := b.log.of("Detach ended without the driver's confirmation, because a person declared the machine and the attachment gone")
		if len(lines) != 1 || lines[0]["declaredBy"] != "ada" || lines[0]["declaredReason"] != "terminated" || lines[0]["nodeID"] != "id-node1" {
			t.Errorf("logged: %v", lines)
		}
		if va := b.attachment("v", "node1"); len(va.Finalizers) != 1 || va.Status.Attached || va.Status.DetachError != nil {
			t.Errorf("finalizers %v, status %+v", va.Finalizers, va.Status)
		}
	})
}
