package attacher

import (
	"slices"
	"strings"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/kubernetes-csi/csi-lib-utils/connection"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	csitrans "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/kube"
)

const gcePD = "pd.csi.storage.gke.io"

// TestSourceOf finds the volume of an attachment, or says why there is none.
func TestSourceOf(t *testing.T) {
	pv := func(name string, source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: source}}
	}
	ofCSI := func(driver, handle string) corev1.PersistentVolumeSource {
		return corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}}
	}
	gce := pv("gce", corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "testpd"}})
	gce.Labels = map[string]string{"topology.kubernetes.io/zone": "testZone"}
	named := func(name string) storagev1.VolumeAttachmentSource {
		return storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}
	}
	inline := func(source corev1.PersistentVolumeSource) storagev1.VolumeAttachmentSource {
		return storagev1.VolumeAttachmentSource{InlineVolumeSpec: &corev1.PersistentVolumeSpec{PersistentVolumeSource: source}}
	}
	both := inline(ofCSI(gcePD, "h"))
	both.PersistentVolumeName = new("mine")
	tests := map[string]struct {
		source       storagev1.VolumeAttachmentSource
		wantHandle   string
		wantMigrated bool
		wantError    string
	}{
		"neither":                 {wantError: "neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source"},
		"both":                    {source: both, wantError: "both InlineCSIVolumeSource and PersistentVolumeName specified in VA source"},
		"inline, not CSI":         {source: inline(corev1.PersistentVolumeSource{}), wantError: "inline volume spec contains nil CSI source"},
		"in-tree volume of a pod": {source: inline(ofCSI(gcePD, "h")), wantHandle: "h", wantMigrated: true},
		"unknown volume":          {source: named("unknown"), wantError: `persistentvolume "unknown" not found`},
		"volume":                  {source: named("mine"), wantHandle: "handle1"},
		"another driver's volume": {source: named("other"), wantError: `belongs to CSI driver "other.example.com"`},
		"volume that is not CSI":  {source: named("nfs"), wantError: "pv spec contained non-csi source that was not migrated"},
		"in-tree volume":          {source: named("gce"), wantHandle: "projects/UNSPECIFIED/zones/testZone/disks/testpd", wantMigrated: true},
	}
	o, err := newObjects(kubernetes.NewForConfigOrDie(&rest.Config{}), gcePD, 0)
	must(t, err)
	for _, volume := range []*corev1.PersistentVolume{
		pv("mine", ofCSI(gcePD, "handle1")), pv("other", ofCSI("other.example.com", "h")), gce,
		pv("nfs", corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}),
	} {
		must(t, o.volumeInformer.GetStore().Add(o.trimVolume(volume)))
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			found, err := o.sourceOf(&storagev1.VolumeAttachment{
				ObjectMeta: metav1.ObjectMeta{Name: "va"}, Spec: storagev1.VolumeAttachmentSpec{Attacher: gcePD, NodeName: "node1", Source: tt.source},
			})
			if tt.wantError != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantError) {
					t.Fatalf("error %v, want %q", err, tt.wantError)
				}
				return
			}
			must(t, err)
			if found.handle != tt.wantHandle || found.migrated != tt.wantMigrated {
				t.Errorf("handle %q, migrated %v, want %q, %v", found.handle, found.migrated, tt.wantHandle, tt.wantMigrated)
			}
		})
	}
}

// A VolumeAttachment without a source, or with two, never comes to be.
func TestInvalidSourcesAreRefused(t *testing.T) {
	w := newWorld(t)
	inline := csiPV(w, "pv1").Spec
	inline.Capacity = nil
	for name, source := range map[string]storagev1.VolumeAttachmentSource{
		"neither": {},
		"both":    {PersistentVolumeName: new("pv1"), InlineVolumeSpec: &inline},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.client.StorageV1().VolumeAttachments().Create(t.Context(), &storagev1.VolumeAttachment{
				ObjectMeta: metav1.ObjectMeta{Name: w.name(name)},
				Spec:       storagev1.VolumeAttachmentSpec{Attacher: w.driver.Name, NodeName: "node1", Source: source},
			}, metav1.CreateOptions{})
			if !apierrors.IsInvalid(err) {
				t.Errorf("create: %v, want that it is invalid", err)
			}
		})
	}
}

