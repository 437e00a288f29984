package attacher

import (
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
)

// FuzzRecordedSecret reads arbitrary text from the annotation that records the Secret of a published volume. A recorded
// Secret is read back unchanged, and no text refers to a Secret of another namespace than the one it names.
func FuzzRecordedSecret(f *testing.F) {
	for _, text := range []string{"", "/", "ns/name", "ns/", "/name", "ns/a/b", "name"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{kube.PublishSecretAnnotation: text}}}
		if secret := recordedSecret(va); secret != nil && secret.Namespace+"/"+secret.Name != text {
			t.Fatalf("%q is read as %q/%q", text, secret.Namespace, secret.Name)
		}
	})
}

// FuzzTrimAnnotations: of any annotations the cache keeps those that are read, and a change of one of belay's own
// annotations that is not read changes nothing.
func FuzzTrimAnnotations(f *testing.F) {
	f.Add(kube.NodeIDAnnotation, "id")
	f.Add(kube.LeadingSinceAnnotation, "2026-01-01T12:00:00Z")
	f.Add("example.com/a", "")
	f.Add(foreignDigest, "forged")
	f.Fuzz(func(t *testing.T, name, value string) {
		with := func(value string) map[string]string {
			return trimAnnotations(&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{name: value}}})
		}
		kept, changed := with(value), with(value+"x")
		switch name {
		case kube.NodeIDAnnotation, kube.PublishSecretAnnotation, kube.DetachRequestedAnnotation:
			if kept[name] != value {
				t.Fatalf("%s=%q is kept as %q", name, value, kept[name])
			}
			return
		}
		same := kept[foreignDigest] == changed[foreignDigest] && len(kept) == len(changed)
		if own := kube.IsOwnAnnotation(name); own != same {
			t.Fatalf("a change of %q, belay's own %v: kept %v, then %v", name, own, kept, changed)
		}
		if kube.IsOwnAnnotation(name) && len(kept) > 0 {
			t.Fatalf("%s=%q is kept: %v", name, value, kept)
		}
	})
}
