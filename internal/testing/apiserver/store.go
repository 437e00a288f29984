package apiserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"testing"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// perTransaction is the number of objects that etcd stores at once; its default limit is 128.
const perTransaction = 100

// Store writes objects to etcd, as the API server would have stored them: for so many that to create them through it takes too long.
// Nothing checks or completes them: they must have UIDs. produce calls store with each object.
func (s *Server) Store(tb testing.TB, produce func(store func(client.Object))) {
	tb.Helper()
	group, ctx := errgroup.WithContext(tb.Context())
	group.SetLimit(4)
	var puts []put
	flush := func() {
		if len(puts) == 0 {
			return
		}
		body, err := json.Marshal(map[string]any{"success": puts})
		if err != nil {
			tb.Fatal(err)
		}
		puts = nil
		group.Go(func() error {
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.plane.Etcd.URL.String()+"/v3/kv/txn", bytes.NewReader(body))
			if err != nil {
				return err
			}
			reply, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			defer func() { _ = reply.Body.Close() }()
			text, err := io.ReadAll(reply.Body)
			if reply.StatusCode != http.StatusOK {
				err = fmt.Errorf("etcd: %s: %s", reply.Status, text)
			}
			return err
		})
	}
	produce(func(o client.Object) {
		p, err := encode(o)
		if err != nil {
			tb.Fatal(err)
		}
		if puts = append(puts, p); len(puts) == perTransaction {
			flush()
		}
	})
	flush()
	if err := group.Wait(); err != nil {
		tb.Fatal(err)
	}
}

// put is an operation of a transaction, as etcd's JSON gateway takes it.
type put struct {
	Put struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	} `json:"requestPut"`
}

// folders are where the API server stores objects of a kind.
var folders = map[string]string{
	"Pod": "pods", "PersistentVolume": "persistentvolumes", "PersistentVolumeClaim": "persistentvolumeclaims", "Event": "events",
	"Node": "minions", "Lease": "leases", "Namespace": "namespaces",
	"VolumeAttachment": "volumeattachments", "CSINode": "csinodes", "CSIDriver": "csidrivers",
}

func encode(o client.Object) (put, error) {
	var p put
	kind, err := apiutil.GVKForObject(o, clientscheme.Scheme)
	if err != nil {
		return p, err
	}
	serializer := protobuf.NewSerializer(clientscheme.Scheme, clientscheme.Scheme)
	value, err := runtime.Encode(clientscheme.Codecs.EncoderForVersion(serializer, kind.GroupVersion()), o)
	if err != nil {
		return p, err
	}
	folder := folders[kind.Kind]
	if folder == "" {
		return p, fmt.Errorf("it is unknown where objects of kind %s are stored", kind.Kind)
	}
	p.Put.Key, p.Put.Value = []byte(path.Join("/registry", folder, o.GetNamespace(), o.GetName())), value
	return p, nil
}
