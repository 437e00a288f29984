package kube

import (
	"fmt"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestLongNamesNameNothing(t *testing.T) {
	longest := strings.Repeat("a", validation.DNS1123SubdomainMaxLength)
	if got := Name(longest); got != longest {
		t.Errorf("the longest name of an object became %q", got)
	}
	if got := Name(longest + "b"); got != NoName {
		t.Errorf("a longer one became %q", got)
	}
	if len(validation.IsDNS1123Subdomain(NoName)) == 0 {
		t.Errorf("an object may have the name %q", NoName)
	}
	if got := Name(Name(longest + "b")); got != NoName {
		t.Errorf("a name that was replaced became %q", got)
	}
}

// TestLongNamesTakeNoMemory: each of these objects is as large as the API server accepts, and a tenant or a kubelet may create many of them.
func TestLongNamesTakeNoMemory(t *testing.T) {
	const objects, bound = 50, 4 << 10
	long := func(i int) string { return fmt.Sprintf("%d-%s", i, strings.Repeat("x", 1<<20)) }
	for name, made := range map[string]func(i int) client.Object{
		"claim, volumeName": func(i int) client.Object {
			claim := fullClaim(i).(*corev1.PersistentVolumeClaim)
			claim.Spec.VolumeName = long(i)
			return claim
		},
		"claim, owner": func(i int) client.Object {
			claim := fullClaim(i).(*corev1.PersistentVolumeClaim)
			claim.OwnerReferences[0].UID = types.UID(long(i))
			return claim
		},
		"pod, claimName": func(i int) client.Object {
			pod := fullPod(i).(*corev1.Pod)
			pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = long(i)
			return pod
		},
		"pod, nodeName": func(i int) client.Object {
			pod := fullPod(i).(*corev1.Pod)
			pod.Spec.NodeName = long(i)
			return pod
		},
		"pod, file system of an iSCSI volume": func(i int) client.Object {
			pod := fullPod(i).(*corev1.Pod)
			pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{IQN: "iqn", FSType: long(i)}}
			return pod
		},
		"volume, claimRef": func(i int) client.Object {
			pv := fullVolume(i).(*corev1.PersistentVolume)
			pv.Spec.ClaimRef.Name = long(i)
			return pv
		},
		"lease": func(i int) client.Object {
			return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: coordinationv1.LeaseSpec{
				HolderIdentity: new(long(i)), PreferredHolder: new(long(i)), Strategy: new(coordinationv1.OldestEmulationVersion),
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			kept := retained(objects, func(i int) client.Object { return keptInCache(t, decoded(made(i).(wire), emptyOf(made(i)))) })
			t.Logf("%d bytes kept", kept)
			if kept > bound {
				t.Errorf("keeps %d bytes, want at most %d", kept, bound)
			}
		})
	}
}

// keptInCache is the object as the cache of its kind keeps it.
func keptInCache(t *testing.T, object client.Object) client.Object {
	t.Helper()
	for of, options := range CacheOptions().ByObject {
		if fmt.Sprintf("%T", of) != fmt.Sprintf("%T", object) {
			continue
		}
		kept, err := options.Transform(object)
		if err != nil {
			t.Fatal(err)
		}
		return kept.(client.Object)
	}
	t.Fatalf("no cache has a %T", object)
	return nil
}

func emptyOf(object client.Object) wire {
	empty := object.DeepCopyObject().(wire)
	empty.(interface{ Reset() }).Reset()
	return empty
}

// TestLongNamesMatchNothing: what is cut equals nothing that an object has, and both sides of a comparison are cut.
func TestLongNamesMatchNothing(t *testing.T) {
	long := strings.Repeat("x", MaxName+1)
	claim := keptInCache(t, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "c", OwnerReferences: []metav1.OwnerReference{{UID: types.UID(long), Controller: new(true)}}},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: long},
	}).(*corev1.PersistentVolumeClaim)
	pod := keptInCache(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", UID: "1"},
		Spec: corev1.PodSpec{NodeName: "n", Volumes: []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: long}}},
		}},
	}).(*corev1.Pod)
	if claim.Spec.VolumeName == "" {
		t.Error("the claim is unbound: it waits for a volume, and this one never gets it")
	}
	if UsesClaim(pod, claim) || ClaimName(pod, &pod.Spec.Volumes[0]) == claim.Name {
		t.Error("the pod uses the claim")
	}
	// Both sides of a comparison are cut: a stored renewal, and a lease as the API server has it.
	lease := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: new(long)}}
	if live, cached := Renewal(lease), Renewal(keptInCache(t, lease).(*coordinationv1.Lease)); live != cached {
		t.Errorf("the lease was renewed as %q, and in the cache as %q", live, cached)
	}
}
