package attacher

import (
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestCSIHandlerAttachRequest sends each kind of volume through a real attach
// and compares what the driver received, and that the unpublish matches. The
// names are those of upstream's cases.
func TestCSIHandlerAttachRequest(t *testing.T) {
	modes := func(m ...corev1.PersistentVolumeAccessMode) func(*corev1.PersistentVolume) {
		return func(pv *corev1.PersistentVolume) { pv.Spec.AccessModes = m }
	}
	secret := func(name string) func(*corev1.PersistentVolume) {
		return func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Name: name, Namespace: "default"}
		}
	}
	block := corev1.PersistentVolumeBlock
	mount := func(fs string, flags ...string) *csispec.VolumeCapability_Mount {
		return &csispec.VolumeCapability_Mount{Mount: &csispec.VolumeCapability_MountVolume{FsType: fs, MountFlags: flags}}
	}
	const multiWriter = csispec.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
	const attach = csispec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME
	tests := map[string]struct {
		capabilities []csispec.ControllerServiceCapability_RPC_Type
		volume       func(*corev1.PersistentVolume)
		secret       map[string][]byte
		fsType       string // --default-fstype
		want         func(*csispec.ControllerPublishVolumeRequest)
	}{
		"volume added": {},
		"readOnly volume": {volume: func(pv *corev1.PersistentVolume) { pv.Spec.CSI.ReadOnly = true },
			want: func(r *csispec.ControllerPublishVolumeRequest) { r.Readonly = true }},
		"readOnly volume, driver without PUBLISH_READONLY": {capabilities: []csispec.ControllerServiceCapability_RPC_Type{attach},
			volume: func(pv *corev1.PersistentVolume) { pv.Spec.CSI.ReadOnly = true }},
		"volume added, driver without PUBLISH_READONLY": {capabilities: []csispec.ControllerServiceCapability_RPC_Type{attach}},
		"volume with attributes": {volume: func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeAttributes = map[string]string{"a": "b"} },
			want: func(r *csispec.ControllerPublishVolumeRequest) { r.VolumeContext = map[string]string{"a": "b"} }},
		"volume with secrets": {volume: secret("s1"), secret: map[string][]byte{"foo": []byte("bar")},
			want: func(r *csispec.ControllerPublishVolumeRequest) { r.Secrets = map[string]string{"foo": "bar"} }},
		"volume with empty secrets": {volume: secret("s1"), secret: map[string][]byte{}},
		"filesystem and mount options": {volume: func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.FSType, pv.Spec.MountOptions = "xfs", []string{"noatime"}
		}, fsType: "ext4", want: func(r *csispec.ControllerPublishVolumeRequest) {
			r.VolumeCapability.AccessType = mount("xfs", "noatime")
		}},
		"default filesystem": {fsType: "ext4", want: func(r *csispec.ControllerPublishVolumeRequest) { r.VolumeCapability.AccessType = mount("ext4") }},
		"raw block": {fsType: "ext4", volume: func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = &block },
			want: func(r *csispec.ControllerPublishVolumeRequest) {
				r.VolumeCapability.AccessType = &csispec.VolumeCapability_Block{Block: &csispec.VolumeCapability_BlockVolume{}}
			}},
		"RWX": {volume: modes(corev1.ReadWriteMany, corev1.ReadWriteOnce), want: func(r *csispec.ControllerPublishVolumeRequest) {
			r.VolumeCapability.AccessMode.Mode = csispec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		}},
		"ROX": {volume: modes(corev1.ReadOnlyMany), want: func(r *csispec.ControllerPublishVolumeRequest) {
			r.VolumeCapability.AccessMode.Mode = csispec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
		}},
		"RWOP": {volume: modes(corev1.ReadWriteOncePod)},
		"RWOP, driver with SINGLE_NODE_MULTI_WRITER": {capabilities: []csispec.ControllerServiceCapability_RPC_Type{attach, multiWriter},
			volume: modes(corev1.ReadWriteOncePod), want: func(r *csispec.ControllerPublishVolumeRequest) {
				r.VolumeCapability.AccessMode.Mode = csispec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
			}},
		"RWO, driver with SINGLE_NODE_MULTI_WRITER": {capabilities: []csispec.ControllerServiceCapability_RPC_Type{attach, multiWriter},
			want: func(r *csispec.ControllerPublishVolumeRequest) {
				r.VolumeCapability.AccessMode.Mode = csispec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
			}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for kind, inline := range map[string]bool{"of a PersistentVolume": false, "inline": true} {
				if inline && name == "raw block" {
					continue // refused by the API server
				}
				t.Run(kind, func(t *testing.T) {
					w := newWorld(t, tt.capabilities...)
					w.node("node1")
					pv := csiPV(w, "pv1")
					if tt.volume != nil {
						tt.volume(pv)
					}
					if tt.secret != nil {
						pv.Spec.CSI.ControllerPublishSecretRef.Name = w.name("s1")
						w.secret("s1", tt.secret)
					}
					w.start(func(c *Config) { c.DefaultFSType = tt.fsType })
					var va string
					if inline {
						va = w.attachment("pv1", "node1", func(va *storagev1.VolumeAttachment) {
							pv.Spec.Capacity = nil // refused by the API server here
							va.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &pv.Spec}
						})
					} else {
						w.volume("pv1", func(stored *corev1.PersistentVolume) { stored.Spec = pv.Spec })
						va = w.attachment("pv1", "node1")
					}
					w.until(va, "attached", isAttached)
					w.delete(va)
					w.until(va, "gone", isGone)
					want := &csispec.ControllerPublishVolumeRequest{VolumeId: pv.Spec.CSI.VolumeHandle, NodeId: "id-node1",
						VolumeCapability: &csispec.VolumeCapability{AccessType: mount(""),
							AccessMode: &csispec.VolumeCapability_AccessMode{Mode: csispec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}}
					if tt.want != nil {
						tt.want(want)
					}
					calls := w.driver.Calls()
					if len(calls) != 2 {
						t.Fatalf("calls: %v", w.driver.Made())
					}
					if diff := cmp.Diff(want, calls[0].Request, protocmp.Transform()); diff != "" {
						t.Errorf("publish (-want +got):\n%s", diff)
					}
					wantUnpublish := call{Method: "Unpublish", Volume: want.VolumeId, Node: "id-node1", Secrets: want.Secrets}
					if diff := cmp.Diff(wantUnpublish, calls[1], cmpopts.IgnoreFields(call{}, "Request", "Socket", "At")); diff != "" {
						t.Errorf("unpublish (-want +got):\n%s", diff)
					}
				})
			}
		})
	}
}

func (w *world) secret(name string, data map[string][]byte) {
	w.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: w.name(name), Namespace: "default"}, Data: data}
	if _, err := w.client.CoreV1().Secrets("default").Create(w.t.Context(), s, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}
