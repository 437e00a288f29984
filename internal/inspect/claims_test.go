package inspect

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// TestReadsForClaims: what is read besides depends on what claims and pods wait for, and is nothing for those that are well.
func TestReadsForClaims(t *testing.T) {
	const none = ""
	full, noVolume := "0/1 nodes are available: 1 node(s) did not have enough free storage.", "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind."
	misplaced := "0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity."
	for name, one := range map[string]struct {
		bound    bool
		local    bool
		class    *string
		message  string
		all      bool
		phase    corev1.PersistentVolumePhase
		claimed  string // the namespace of the claim of the volumes
		policy   corev1.PersistentVolumeReclaimPolicy
		calls    int
		nodesAll bool
	}{
		"all is well":                             {bound: true, class: new("c")},
		"all is well, in a cluster":               {bound: true, class: new("c"), all: true},
		"a claim without a volume":                {class: new("c"), calls: 1},
		"a claim without a class":                 {calls: 1},
		"one of a cluster, and its events":        {class: new("c"), all: true, calls: 2},
		"one for which no node has storage":       {class: new("c"), message: full, calls: 2, nodesAll: true},
		"one of those in a cluster":               {class: new("c"), message: full, all: true, calls: 3, nodesAll: true},
		"one for which there is no volume":        {class: new("c"), message: noVolume, calls: 2, nodesAll: true},
		"one of those in a cluster, which has it": {class: new("c"), message: noVolume, all: true, calls: 2, nodesAll: true},
		"a disk of a node that is gone":           {bound: true, local: true, class: new("c"), message: misplaced, calls: 1, nodesAll: true},
		"a disk of a node that is full":           {bound: true, local: true, class: new("c"), message: "0/1 nodes are available: 1 Insufficient cpu."},
		"a volume of a driver elsewhere":          {bound: true, class: new("c"), message: misplaced, nodesAll: true},
		"another cause":                           {bound: true, class: new("c"), message: "0/1 nodes are available: 1 Insufficient cpu."},
		"a volume that is not deleted":            {bound: true, class: new("c"), all: true, phase: corev1.VolumeReleased, claimed: "ns", policy: corev1.PersistentVolumeReclaimDelete, calls: 1},
		"one whose delete failed":                 {bound: true, class: new("c"), all: true, phase: corev1.VolumeFailed, claimed: "ns", calls: 1},
		"one that is kept":                        {bound: true, class: new("c"), all: true, phase: corev1.VolumeReleased, claimed: "ns", policy: corev1.PersistentVolumeReclaimRetain},
		"one of another namespace":                {bound: true, class: new("c"), all: true, phase: corev1.VolumeFailed, claimed: "other"},
		"one of no claim":                         {bound: true, class: new("c"), all: true, phase: corev1.VolumeFailed},
		"a bound one":                             {bound: true, class: new("c"), all: true, phase: corev1.VolumeBound, claimed: "ns", policy: corev1.PersistentVolumeReclaimDelete},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1, 5, 3 * few} {
				r := served(t).start()
				for i := range size {
					claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("c-", i)}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: one.class}}
					if one.bound {
						claim.Spec.VolumeName, claim.Status.Phase = "pv", corev1.ClaimBound
					}
					pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("p-", i)}}
					if one.message != none {
						pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: one.message}}
					}
					r.into.Claims, r.into.Pods = append(r.into.Claims, claim), append(r.into.Pods, pod)
					pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeReclaimPolicy: one.policy}, Status: corev1.PersistentVolumeStatus{Phase: one.phase}}
					if one.local {
						pv.Spec.Local, pv.Spec.StorageClassName = &corev1.LocalVolumeSource{Path: "/d"}, "c"
					}
					if one.claimed != "" {
						pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: one.claimed, Name: claim.Name}
					}
					r.into.Volumes = append(r.into.Volumes, pv)
				}
				if got := len(r.provisioning(t.Context(), "ns", one.all)); got != one.calls || r.placed() != one.nodesAll {
					t.Errorf("%d claims: %d calls, all nodes: %v; want %d and %v", size, got, r.placed(), one.calls, one.nodesAll)
				}
			}
		})
	}
}

// TestWhatIsKeptOfClasses: the class without its parameters, a volume with where it can be used, and what a claim asks for while it is not bound or grows.
func TestWhatIsKeptOfClasses(t *testing.T) {
	affinity := &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}}}}}
	objects := []runtime.Object{&storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast", Annotations: map[string]string{explain.DefaultClass: "true", "x": "y"}}, Provisioner: "p", Parameters: map[string]string{"password": "hidden"},
	}}
	for i := range 3 {
		objects = append(objects, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pv-", i)},
			Spec: corev1.PersistentVolumeSpec{
				NodeAffinity: affinity.DeepCopy(), PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}},
			},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
		})
	}
	r := served(t, objects...).start()
	r.classes(t.Context())
	r.volumes(t.Context())
	class := r.into.Classes[0]
	if class.Provisioner != "p" || len(class.Parameters) > 0 || len(class.Annotations) != 1 {
		t.Errorf("kept %v", class)
	}
	for _, pv := range r.into.Volumes {
		if pv.Spec.NodeAffinity != r.into.Volumes[0].Spec.NodeAffinity || pv.Spec.NodeAffinity == nil {
			t.Errorf("%s has a node affinity of its own: %v", pv.Name, pv.Spec.NodeAffinity)
		}
	}
	size := func(text string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(text)}
	}
	claim := func(asks, has string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
		return keepClaim(&corev1.PersistentVolumeClaim{
			Spec:   corev1.PersistentVolumeClaimSpec{VolumeName: "pv", Resources: corev1.VolumeResourceRequirements{Requests: size(asks)}},
			Status: corev1.PersistentVolumeClaimStatus{Phase: phase, Capacity: size(has)},
		})
	}
	if c := claim("10Gi", "10Gi", corev1.ClaimBound); len(c.Spec.Resources.Requests) > 0 {
		t.Error("the size of a claim that is bound is kept")
	}
	if c := claim("20Gi", "10Gi", corev1.ClaimBound); !diagnosis.Growing(c) {
		t.Error("that a claim grows is lost")
	}
	if c := claim("10Gi", "0", corev1.ClaimPending); len(c.Spec.Resources.Requests) == 0 {
		t.Error("the size of a claim that is not bound is lost")
	}
}

// TestClaimKeepsItsAnnotations: a claim that is read by its name keeps, as one of a list, for which node it is provisioned, by whom, and of which class.
func TestClaimKeepsItsAnnotations(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", Annotations: map[string]string{
		diagnosis.ProvisionerAnnotation: "p", kube.SelectedNodeAnnotation: "n", corev1.BetaStorageClassAnnotation: "fast", "other": "o",
	}}}
	r := served(t, claim).start()
	r.claim(t.Context(), "ns", "c")
	if got := r.finish().Claims; len(got) != 1 || len(got[0].Annotations) != 3 || kube.ClassOf(got[0]) != "fast" || got[0].Annotations[kube.SelectedNodeAnnotation] != "n" {
		t.Errorf("%+v", got)
	}
}
