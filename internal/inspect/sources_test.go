package inspect

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
)

// everyVolume is a pod with a volume of each kind that no controller attaches, and one of a claim.
func everyVolume(text string) *corev1.Pod {
	local := corev1.LocalObjectReference{Name: text}
	sources := []corev1.VolumeSource{
		{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}},
		{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: local, Items: []corev1.KeyToPath{{Key: "k", Path: "p"}}}},
		{Secret: &corev1.SecretVolumeSource{SecretName: text}},
		{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}, {ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: local}},
			{Secret: &corev1.SecretProjection{LocalObjectReference: local}},
		}}},
		{HostPath: &corev1.HostPathVolumeSource{Path: text}}, {NFS: &corev1.NFSVolumeSource{Server: text, Path: text}},
		{CSI: &corev1.CSIVolumeSource{Driver: text, VolumeAttributes: map[string]string{"a": text}}}, {FlexVolume: &corev1.FlexVolumeSource{Driver: text}},
		{Image: &corev1.ImageVolumeSource{Reference: text}}, {EmptyDir: &corev1.EmptyDirVolumeSource{}}, {DownwardAPI: &corev1.DownwardAPIVolumeSource{}},
		{GitRepo: &corev1.GitRepoVolumeSource{Repository: text}}, {Glusterfs: &corev1.GlusterfsVolumeSource{EndpointsName: text}}, {CephFS: &corev1.CephFSVolumeSource{Path: text}},
		{RBD: &corev1.RBDVolumeSource{RBDImage: text}}, {Quobyte: &corev1.QuobyteVolumeSource{Volume: text}}, {ISCSI: &corev1.ISCSIVolumeSource{IQN: "iqn", TargetPortal: "p"}},
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "x", UID: "1"}, Spec: corev1.PodSpec{NodeName: "n"}}
	for i, source := range sources {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("v", i), VolumeSource: source})
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}}
	return pod
}

// TestVolumesOfPodsThatWait: all volumes of a pod that has a node and no container that runs are kept, with what they refer to and little else; of other
// pods, which are most, only those that may be attached.
func TestVolumesOfPodsThatWait(t *testing.T) {
	pod := everyVolume("app")
	kept := volumesThatWait(pod)
	if len(kept) != len(pod.Spec.Volumes) {
		t.Fatalf("keeps %d of %d volumes", len(kept), len(pod.Spec.Volumes))
	}
	for _, v := range pod.Spec.Volumes {
		i := slices.IndexFunc(kept, func(k corev1.Volume) bool { return k.Name == v.Name })
		if i < 0 || kept[i].VolumeSource == (corev1.VolumeSource{}) {
			t.Errorf("nothing is kept of %s: %+v", v.Name, v.VolumeSource)
		}
	}
	if projection := kept[slices.IndexFunc(kept, func(v corev1.Volume) bool { return v.Projected != nil })].Projected; len(projection.Sources) != 2 {
		t.Errorf("keeps the projection %+v", projection)
	}
	ending := pod.DeepCopy()
	if ending.DeletionTimestamp = new(metav1.Now()); len(volumesThatWait(ending)) != len(kept) {
		t.Errorf("of a pod that is being deleted it keeps %d volumes, want %d: one of them may not be unmounted", len(volumesThatWait(ending)), len(kept))
	}
	attached := len(kube.StripVolumes(pod))
	for name, change := range map[string]func(*corev1.Pod){
		"no node": func(p *corev1.Pod) { p.Spec.NodeName = "" }, "ended": func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		"runs": func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		},
	} {
		other := pod.DeepCopy()
		if change(other); len(volumesThatWait(other)) != attached {
			t.Errorf("%s: keeps %d volumes, want %d", name, len(volumesThatWait(other)), attached)
		}
	}
}

// TestLongSources: what a tenant writes into the sources of volumes stays small in a snapshot.
func TestLongSources(t *testing.T) {
	pod := everyVolume(strings.Repeat("x", 1<<20))
	for range 10 {
		more := everyVolume(strings.Repeat("y", 1<<16)).Spec.Volumes
		for i := range more {
			more[i].Name = fmt.Sprint("w", len(pod.Spec.Volumes))
			if more[i].ISCSI == nil && more[i].RBD == nil {
				pod.Spec.Volumes = append(pod.Spec.Volumes, more[i])
			}
		}
	}
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.RBD != nil })
	if size := keepPod(pod, volumesThatWait(pod), true).Size(); size > 64<<10 {
		t.Errorf("keeps %d bytes", size)
	}
}

// TestReadinessOfThePodThatWasAskedAbout: it is read with its conditions and readiness gates.
func TestReadinessOfThePodThatWasAskedAbout(t *testing.T) {
	pod := everyVolume("app")
	pod.Status.Phase, pod.Status.ContainerStatuses[0].State = corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "gate.example.com/a"}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: "gate.example.com/a", Status: corev1.ConditionFalse, Message: "not yet"}}
	x := served(t, pod).start()
	subject := diagnosis.Ref{Resource: diagnosis.Pods, Namespace: "a", Name: "x"}
	x.subject(t.Context(), subject)
	e, err := diagnosis.Explain(x.finish(), subject)
	if err != nil || e.Verdict != diagnosis.NotVolume || !strings.Contains(e.Summary, "not yet") {
		t.Errorf("%s: %s (%v)", e.Verdict, e.Summary, err)
	}
}
