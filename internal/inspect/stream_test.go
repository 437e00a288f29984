package inspect

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// served returns a reader of a server that has the objects, of which it serves every list as JSON, and each by its name.
func served(t *testing.T, objects ...apiruntime.Object) *Reader {
	t.Helper()
	lists := map[string][]apiruntime.Object{}
	for _, object := range objects {
		gvks, _, err := scheme.Scheme.ObjectKinds(object)
		if err != nil {
			t.Fatal(err)
		}
		object.GetObjectKind().SetGroupVersionKind(gvks[0])
		resource, _ := meta.UnsafeGuessKindToResource(gvks[0])
		lists[resource.Resource] = append(lists[resource.Resource], object)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var answer any
		if all := lists[path.Base(r.URL.Path)]; len(all) > 0 {
			kind := all[0].GetObjectKind().GroupVersionKind().Kind + "List"
			answer = map[string]any{"kind": kind, "metadata": map[string]any{}, "items": all}
		} else if named := lists[path.Base(path.Dir(r.URL.Path))]; len(named) > 0 {
			answer = named[max(0, slices.IndexFunc(named, func(o apiruntime.Object) bool {
				m, err := meta.Accessor(o)
				return err == nil && m.GetName() == path.Base(r.URL.Path)
			}))]
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	r, err := New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// page is a list of pods as the API server sends it.
func page(tb testing.TB, inProtobuf bool, list *corev1.PodList) []byte {
	tb.Helper()
	list.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "PodList"})
	var out bytes.Buffer
	var err error
	if inProtobuf {
		err = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(list, &out)
	} else {
		err = json.NewEncoder(&out).Encode(list)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

func podsOf(body []byte) (pods []corev1.Pod, next string, err error) {
	next, err = readPage(bufio.NewReader(bytes.NewReader(body)), func(pod *corev1.Pod) { pods = append(pods, *pod) })
	return pods, next, err
}

// TestReadPage: a page has the same objects in both encodings, and what ends too early is no page.
func TestReadPage(t *testing.T) {
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "5", Continue: "next", RemainingItemCount: new(int64(7))}}
	for i := range 3 {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", i), Labels: map[string]string{"a": strings.Repeat("b", i*100)}}}
		list.Items = append(list.Items, pod)
	}
	for _, inProtobuf := range []bool{true, false} {
		body := page(t, inProtobuf, list)
		pods, next, err := podsOf(body)
		if err != nil || next != "next" || !reflect.DeepEqual(pods, list.Items) {
			t.Errorf("protobuf %t: read %d pods, then %q (%v)", inProtobuf, len(pods), next, err)
		}
		for end := range len(body) - len("\n") - 6 { // what follows the list in protobuf's envelope is not read
			if _, _, err := podsOf(body[:end]); err == nil {
				t.Errorf("protobuf %t: the first %d of %d bytes are a page", inProtobuf, end, len(body))
			}
		}
		other := page(t, inProtobuf, &corev1.PodList{})
		if pods, _, err := podsOf(bytes.Replace(other, []byte("PodList"), []byte("Status!"), 1)); err == nil {
			t.Errorf("protobuf %t: another answer is a page of %d pods", inProtobuf, len(pods))
		}
		if pods, next, err := podsOf(page(t, inProtobuf, &corev1.PodList{})); err != nil || next != "" || len(pods) > 0 {
			t.Errorf("protobuf %t: an empty page has %d pods, then %q (%v)", inProtobuf, len(pods), next, err)
		}
	}
}

// TestManagedFieldsAreNotRead: of a page in protobuf, only VolumeAttachments have them; nothing else of an object changes.
func TestManagedFieldsAreNotRead(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "a", Labels: map[string]string{"b": "c"}, Finalizers: []string{"d"}}
	for _, manager := range []string{"first", "second"} {
		meta.ManagedFields = append(meta.ManagedFields, metav1.ManagedFieldsEntry{Manager: manager, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)})
	}
	pod := corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{NodeName: "e"}}
	pods, _, err := podsOf(page(t, true, &corev1.PodList{Items: []corev1.Pod{pod}}))
	if pod.ManagedFields = nil; err != nil || !reflect.DeepEqual(pods, []corev1.Pod{pod}) {
		t.Errorf("read %+v (%v), want %+v", pods, err, pod)
	}
	list := &storagev1.VolumeAttachmentList{Items: []storagev1.VolumeAttachment{{ObjectMeta: meta}}}
	list.SetGroupVersionKind(storagev1.SchemeGroupVersion.WithKind("VolumeAttachmentList"))
	var body bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(list, &body); err != nil {
		t.Fatal(err)
	}
	var read []storagev1.VolumeAttachment
	_, err = readPage(bufio.NewReader(&body), func(va *storagev1.VolumeAttachment) { read = append(read, *va) })
	if err != nil || !reflect.DeepEqual(read, list.Items) {
		t.Errorf("read %+v (%v), want %+v", read, err, list.Items)
	}
}

