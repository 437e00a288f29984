package node_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"belay.dev/belay/internal/testing/wait"
)

// deletePod asks again after an error, as virtual-kubelet does.
func deletePod(ctx context.Context, p *Provider, pod *corev1.Pod) error {
	return again(ctx, p.DeletePod, pod)
}

// updatePod asks again after an error, as virtual-kubelet does.
func updatePod(ctx context.Context, p *Provider, pod *corev1.Pod) error {
	return again(ctx, p.UpdatePod, pod)
}

func again(ctx context.Context, change func(context.Context, *corev1.Pod) error, pod *corev1.Pod) error {
	err := change(ctx, pod)
	for end := time.Now().Add(wait.Timeout); err != nil && time.Now().Before(end); err = change(ctx, pod) {
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

// exampleCluster plays what the example needs of a cluster: one claim of one
// volume, and a driver that needs no attach.
func exampleCluster(root string) (config *rest.Config, _ *exampleDriver, stop func()) {
	driver := "nfs.example.com"
	objects := map[string]any{
		"/api/v1/nodes/edge-1": &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge-1", UID: "n", ResourceVersion: "1"}},
		"/api/v1/nodes":        &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}},
		"/api/v1/namespaces/default/persistentvolumeclaims/data": &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "default", UID: "c"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-1"},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
		"/api/v1/persistentvolumes/pv-1": &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv-1"},
			Spec: corev1.PersistentVolumeSpec{
				ClaimRef:     &corev1.ObjectReference{UID: "c"},
				MountOptions: []string{"hard"},
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					CSI: &corev1.CSIPersistentVolumeSource{
						Driver: driver, VolumeHandle: "share-1", FSType: "nfs", VolumeAttributes: map[string]string{"server": "10.0.0.1"},
					},
				},
			},
		},
		"/apis/storage.k8s.io/v1/csidrivers": &storagev1.CSIDriverList{
			TypeMeta: metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "CSIDriverList"},
			ListMeta: metav1.ListMeta{ResourceVersion: "1"},
			Items: []storagev1.CSIDriver{{
				ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{
					AttachRequired:       new(false),
					VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}, // the API server's default
				},
			}},
		},
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		object, ok := objects[r.URL.Path]
		switch {
		case r.Method == http.MethodPatch:
			object = objects["/api/v1/nodes/edge-1"]
		case r.Method == http.MethodPost:
			object = &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "edge-1"}}
		case r.URL.Query().Has("sendInitialEvents"): // an API server that only lists
			w.WriteHeader(http.StatusUnprocessableEntity)
			object = &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity}
		case r.URL.Query().Has("watch"): // nothing ever changes
			<-r.Context().Done()
			return
		case !ok:
			w.WriteHeader(http.StatusNotFound)
			object = &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound}
		}
		_ = json.NewEncoder(w).Encode(object)
	}))
	plugin := grpc.NewServer()
	node := newExampleDriver(driver)
	registration.RegisterRegistrationServer(plugin, node)
	csi.RegisterNodeServer(plugin, node)
	socket := filepath.Join(root, "plugins_registry", driver+"-reg.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		panic(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		panic(err)
	}
	go func() { _ = plugin.Serve(listener) }()
	return &rest.Config{Host: api.URL}, node, func() {
		plugin.Stop()
		api.CloseClientConnections()
		api.Close()
	}
}

// exampleDriver publishes each volume as a link to the same directory.
type exampleDriver struct {
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer

	name string
	lost atomic.Bool // the storage does not answer
	// One for each call that was refused, and that asked for statistics.
	refused, measured chan struct{}
}

func newExampleDriver(name string) *exampleDriver {
	return &exampleDriver{name: name, refused: make(chan struct{}, 100), measured: make(chan struct{}, 100)}
}

func (d *exampleDriver) lose() { d.lost.Store(true) }
func (d *exampleDriver) find() { d.lost.Store(false) }

// twice returns when a second call has arrived: the agent has processed the answer to the first.
func twice(calls <-chan struct{}) {
	<-calls
	<-calls
}

func note(calls chan<- struct{}) {
	select {
	case calls <- struct{}{}:
	default: // not counted yet
	}
}

func (d *exampleDriver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: d.name, SupportedVersions: []string{"1.0.0"}}, nil
}

func (d *exampleDriver) NotifyRegistrationStatus(context.Context, *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *exampleDriver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "edge-1"}, nil
}

func (d *exampleDriver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	stats := &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_GET_VOLUME_STATS}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{Type: &csi.NodeServiceCapability_Rpc{Rpc: stats}}}}, nil
}

func (d *exampleDriver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if d.lost.Load() {
		note(d.refused)
		return nil, status.Error(codes.Unavailable, "the server of the share does not answer")
	}
	err := os.Symlink(os.TempDir(), r.TargetPath)
	if os.IsExist(err) { // a call may come again
		err = nil
	}
	return &csi.NodePublishVolumeResponse{}, err
}

func (d *exampleDriver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	err := os.Remove(r.TargetPath)
	if os.IsNotExist(err) { // nor need the publish have come to pass
		err = nil
	}
	return &csi.NodeUnpublishVolumeResponse{}, err
}

func (d *exampleDriver) NodeGetVolumeStats(context.Context, *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	note(d.measured)
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: 4096, Used: 1024, Available: 3072}}}, nil
}
