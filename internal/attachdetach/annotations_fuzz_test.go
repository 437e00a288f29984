package attachdetach

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
)

// FuzzRequestTimes reads arbitrary text from the annotation that stores the time of a request. Any client with
// permission to patch the object can write it: text that cannot be read is no request, and text that can be read is
// written and read again as the same moment.
func FuzzRequestTimes(f *testing.F) {
	for _, text := range []string{"", "now", "2026-01-01T12:00:00Z", "2026-01-01T12:00:00.123456789+05:30", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59Z"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{kube.DetachRequestedAnnotation: text}}}
		at := kube.DetachRequested(va)
		if at.IsZero() {
			return
		}
		if at.UTC().Year() < 0 || at.UTC().Year() > 9999 {
			return // RFC 3339 cannot write it; a zone made it
		}
		if again := kube.ParseTime(writeTime(at)); !again.Equal(at) {
			t.Fatalf("%q is %v, written and read again %v", text, at, again)
		}
	})
}

// FuzzRequestsOnANode reads any text as the requests stored on a Node. What cannot be read is none, and each that can is a time.
func FuzzRequestsOnANode(f *testing.F) {
	for _, text := range []string{"", "null", "{}", "[]", `{"kubernetes.io/fc/x":"2026-01-01T12:00:00Z"}`, `{"a":1}`, `{"a":"b","a":"c"}`, "\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{kube.DetachesRequestedAnnotation: text}}}
		requests := kube.DetachesRequested(node)
		if !json.Valid([]byte(text)) && len(requests) > 0 {
			t.Fatalf("%q gives %v", text, requests)
		}
		for name, since := range requests {
			if at := kube.ParseTime(since); at.After(time.Date(10000, 1, 2, 0, 0, 0, 0, time.UTC)) {
				t.Fatalf("%q of %q is %v", since, name, at)
			}
			kube.ParseUniqueVolumeName(name)
		}
	})
}

// FuzzOwnVolume reads any handle from the annotation of a VolumeAttachment. It is believed only where the name of the object, which
// no client can change, was computed from that very handle.
func FuzzOwnVolume(f *testing.F) {
	f.Add("vol-1", "vol-1", "driver", "node-1")
	f.Add("vol-1", "vol-2", "driver", "node-1")
	f.Add("vol-1driver", "vol-1", "driver", "node-1")
	f.Fuzz(func(t *testing.T, named, annotated, driver, node string) {
		va := &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{
				Name: kube.AttachmentName(named, driver, node), Annotations: map[string]string{kube.VolumeHandleAnnotation: annotated},
			},
			Spec: storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: node},
		}
		got, believed := kube.VolumeOfAttachment(va)
		if believed != (named == annotated) {
			t.Fatalf("an object named for %q with the annotation %q: believed %v", named, annotated, believed)
		}
		if believed && got != (key{Driver: driver, Handle: annotated}) {
			t.Fatalf("got %+v", got)
		}
	})
}