// TestAccessModes sends the access modes of a PersistentVolume to drivers with and
// without SINGLE_NODE_MULTI_WRITER.
func TestAccessModes(t *testing.T) {
	const (
		rwo, rox, rwx, rwop = corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOncePod

		singleNode  = csispec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
		onePod      = csispec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		podsOfNode  = csispec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		readers     = csispec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
		writers     = csispec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		multiWriter = csispec.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
	)
	type modes = []corev1.PersistentVolumeAccessMode
	tests := map[string]struct {
		modes     modes
		want      csispec.VolumeCapability_AccessMode_Mode
		wantMulti csispec.VolumeCapability_AccessMode_Mode // where the driver has the capability
		wantError string
	}{
		"RWX":                 {modes{rwx}, writers, writers, ""},
		"RWX and all but pod": {modes{rwx, rox, rwo}, writers, writers, ""},
		"RWX, RWO":            {modes{rwx, rwo}, writers, writers, ""},
		"RWX, ROX":            {modes{rwx, rox}, writers, writers, ""},
		"ROX":                 {modes{rox}, readers, readers, ""},
		"RWO":                 {modes{rwo}, singleNode, podsOfNode, ""},
		"RWOP":                {modes{rwop}, singleNode, onePod, ""},
		"ROX, RWO":            {modes{rox, rwo}, 0, 0, "CSI does not support ReadOnlyMany and ReadWriteOnce on the same PersistentVolume"},
		"RWOP, RWO":           {modes{rwop, rwo}, 0, 0, "Kubernetes does not support use of ReadWriteOncePod with other access modes on the same PersistentVolume"},
		"none":                {modes{}, 0, 0, "unsupported AccessMode combination"},
		"unknown":             {modes{"Never"}, 0, 0, "unsupported AccessMode combination"},
	}
	for _, multi := range []bool{false, true} {
		capabilities := slices.Clone(canAttach)
		if multi {
			capabilities = append(capabilities, multiWriter)
		}
		d := startDriver(t, capabilities...)
		conn, err := connection.Connect(t.Context(), d.Address, nil)
		must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		controller, err := csi.NewController(t.Context(), conn)
		must(t, err)
		for name, tt := range tests {
			if multi {
				name += ", driver with SINGLE_NODE_MULTI_WRITER"
				tt.want = tt.wantMulti
			}
			t.Run(name, func(t *testing.T) {
				before := len(d.Calls())
				_, err := controller.Publish(t.Context(), csi.PublishRequest{VolumeHandle: "h", NodeID: "n", AccessModes: tt.modes})
				calls := d.Calls()[before:]
				if tt.wantError != "" {
					if err == nil || !strings.Contains(err.Error(), tt.wantError) || len(calls) > 0 {
						t.Errorf("error %v after %d calls, want %q and none", err, len(calls), tt.wantError)
					}
					if said := controller.CheckPublish(tt.modes); cmp.Diff(err.Error(), said.Error()) != "" {
						t.Errorf("it was said before that %v", said)
					}
					return
				}
				if err != nil || len(calls) != 1 {
					t.Fatalf("error %v, %d calls", err, len(calls))
				}
				if got := calls[0].Request.(*csispec.ControllerPublishVolumeRequest).GetVolumeCapability().GetAccessMode().GetMode(); got != tt.want {
					t.Errorf("access mode %v, want %v", got, tt.want)
				}
			})
		}
	}
}

// TestMayRelease tells when our finalizer may have to come off a PersistentVolume.
func TestMayRelease(t *testing.T) {
	w := newWorld(t)
	w.driver.Name = gcePD
	a, err := New(Config{Client: w.client, Driver: gcePD, WorkerThreads: 1, Controller: w.controller()})
	must(t, err)
	ours, others := kube.AttacherFinalizer(gcePD), kube.AttacherFinalizer("other.example.com")
	tests := map[string]struct {
		finalizer  string
		deleting   bool
		inTree     bool
		migratedTo string
		want       bool
	}{
		"in use":                                         {finalizer: ours},
		"being deleted":                                  {finalizer: ours, deleting: true, want: true},
		"without our finalizer":                          {deleting: true},
		"without our finalizer, in-tree":                 {deleting: true, inTree: true, migratedTo: gcePD},
		"another driver's":                               {finalizer: others, deleting: true},
		"in-tree, in use":                                {finalizer: ours, inTree: true, migratedTo: gcePD},
		"in-tree, being deleted":                         {finalizer: ours, inTree: true, migratedTo: gcePD, deleting: true, want: true},
		"given back to the in-tree plugin":               {finalizer: ours, inTree: true, want: true},
		"given to another driver":                        {finalizer: ours, inTree: true, migratedTo: "other.example.com", want: true},
		"a CSI volume with an annotation of no meaning ": {finalizer: ours, migratedTo: "other.example.com"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pv := csiPV(w, "pv1")
			if tt.inTree {
				pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "testpd"}}
			}
			if tt.finalizer != "" {
				pv.Finalizers = []string{"example.com/keep", tt.finalizer}
			}
			if tt.migratedTo != "" {
				pv.Annotations = map[string]string{migratedToAnnotation: tt.migratedTo}
			}
			if tt.deleting {
				pv.DeletionTimestamp = &metav1.Time{}
			}
			if got := a.mayRelease(a.objects.trimVolume(pv)); got != tt.want {
				t.Errorf("may release: %v, want %v", got, tt.want)
			}
		})
	}
}

