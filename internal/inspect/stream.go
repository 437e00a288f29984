package inspect

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/diagnosis"
)

// pager reads a page of a list, calls use for each object, and returns where the next page begins, or "".
type pager[T any] func(ctx context.Context, options metav1.ListOptions, use func(*T)) (next string, err error)

// pagesOf reads the pages of a resource, of all namespaces for "". Unlike the typed clients, which hold the answer twice and all of its objects once
// (k8s.io/client-go v0.36.3 rest/request.go transformResponse, k8s.io/apimachinery pkg/runtime/serializer/protobuf Decode), it holds one object
// at a time, beside those that use keeps.
func pagesOf[T any](client rest.Interface, resource diagnosis.Resource, namespace string) pager[T] {
	return func(ctx context.Context, options metav1.ListOptions, use func(*T)) (string, error) {
		body, err := client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(string(resource)).
			SpecificallyVersionedParams(&options, scheme.ParameterCodec, schema.GroupVersion{Version: "v1"}).Stream(ctx)
		if err != nil {
			return "", err
		}
		defer func() { _ = body.Close() }()
		next, err := readPage(bufio.NewReaderSize(body, 64<<10), use)
		if err != nil {
			return "", fmt.Errorf("read the list of %s: %w", resource, err)
		}
		return next, nil
	}
}

// readPage reads a list in protobuf or JSON.
func readPage[T any](body *bufio.Reader, use func(*T)) (next string, err error) {
	if start, err := body.Peek(len(protobufPrefix)); err == nil && bytes.Equal(start, protobufPrefix) {
		return readProtobuf(body, use)
	}
	var page struct {
		metav1.TypeMeta
		metav1.ListMeta `json:"metadata"`
		Items           []T `json:"items"`
	}
	if err := json.NewDecoder(body).Decode(&page); err != nil {
		return "", err
	}
	if !isList[T](page.Kind) {
		return "", errNoList
	}
	for i := range page.Items {
		use(&page.Items[i])
	}
	return page.Continue, nil
}

// protobufPrefix is what the API server puts before a message. That is a runtime.Unknown, which has the list in its field 2, and a list has its
// ListMeta in field 1 and its objects in field 2, as all lists of k8s.io/api do (k8s.io/apimachinery v0.36.3
// pkg/runtime/serializer/protobuf/protobuf.go and pkg/runtime/generated.proto; k8s.io/api v0.36.3 core/v1/generated.proto PodList).
var protobufPrefix = []byte("k8s\x00")

const fieldTypeMeta, fieldRaw, fieldListMeta, fieldItems = 1, 2, 1, 2

// isList reports whether a kind is that of a list of T. Another answer, such as a Status, is not an empty list.
func isList[T any](kind string) bool { return kind == reflect.TypeFor[T]().Name()+"List" }

func readProtobuf[T any](body *bufio.Reader, use func(*T)) (next string, err error) {
	m := &messages{body: body}
	if _, err := body.Discard(len(protobufPrefix)); err != nil {
		return "", err
	}
	var what runtime.TypeMeta
	for {
		number, size, err := m.field()
		if err != nil {
			return "", err
		}
		if number == fieldRaw {
			if !isList[T](what.Kind) {
				return "", errNoList
			}
			return readList(m, size, use)
		}
		message, err := m.bytes(size)
		if err == nil && number == fieldTypeMeta {
			err = what.Unmarshal(message)
		}
		if err != nil {
			return "", err
		}
	}
}

func readList[T any](m *messages, size int, use func(*T)) (next string, err error) {
	end := m.read + size
	for m.read < end {
		number, size, err := m.field()
		if err != nil {
			return "", err
		}
		message, err := m.bytes(size)
		if err != nil {
			return "", err
		}
		switch number {
		case fieldListMeta:
			var list metav1.ListMeta
			err = list.Unmarshal(message)
			next = list.Continue
		case fieldItems:
			object := new(T)
			decoder, ok := any(object).(interface{ Unmarshal([]byte) error })
			if !ok {
				return "", fmt.Errorf("%T has no protobuf", object)
			}
			if _, kept := any(object).(*storagev1.VolumeAttachment); !kept {
				hideManagedFields(message)
			}
			if err = decoder.Unmarshal(message); err == nil {
				use(object)
			}
		}
		if err != nil {
			return "", err
		}
	}
	if m.read > end {
		return "", errNoList
	}
	return next, nil
}

// hideManagedFields gives the managed fields of an object a number that no field has: they are up to half of it, and of those that are read in pages
// only a VolumeAttachment keeps them. An object has its ObjectMeta in its field 1, and that has them in its field 17 (k8s.io/apimachinery v0.36.3
// pkg/apis/meta/v1/generated.proto ObjectMeta).
func hideManagedFields(object []byte) {
	number, _, n := protowire.ConsumeTag(object)
	if number != 1 {
		return
	}
	meta, _ := protowire.ConsumeBytes(object[n:])
	for len(meta) > 0 {
		number, _, n := protowire.ConsumeField(meta)
		if n < 0 {
			return // the decoder says what is wrong
		}
		if number == managedFields {
			copy(meta, noField)
		}
		meta = meta[n:]
	}
}

const managedFields = 17

// noField is as long as the tag of managedFields.
var noField = protowire.AppendTag(nil, 2047, protowire.BytesType)

// messages reads protobuf's wire format.
type messages struct {
	body   *bufio.Reader
	read   int // so far
	buffer []byte
}

// field reads the number and the size of a field that has a message, a text or bytes.
func (m *messages) field() (number, size int, err error) {
	tag, err := binary.ReadUvarint(m)
	if err != nil {
		return 0, 0, err
	}
	length, err := binary.ReadUvarint(m)
	switch {
	case err != nil:
		return 0, 0, err
	case tag&7 != 2 || length > math.MaxInt>>1:
		return 0, 0, errNoList
	}
	return int(tag >> 3), int(length), nil
}

// maxObject is more than any object has: etcd stores 1.5 MB by default.
const maxObject = 64 << 20

var errNoList = errors.New("the answer is not a list of these objects")

// bytes reads a field. They are valid until the next call.
func (m *messages) bytes(size int) ([]byte, error) {
	if size > maxObject {
		return nil, errNoList
	}
	m.buffer = slices.Grow(m.buffer[:0], size)[:size]
	n, err := io.ReadFull(m.body, m.buffer)
	m.read += n
	return m.buffer, whole(err)
}

// ReadByte implements io.ByteReader.
func (m *messages) ReadByte() (byte, error) {
	b, err := m.body.ReadByte()
	m.read++
	return b, whole(err)
}

// whole returns the error of a message that ends too early.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
