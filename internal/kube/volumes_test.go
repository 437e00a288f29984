package kube

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/attachment"
)

var (
	once = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	many = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	read = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
)

// TestVolumesOfPersistentVolumes has the seven migrated plugins, Fibre Channel and iSCSI, and volumes that are not attached. Names
// are those that upstream 1.36.3 computes.
func TestVolumesOfPersistentVolumes(t *testing.T) {
	type source = corev1.PersistentVolumeSource
	zone := map[string]string{corev1.LabelTopologyZone: "europe-west1-b"}
	zones := map[string]string{corev1.LabelTopologyZone: "europe-west1-b__europe-west1-c"}
	for name, tt := range map[string]struct {
		source source
		labels map[string]string
		want   attachment.VolumeKey // none: not attached
		modes  []corev1.PersistentVolumeAccessMode
	}{
		"csi": {
			source: source{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: "h^1"}},
			want:   attachment.VolumeKey{Driver: "d.example.com", Handle: "h^1"},
		},
		"aws": {
			source: source{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://eu-west-1a/vol-1234"}},
			want:   attachment.VolumeKey{Driver: "ebs.csi.aws.com", Handle: "vol-1234"},
		},
		"aws, spoilt": {source: source{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://a/b/c"}}},
		"gce": {
			source: source{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}},
			want:   attachment.VolumeKey{Driver: "pd.csi.storage.gke.io", Handle: "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk"},
		},
		"gce, zonal": {
			source: source{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}}, labels: zone,
			want: attachment.VolumeKey{Driver: "pd.csi.storage.gke.io", Handle: "projects/UNSPECIFIED/zones/europe-west1-b/disks/disk"},
		},
		"gce, regional": {
			source: source{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}}, labels: zones,
			want: attachment.VolumeKey{Driver: "pd.csi.storage.gke.io", Handle: "projects/UNSPECIFIED/regions/europe-west1/disks/disk"},
		},
		"azure disk": {
			source: source{AzureDisk: &corev1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: "/subscriptions/s/disks/d"}},
			want:   attachment.VolumeKey{Driver: "disk.csi.azure.com", Handle: "/subscriptions/s/disks/d"},
		},
		"azure file": {
			source: source{AzureFile: &corev1.AzureFilePersistentVolumeSource{SecretName: "azure-storage-account-acct-secret", ShareName: "share"}},
			want:   attachment.VolumeKey{Driver: "file.csi.azure.com", Handle: "#acct#share#pv#team"},
		},
		"cinder": {
			source: source{Cinder: &corev1.CinderPersistentVolumeSource{VolumeID: "c1"}},
			want:   attachment.VolumeKey{Driver: "cinder.csi.openstack.org", Handle: "c1"},
		},
		"vsphere": {
			source: source{VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "[ds] v.vmdk", StoragePolicyName: "gold"}},
			want:   attachment.VolumeKey{Driver: "csi.vsphere.vmware.com", Handle: "[ds] v.vmdk"},
		},
		"portworx": {
			source: source{PortworxVolume: &corev1.PortworxVolumeSource{VolumeID: "p1"}},
			want:   attachment.VolumeKey{Driver: "pxd.portworx.com", Handle: "p1"},
		},
		"fibre channel by target": {
			source: source{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"50060e801049cfd1", "50060e801049cfd2"}, Lun: new(int32(0))}},
			want:   attachment.VolumeKey{Driver: FibreChannelPlugin, Handle: "[50060e801049cfd1 50060e801049cfd2]:0"},
		},
		"fibre channel by wwid": {
			source: source{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"50060e801049cfd1"}, WWIDs: []string{"3600508b4", "x y"}}},
			want:   attachment.VolumeKey{Driver: FibreChannelPlugin, Handle: "[3600508b4 x y]"},
		},
		"fibre channel without a name": {source: source{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"50060e801049cfd1"}}}},
		"iscsi": {
			source: source{ISCSI: &corev1.ISCSIPersistentVolumeSource{
				TargetPortal: "10.0.2.15", IQN: "iqn.2001-04.com.example:storage.disk2", Lun: 3, Portals: []string{"10.0.2.16"},
			}},
			want: attachment.VolumeKey{Driver: ISCSIPlugin, Handle: "10.0.2.15:iqn.2001-04.com.example:storage.disk2:3"},
		},
		"nfs":       {source: source{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}}},
		"host path": {source: source{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}},
	} {
		t.Run(name, func(t *testing.T) {
			pv := &corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Name: "pv", Labels: tt.labels},
				Spec: corev1.PersistentVolumeSpec{
					PersistentVolumeSource: tt.source, AccessModes: once, ClaimRef: &corev1.ObjectReference{Namespace: "team", Name: "c", UID: "u"},
				},
			}
			before := pv.DeepCopy()
			stripped := StripVolume(pv)
			if diff := cmp.Diff(before, pv); diff != "" {
				t.Errorf("the object was changed (-before +after):\n%s", diff)
			}
			for what, pv := range map[string]*corev1.PersistentVolume{"whole": pv, "stripped": stripped, "stripped twice": StripVolume(stripped)} {
				key, ok := KeyOfVolume(pv)
				if key != tt.want || ok != (tt.want != attachment.VolumeKey{}) {
					t.Errorf("%s: KeyOfVolume() = %+v, %v, want %+v", what, key, ok, tt.want)
				}
			}
			if m := Migrated(stripped); m != Migrated(StripVolume(stripped)) {
				t.Errorf("migrated: %v when stripped once, and not so when stripped twice", m)
			}
			if diff := cmp.Diff(once, stripped.Spec.AccessModes); diff != "" {
				t.Errorf("access modes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestVolumesOfPods has the same volumes named by a pod itself.
func TestVolumesOfPods(t *testing.T) {
	type source = corev1.VolumeSource
	csi := func(modes []corev1.PersistentVolumeAccessMode, s corev1.CSIPersistentVolumeSource) *corev1.PersistentVolumeSpec {
		mode := corev1.PersistentVolumeFilesystem
		return &corev1.PersistentVolumeSpec{
			AccessModes: modes, VolumeMode: &mode, PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &s},
		}
	}
	for name, tt := range map[string]struct {
		source source
		want   []InlineVolume
	}{
		"aws": {
			source{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1", FSType: "xfs", Partition: 2, ReadOnly: true}},
			[]InlineVolume{{
				attachment.VolumeKey{Driver: "ebs.csi.aws.com", Handle: "vol-1"}, "ebs.csi.aws.com-vol-1",
				csi(once, corev1.CSIPersistentVolumeSource{
					Driver: "ebs.csi.aws.com", VolumeHandle: "vol-1", FSType: "xfs", ReadOnly: true,
					VolumeAttributes: map[string]string{"partition": "2"},
				}),
			}},
		},
		"gce, read-only": {
			source{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "d", ReadOnly: true}},
			[]InlineVolume{{
				attachment.VolumeKey{Driver: "pd.csi.storage.gke.io", Handle: "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d"},
				"pd.csi.storage.gke.io-d",
				csi(read, corev1.CSIPersistentVolumeSource{
					Driver: "pd.csi.storage.gke.io", VolumeHandle: "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d", ReadOnly: true,
					VolumeAttributes: map[string]string{"partition": ""},
				}),
			}},
		},
		"azure disk": {
			source{AzureDisk: &corev1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: "/disks/d"}},
			[]InlineVolume{{
				attachment.VolumeKey{Driver: "disk.csi.azure.com", Handle: "/disks/d"}, "/disks/d",
				csi(once, corev1.CSIPersistentVolumeSource{
					Driver: "disk.csi.azure.com", VolumeHandle: "/disks/d", VolumeAttributes: map[string]string{"kind": "Managed"},
				}),
			}},
		},
		"azure disk that was not moved to CSI": {
			source{AzureDisk: &corev1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: "/disks/d", Kind: new(corev1.AzureSharedBlobDisk)}}, nil,
		},
		"azure file": {
			source{AzureFile: &corev1.AzureFileVolumeSource{SecretName: "s", ShareName: "share"}},
			[]InlineVolume{{
				attachment.VolumeKey{Driver: "file.csi.azure.com", Handle: "#s#share#v#team"}, "#s#share#v#team",
				csi(many, corev1.CSIPersistentVolumeSource{
					Driver: "file.csi.azure.com", VolumeHandle: "#s#share#v#team", VolumeAttributes: map[string]string{"sharename": "share"},
					NodeStageSecretRef: &corev1.SecretReference{Name: "s", Namespace: "team"},
				}),
			}},
		},
		"cinder": {
			source{Cinder: &corev1.CinderVolumeSource{VolumeID: "c"}},
			[]InlineVolume{{
				attachment.VolumeKey{Driver: "cinder.csi.openstack.org", Handle: "c"}, "cinder.csi.openstack.org-c",
				csi(once, corev1.CSIPersistentVolumeSource{Driver: "cinder.csi.openstack.org", VolumeHandle: "c", VolumeAttributes: map[string]string{}}),
			}},
		},
		"vsphere with a policy, at which the library panics": {
			source{VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "[ds] v", StoragePolicyName: "gold"}},
			[]InlineVolume{{
				attachment.VolumeKey{Driver: "csi.vsphere.vmware.com", Handle: "[ds] v"}, "csi.vsphere.vmware.com-[ds] v",
				csi(once, corev1.CSIPersistentVolumeSource{
					Driver: "csi.vsphere.vmware.com", VolumeHandle: "[ds] v", VolumeAttributes: map[string]string{"storagepolicyname": "gold"},
				}),
			}},
		},
		"portworx": {
			source{PortworxVolume: &corev1.PortworxVolumeSource{VolumeID: "p"}},
			[]InlineVolume{{
				attachment.VolumeKey{Driver: "pxd.portworx.com", Handle: "p"}, "pxd.portworx.com-p",
				csi(once, corev1.CSIPersistentVolumeSource{Driver: "pxd.portworx.com", VolumeHandle: "p", VolumeAttributes: map[string]string{}}),
			}},
		},
		"portworx that names nothing": {source{PortworxVolume: &corev1.PortworxVolumeSource{}}, nil},
		"fibre channel": {
			source{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"5006"}, Lun: new(int32(2))}},
			[]InlineVolume{{attachment.VolumeKey{Driver: FibreChannelPlugin, Handle: "[5006]:2"}, "v", nil}},
		},
		"iscsi": {
			source{ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: "10.0.0.1:3261", IQN: "iqn.x", Lun: 0}},
			[]InlineVolume{{attachment.VolumeKey{Driver: ISCSIPlugin, Handle: "10.0.0.1:3261:iqn.x:0"}, "v", nil}},
		},
		"csi, made by the node for the pod": {source{CSI: &corev1.CSIVolumeSource{Driver: "inline.example.com"}}, nil},
		"config map":                        {source{ConfigMap: &corev1.ConfigMapVolumeSource{}}, nil},
		"nfs":                               {source{NFS: &corev1.NFSVolumeSource{Server: "s"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"},
				Spec:       corev1.PodSpec{NodeName: "n", Volumes: []corev1.Volume{{Name: "v", VolumeSource: tt.source}}},
			}
			before := pod.DeepCopy()
			for what, p := range map[string]*corev1.Pod{"whole": pod, "stripped": StripPod(pod), "stripped twice": StripPod(StripPod(pod))} {
				if diff := cmp.Diff(tt.want, InlineVolumes(p)); diff != "" {
					t.Errorf("%s: InlineVolumes() (-want +got):\n%s", what, diff)
				}
			}
			if diff := cmp.Diff(before, pod); diff != "" {
				t.Errorf("the object was changed (-before +after):\n%s", diff)
			}
		})
	}
}