// The trimmed in-tree volume in the cache leads to the same calls as the whole object: some plugins read labels,
// annotations, the claim or the affinity.
func TestInTreeVolumesOfEveryPlugin(t *testing.T) {
	meta := metav1.ObjectMeta{
		Name: "pv1", UID: "u", ResourceVersion: "1",
		Labels: map[string]string{"topology.kubernetes.io/zone": "us-east-1a", "topology.kubernetes.io/region": "us-east-1", "failure-domain.beta.kubernetes.io/zone": "us-east-1a"},
		Annotations: map[string]string{
			"kubernetes.io/azure-file-resource-group": "group", "openstorage.io/auth-secret-name": "px", "openstorage.io/auth-secret-namespace": "px-ns",
			"pv.kubernetes.io/migrated-to": "any",
		},
	}
	volumes := map[string]corev1.PersistentVolumeSource{
		"AWS EBS":                           {AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://us-east-1a/vol-1", FSType: "xfs", Partition: 2, ReadOnly: true}},
		"GCE PD":                            {GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk", FSType: "ext4", Partition: 1}},
		"Cinder":                            {Cinder: &corev1.CinderPersistentVolumeSource{VolumeID: "vol", FSType: "ext4"}},
		"Azure disk":                        {AzureDisk: &corev1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: "/subscriptions/s/disks/d", CachingMode: new(corev1.AzureDataDiskCachingReadOnly), Kind: new(corev1.AzureManagedDisk)}},
		"Azure file":                        {AzureFile: &corev1.AzureFilePersistentVolumeSource{SecretName: "azure-storage-account-acc-secret", ShareName: "share", SecretNamespace: new("secrets")}},
		"Azure file of the claim's secrets": {AzureFile: &corev1.AzureFilePersistentVolumeSource{SecretName: "azure-storage-account-acc-secret", ShareName: "share"}},
		"vSphere":                           {VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "[ds] kubevols/v.vmdk", FSType: "ext4", StoragePolicyName: "gold"}},
		"Portworx":                          {PortworxVolume: &corev1.PortworxVolumeSource{VolumeID: "vol", FSType: "ext4"}},
	}
	for name, in := range volumes {
		t.Run(name, func(t *testing.T) {
			pv := &corev1.PersistentVolume{ObjectMeta: *meta.DeepCopy(), Spec: corev1.PersistentVolumeSpec{
				PersistentVolumeSource: in, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, MountOptions: []string{"noatime"},
				VolumeMode: new(corev1.PersistentVolumeFilesystem), ClaimRef: &corev1.ObjectReference{Namespace: "claims", Name: "c"},
			}}
			whole, err := csitrans.New().TranslateInTreePVToCSI(klog.Background(), pv)
			must(t, err)
			o, err := newObjects(kubernetes.NewForConfigOrDie(&rest.Config{}), whole.Spec.CSI.Driver, 0)
			must(t, err)
			kept, err := o.sourceOfVolume(o.trimVolume(pv))
			must(t, err)
			want := sourceOfSpec(&whole.Spec, true)
			if diff := cmp.Diff(want.publishRequest("n", "ext4"), kept.publishRequest("n", "ext4"), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("publish request (-whole +kept):\n%s", diff)
			}
			if diff := cmp.Diff(want.identity, kept.identity, cmp.AllowUnexported(identity{})); diff != "" {
				t.Errorf("identity (-whole +kept):\n%s", diff)
			}
		})
	}
}
