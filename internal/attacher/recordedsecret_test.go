package attacher

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
)

// secret makes a Secret whose key is its name.
func (b *bubble) secret(name string) {
	b.api.put("secrets", &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Data: map[string][]byte{"key": []byte(name)}})
}

// volumeWithSecret makes a PersistentVolume, or another one of its name and handle.
func (b *bubble) volumeWithSecret(name, secret string) {
	b.volume(name)
	o, _ := b.api.get("persistentvolumes", name)
	pv := o.(*corev1.PersistentVolume).DeepCopy()
	pv.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Namespace: "default", Name: secret}
	b.api.put("persistentvolumes", pv)
}

// The Secret that is recorded on a VolumeAttachment is the one of its unpublish, while its PersistentVolume exists too. A person may name another
// one: that ends the back-off (rook#16956).
func TestRecordedSecretIsUsed(t *testing.T) {
	tests := map[string]struct {
		change func(b *bubble)
		want   string
	}{
		"the Secret was deleted, and a person names another one": {func(b *bubble) {
			b.api.remove("secrets", "old")
			b.detach("v", "node1")
			b.pass(10 * time.Minute)
			b.secret("new")
			b.annotate("v", "node1", kube.PublishSecretAnnotation, "default/new")
		}, "new"},
		"a person names another one while the volume is attached, and another client removes the finalizer": {func(b *bubble) {
			b.secret("new")
			b.annotate("v", "node1", kube.PublishSecretAnnotation, "default/new")
			b.change("v", "node1", func(va *storagev1.VolumeAttachment) { va.Finalizers = nil })
			b.pass(time.Second)
			b.detach("v", "node1")
		}, "new"},
		"the PersistentVolume was made again with another one": {func(b *bubble) {
			b.secret("new")
			b.volumeWithSecret("v", "new")
			b.pass(time.Second)
			b.detach("v", "node1")
		}, "old"},
		"the PersistentVolume was made again with another one, and the earlier Secret is gone": {func(b *bubble) {
			b.secret("new")
			b.volumeWithSecret("v", "new")
			b.api.remove("secrets", "old")
			b.pass(time.Second)
			b.detach("v", "node1")
		}, "new"},
		"the record names no Secret": {func(b *bubble) {
			b.annotate("v", "node1", kube.PublishSecretAnnotation, "old")
			b.detach("v", "node1")
		}, "old"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 10, func(b *bubble) {
				b.secret("old")
				b.volumeWithSecret("v", "old")
				b.attach("v", "node1")
				b.pass(time.Second)
				tt.change(b)
				b.pass(time.Second)
				if !b.isGone("v", "node1") {
					t.Fatalf("not detached: %v, %+v", b.received("v"), b.attachment("v", "node1").Status)
				}
				calls := b.driver.Calls()
				if last := calls[len(calls)-1]; last.Method != "Unpublish" || last.Secrets["key"] != tt.want {
					t.Errorf("%s with Secret %q, want an unpublish with %q", last.Method, last.Secrets["key"], tt.want)
				}
			})
		})
	}
}

// A volume that is not attached yet is published with its PersistentVolume's Secret, which is recorded before the call.
func TestSecretOfAPublishIsRecordedFirst(t *testing.T) {
	inBubble(t, 10, func(b *bubble) {
		b.secret("old")
		b.secret("new")
		b.volumeWithSecret("v", "old")
		var recorded []string
		b.answers(func(_ context.Context, c call) error {
			recorded = append(recorded, fmt.Sprint(c.Secrets["key"], " recorded as ", b.attachment("v", "node1").Annotations[kube.PublishSecretAnnotation]))
			if c.Secrets["key"] == "old" {
				return status.Error(codes.Unauthenticated, "expired")
			}
			return nil
		})
		b.attach("v", "node1")
		b.pass(time.Minute)
		b.volumeWithSecret("v", "new")
		b.within(time.Second, "attached", func() bool { return b.isAttached("v", "node1") })
		if last := recorded[len(recorded)-1]; last != "new recorded as default/new" {
			t.Errorf("published with Secret %s", last)
		}
	})
}
