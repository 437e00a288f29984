package kubectl

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
)

// waitingClaim creates a claim of a class whose provisioner does not run, which the controller has asked, and its pod, and returns its name.
func waitingClaim(t *testing.T, namespace, pod string) string {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "data-" + pod, Annotations: map[string]string{diagnosis.ProvisionerAnnotation: "gone.example.com"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new("claiming"),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	create(t, claim)
	p := fixture.Pod(namespace, pod, "", claim.Name)
	p.Status.Phase = corev1.PodPending
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."}}
	create(t, p)
	return claim.Name
}

// TestClaimsWithoutVolume: what is read for a claim without a volume does not grow with the cluster, and without a right the answer names it.
func TestClaimsWithoutVolume(t *testing.T) {
	server.Start(t)
	namespaces(t, "claiming")
	create(t, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "claiming"}, Provisioner: "gone.example.com"})
	claim := waitingClaim(t, "claiming", "app-0")
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "claiming", Name: "app-0.1"}, InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "claiming", Name: claim},
		Reason: "ProvisioningFailed", Type: corev1.EventTypeWarning, Source: corev1.EventSource{Component: "gone.example.com_host_uid"}, LastTimestamp: metav1.Now(),
		Message: `failed to provision volume with StorageClass "claiming": rpc error: code = ResourceExhausted desc = no room in pool-7`,
	}
	args := []string{"pod/app-0", "-n", "claiming"}
	few := requests(t, server.Config(), args)
	for i := range 30 {
		waitingClaim(t, "claiming", fmt.Sprintf("other-%d", i))
	}
	if many := requests(t, server.Config(), args); many != few || many > 14 {
		t.Errorf("%d requests, with 30 more claims %d", few, many)
	}
	kubeconfig := member(t, "claimant", "claiming")
	got := run(t, kubeconfig, "explain", "pod/app-0", "-n", "claiming")
	if !strings.Contains(got.out, "lack permission to get storageclasses/claiming") || !strings.Contains(got.out, "waits for the claim data-app-0") {
		t.Errorf("exit status %d, want the missing permission and the claim:\n%s%s", got.status, got.out, got.err)
	}
	read := &corev1.PersistentVolumeClaim{}
	if err := server.Client.Get(t.Context(), client.ObjectKey{Namespace: "claiming", Name: claim}, read); err != nil {
		t.Fatal(err)
	}
	event.InvolvedObject.UID = read.UID
	create(t, event)
	for _, args := range [][]string{{"explain", "pod/app-0", "-n", "claiming"}, {"explain", "pvc/" + claim, "-n", "claiming"}, {"stuck", "-n", "claiming"}} {
		for _, as := range []string{apiserver.Kubeconfig(t, server.Config()), kubeconfig} {
			if got := run(t, as, args...); got.status != StatusBlocked || !strings.Contains(got.out, "ProvisioningFailed") {
				t.Errorf("%v: exit status %d, want the error of the provisioner:\n%s%s", args, got.status, got.out, got.err)
			}
		}
	}
}

// TestOwnersOfPods: why an owner cannot create its pods, what those wait for that it has, and which right is missing.
func TestOwnersOfPods(t *testing.T) {
	server.Start(t)
	namespaces(t, "owning")
	labels := map[string]string{"app": "db"}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "owning", Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(3)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x"}}}},
		},
		Status: appsv1.StatefulSetStatus{Replicas: 1},
	}
	create(t, set)
	pod := fixture.Pod("owning", "db-0", "", "data-db-0")
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: set.UID, Controller: new(true)}}
	create(t, pod)
	create(t, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "owning", Name: "db.1"},
		InvolvedObject: corev1.ObjectReference{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "owning", Name: "db", UID: set.UID},
		Reason:         "FailedCreate", Type: corev1.EventTypeWarning, LastTimestamp: metav1.NewTime(time.Now()),
		Message: `create Claim data-db-1 for Pod db-1 in StatefulSet db failed error: persistentvolumeclaims "data-db-1" is forbidden: exceeded quota: storage`,
	})
	got := run(t, apiserver.Kubeconfig(t, server.Config()), "explain", "sts/db", "-n", "owning")
	for _, want := range []string{"PodNotCreated", "exceeded quota: storage", "describe resourcequota -n owning", "statefulset/db -n owning", "ClaimMissing", "data-db-0"} {
		if got.status != StatusBlocked || !strings.Contains(got.out, want) {
			t.Errorf("exit status %d, want %q:\n%s%s", got.status, want, got.out, got.err)
		}
	}
	if got := run(t, member(t, "owner", "owning"), "explain", "sts/db", "-n", "owning"); got.status != StatusError || !strings.Contains(got.err, "get statefulsets/db in namespace owning") {
		t.Errorf("exit status %d, want the missing permission:\n%s%s", got.status, got.out, got.err)
	}
	for _, object := range []string{"deploy/db", "rs/db", "ds/db", "job/db"} {
		if got := run(t, apiserver.Kubeconfig(t, server.Config()), "explain", object, "-n", "owning"); got.status != StatusError || !strings.Contains(got.err, "/db does not exist") {
			t.Errorf("%s: exit status %d: %s%s", object, got.status, got.out, got.err)
		}
	}
}
