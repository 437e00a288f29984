package kube

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// manyVolumes are pods of about 1 MB each that a tenant may create: with volumes of all kinds, with as many claims as fit, and with long texts
// of one volume.
var manyVolumes = map[string]func(i int) []corev1.Volume{
	"attributes of a CSI volume": func(i int) []corev1.Volume {
		return []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
			Driver: "d", VolumeAttributes: map[string]string{"a": longText(i)},
		}}}}
	},
	"paths, options and projections": func(i int) []corev1.Volume {
		return volumes(2000, func(n int) corev1.VolumeSource {
			text := fmt.Sprint(i, strings.Repeat("x", 450))
			switch n % 4 {
			case 0:
				return corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: text}}
			case 1:
				return corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{Driver: "a/b", Options: map[string]string{"o": text}}}
			case 2:
				return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: text}},
				}}}
			}
			return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: text}}
		})
	},
	"claims": func(i int) []corev1.Volume {
		return volumes(40_000, func(n int) corev1.VolumeSource {
			return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint(i, "-", n)}}
		})
	},
	"generic ephemeral volumes": func(int) []corev1.Volume {
		return volumes(40_000, func(int) corev1.VolumeSource {
			return corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
		})
	},
	"Fibre Channel volumes": func(i int) []corev1.Volume {
		return volumes(20_000, func(n int) corev1.VolumeSource {
			return corev1.VolumeSource{FC: &corev1.FCVolumeSource{WWIDs: []string{fmt.Sprint(i, "-", n)}}}
		})
	},
	"a long name of an iSCSI target": func(i int) []corev1.Volume {
		return []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: "p", IQN: longText(i)}}}}
	},
	"file system of an in-tree volume": func(i int) []corev1.Volume {
		return []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{
			VolumeID: "vol-0123456789", FSType: longText(i),
		}}}}
	},
	"policies of in-tree volumes": func(i int) []corev1.Volume {
		return volumes(200, func(n int) corev1.VolumeSource {
			return corev1.VolumeSource{VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{
				VolumePath: fmt.Sprintf("[ds] %d/%d.vmdk", i, n), StoragePolicyID: strings.Repeat("x", 5000),
			}}
		})
	},
}

func longText(i int) string { return fmt.Sprintf("%d%s", i, strings.Repeat("x", 1<<20)) }

func volumes(n int, source func(n int) corev1.VolumeSource) []corev1.Volume {
	made := make([]corev1.Volume, n)
	for i := range made {
		made[i] = corev1.Volume{Name: fmt.Sprint("v", i), VolumeSource: source(i)}
	}
	return made
}

// TestManyVolumesTakeNoMemory: the API server limits neither how many volumes a pod has nor most texts of them, and a tenant chooses both.
func TestManyVolumesTakeNoMemory(t *testing.T) {
	const objects, bound = 10, 4 << 10
	for name, made := range manyVolumes {
		t.Run(name, func(t *testing.T) {
			kept := retained(objects, func(i int) client.Object {
				pod := fullPod(i).(*corev1.Pod)
				pod.Spec.Volumes, pod.Status.Phase = made(i), corev1.PodPending
				return keptInCache(t, decoded(pod, &corev1.Pod{}))
			})
			t.Logf("%d bytes kept", kept)
			if kept > bound {
				t.Errorf("keeps %d bytes, want at most %d", kept, bound)
			}
		})
	}
}

// TestManyVolumesOfARunningPod: what a node has mounted is real, and all of it is kept, also when the object is stripped again.
func TestManyVolumesOfARunningPod(t *testing.T) {
	for name, made := range manyVolumes {
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", Volumes: made(0)}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		want := 0
		for i := range pod.Spec.Volumes {
			if mayBeAttached(&pod.Spec.Volumes[i]) {
				want++
			}
		}
		if got := len(StripPod(StripPod(pod)).Spec.Volumes); got != want {
			t.Errorf("%s: %d volumes kept of %d", name, got, want)
		}
		if inline := InlineVolumes(pod); len(InlineVolumes(StripPod(pod))) != len(inline) {
			t.Errorf("%s: of %d inline volumes, %d are left", name, len(inline), len(InlineVolumes(StripPod(pod))))
		}
	}
}

// TestMostVolumesOfAPod: a pod with as many volumes as any node has room for gets all of them.
func TestMostVolumesOfAPod(t *testing.T) {
	claims := func(n int) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", Volumes: append(
			volumes(n, func(n int) corev1.VolumeSource {
				return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint(n)}}
			}),
			volumes(5*MaxVolumes, func(int) corev1.VolumeSource {
				return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}
			})...,
		)}}
	}
	if pod := claims(MaxVolumes); TooManyVolumes(pod) || len(StripPod(pod).Spec.Volumes) != MaxVolumes {
		t.Errorf("of %d volumes, %d are kept", MaxVolumes, len(StripPod(pod).Spec.Volumes))
	}
	if pod := claims(MaxVolumes + 1); !TooManyVolumes(pod) || len(StripPod(pod).Spec.Volumes) != 0 {
		t.Errorf("of %d volumes, %d are kept", MaxVolumes+1, len(StripPod(pod).Spec.Volumes))
	}
}