// FuzzReadPage: whatever is read as a page, it ends, and an object in it has been decoded.
func FuzzReadPage(f *testing.F) {
	list := &corev1.PodList{ListMeta: metav1.ListMeta{Continue: "next"}, Items: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}}
	f.Add(page(f, true, list))
	f.Add(page(f, false, list))
	f.Add([]byte("k8s\x00\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x12\xff\xff\xff\xff\x0f"))
	f.Fuzz(func(t *testing.T, body []byte) {
		if pods, _, err := podsOf(body); err == nil && len(pods) > len(body) {
			t.Errorf("%d pods in %d bytes", len(pods), len(body))
		}
	})
}

// largePods are a page of pods that a tenant made as large as the API server accepts them: with as many volumes as fit. They are made as they are
// read.
type largePods struct {
	rest []byte
	one  []byte
	left int
}

func newLargePods(t *testing.T, n int) *largePods {
	t.Helper()
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "large"}}
	for i := range 40_000 {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("v", i), VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("c", i)},
		}})
	}
	message, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	l := &largePods{one: slices.Concat(binary.AppendUvarint([]byte{fieldItems<<3 | 2}, uint64(len(message))), message), left: n}
	kind := "\x0a\x09\x12\x07PodList" // fieldTypeMeta, and in it the kind
	l.rest = binary.AppendUvarint(append(append(slices.Clone(protobufPrefix), kind...), fieldRaw<<3|2), uint64(n*len(l.one)))
	return l
}

// Read implements io.Reader.
func (l *largePods) Read(p []byte) (int, error) {
	if len(l.rest) == 0 {
		if l.left == 0 {
			return 0, io.EOF
		}
		l.rest, l.left = l.one, l.left-1
	}
	n := copy(p, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

// TestLargePagesTakeNoMemory: of a page, one object at a time is in memory. A page of these 30 pods would take 400 MiB, and one of 4,000 more than
// any computer of an administrator has.
func TestLargePagesTakeNoMemory(t *testing.T) {
	const pods, bound = 30, 64 << 20
	r := (&Reader{}).start()
	body := newLargePods(t, pods)
	var most, before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	seen := map[string]int{}
	if _, err := readPage(bufio.NewReader(body), func(pod *corev1.Pod) {
		seen[pod.Name]++
		cut(pod)
		r.keepPod(&r.into, pod)
		runtime.GC()
		var now runtime.MemStats
		if runtime.ReadMemStats(&now); now.HeapAlloc > most.HeapAlloc {
			most = now
		}
	}); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(seen, map[string]int{"large": pods}) {
		t.Errorf("read %v", seen)
	}
	if held := int64(most.HeapAlloc) - int64(before.HeapAlloc); held > bound {
		t.Errorf("%d MiB are held while the page is read, want at most %d", held>>20, bound>>20)
	}
}
