package diagnosis

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
)

// TestMigratedVolumes: a volume of an in-tree plugin for which a CSI driver works is called migrated, and one that the node connects by itself is not.
func TestMigratedVolumes(t *testing.T) {
	for name, test := range map[string]struct {
		source   corev1.PersistentVolumeSource
		migrated bool
	}{
		"AWS":           {corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}, true},
		"CSI":           {corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: oneDriver, VolumeHandle: "h"}}, false},
		"Fibre Channel": {corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"5008"}, Lun: new(int32(1))}}, false},
		"iSCSI":         {corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{TargetPortal: "192.0.2.1:3260", IQN: "iqn.x"}}, false},
	} {
		pv := fixture.PersistentVolume("v", "", "")
		pv.Spec.PersistentVolumeSource = test.source
		key, ok := kube.KeyOfVolume(pv)
		if !ok {
			t.Fatalf("%s: no volume", name)
		}
		if got := newState(&Snapshot{Volumes: []*corev1.PersistentVolume{pv}}).describe(key, pv); got.InTree != test.migrated {
			t.Errorf("%s: migrated %v", name, got.InTree)
		}
	}
}
