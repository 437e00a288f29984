package hollow

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
)

const driver = "hollow.test"

func TestRecordReportsSecondNodeOfExclusiveVolume(t *testing.T) {
	for name, tc := range map[string]struct {
		exclusive, overlap bool
		want               int
	}{
		"exclusive, one after the other": {exclusive: true},
		"exclusive, on both at once":     {exclusive: true, overlap: true, want: 1},
		"shared, on both at once":        {overlap: true},
	} {
		t.Run(name, func(t *testing.T) {
			r, v := newRecord(), volume{name: "v", exclusive: tc.exclusive}
			r.mounted("a", v)
			if !tc.overlap {
				r.unmounted("a", "v")
			}
			r.mounted("b", v)
			if got := r.Violations(); len(got) != tc.want {
				t.Errorf("violations: %v", got)
			}
			if got := len(r.Mounts()); got != 2 {
				t.Errorf("%d mounts, want 2", got)
			}
		})
	}
}

// TestLifeOfAPod plays the controller by hand against a real API server.
func TestLifeOfAPod(t *testing.T) {
	config := apiServer(t)
	client := kubernetes.NewForConfigOrDie(config)
	fleet, err := Start(t.Context(), config, []string{"h-1", "h-2"}, Options{Drivers: []string{driver}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	serviceAccount(t, client)
	create(t, client, "foreign", "h-2")
	foreign := bound(t, client, "foreign", "another.belay.dev")
	create(t, client, "early", "h-1") // before its claim and its volume
	unique := bound(t, client, "early", driver)
	eventually(t, "the volume to be listed in use", func() bool { return inUse(t, client, "h-1") == unique })
	if got := fleet.MountedOn(unique); len(got) != 0 {
		t.Fatalf("mounted on %v before it was attached", got)
	}
	report(t, client, "h-1", unique)
	eventually(t, "the pod to run", func() bool { return phase(t, client, "early") == corev1.PodRunning })
	if got := fleet.MountedOn(unique); len(got) != 1 || got[0] != "h-1" {
		t.Fatalf("mounted on %v, want h-1", got)
	}
	report(t, client, "h-1", "")
	eventually(t, "the record to tell of the withdrawal", func() bool { return len(fleet.Violations()) == 1 })
	report(t, client, "h-1", unique)
	if err := client.CoreV1().Pods("default").Delete(ctx, "early", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pod to be gone and its volume not in use", func() bool {
		return phase(t, client, "early") == "" && inUse(t, client, "h-1") == ""
	})
	if got := fleet.MountedOn(unique); len(got) != 0 {
		t.Errorf("still mounted on %v", got)
	}
	eventually(t, "the volume of the pod whose driver is on no node to be listed in use", func() bool { return inUse(t, client, "h-2") == foreign })
	if got := phase(t, client, "foreign"); got != corev1.PodPending {
		t.Errorf("the pod whose driver is on no node is %s", got)
	}
	create(t, client, "lun", "h-1")
	boundTo(t, client, "lun", corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"5009"}, Lun: new(int32(1))}})
	fibre := "kubernetes.io/fc/[5009]:1"
	eventually(t, "the Fibre Channel volume to be listed in use", func() bool { return inUse(t, client, "h-1") == fibre })
	if got := fleet.MountedOn(fibre); len(got) != 0 {
		t.Fatalf("mounted on %v before it was attached", got)
	}
	report(t, client, "h-1", fibre)
	eventually(t, "the pod with a Fibre Channel volume to run", func() bool { return phase(t, client, "lun") == corev1.PodRunning })
}

func apiServer(t *testing.T) *rest.Config {
	t.Helper()
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	var server apiserver.Server
	server.StartFor(t)
	return server.Config()
}

// serviceAccount makes what kube-controller-manager would: no pod is made without.
func serviceAccount(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	if _, err := client.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, client kubernetes.Interface, name, node string) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{
		NodeName: node, AutomountServiceAccountToken: new(false),
		Containers: []corev1.Container{{Name: "c", Image: "none"}},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}}},
	}}
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// bound makes a claim and its volume and returns the volume's unique name.
func bound(t *testing.T, client kubernetes.Interface, name, driver string) string {
	t.Helper()
	boundTo(t, client, name, corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name}})
	return kube.UniqueVolumeName(driver, name)
}

func boundTo(t *testing.T, client kubernetes.Interface, name string, source corev1.PersistentVolumeSource) {
	t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, PersistentVolumeSource: source,
	}}
	if _, err := client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	claim, err := client.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, VolumeName: name, StorageClassName: new(""), Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim.Status.Phase = corev1.ClaimBound
	if _, err := client.CoreV1().PersistentVolumeClaims("default").UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func report(t *testing.T, client kubernetes.Interface, node, unique string) {
	t.Helper()
	eventually(t, "the report to be written", func() bool {
		object, err := client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			return false
		}
		object.Status.VolumesAttached = nil
		if unique != "" {
			object.Status.VolumesAttached = []corev1.AttachedVolume{{Name: corev1.UniqueVolumeName(unique)}}
		}
		_, err = client.CoreV1().Nodes().UpdateStatus(t.Context(), object, metav1.UpdateOptions{})
		return err == nil
	})
}

func inUse(t *testing.T, client kubernetes.Interface, node string) string {
	t.Helper()
	object, err := client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, 0, len(object.Status.VolumesInUse))
	for _, name := range object.Status.VolumesInUse {
		names = append(names, string(name))
	}
	return strings.Join(names, ",")
}

func phase(t *testing.T, client kubernetes.Interface, name string) corev1.PodPhase {
	t.Helper()
	pod, err := client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return pod.Status.Phase
}

// patience is how long a test waits for what must happen, also on a machine that is busy with much else.
const patience = 2 * time.Minute

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited %v for %s", patience, what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
