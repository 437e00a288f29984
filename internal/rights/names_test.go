package rights

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"belay.dev/belay/internal/attachdetach"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/kubectl"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/wait"
)

// TestLongNamesOfTenant: the API server accepts names of 1 MiB from a tenant, where they refer to other objects. The caches of the controller keep
// none of them, it serves the volumes of others, and the archive of "kubectl belay bundle" ends.
func TestLongNamesOfTenant(t *testing.T) {
	const namespace, node, driver, each = "long-names", "long-names", "names.example.com", 25
	edit, err := client.New(tenant(t, namespace), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Annotations: map[string]string{kube.ManagedAttachAnnotation: "true"}}})
	create(t, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}})
	for i := range each {
		for _, object := range longNames(namespace, node, i) {
			if err := edit.Create(t.Context(), object); err != nil {
				t.Fatalf("%T: %v", object, err)
			}
			t.Cleanup(func() {
				_ = server.Client.Delete(context.WithoutCancel(t.Context()), object, client.GracePeriodSeconds(0))
			})
		}
	}

	mgr := controller(t)
	served(t, namespace, node, driver)
	for _, list := range []client.ObjectList{&corev1.PersistentVolumeClaimList{}, &corev1.PodList{}} {
		if err := mgr.GetCache().List(t.Context(), list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		if size := list.(interface{ Size() int }).Size(); size > 64<<10 {
			t.Errorf("the cache keeps %d bytes of %d objects as a %T", size, each, list)
		}
	}

	var out, errOut bytes.Buffer
	file, ended := filepath.Join(t.TempDir(), "bundle.tar.gz"), make(chan error)
	command := kubectl.NewCommand(genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &out, ErrOut: &errOut}, "test")
	command.SetArgs([]string{"bundle", "-n", namespace, "--redact-names", "--logs=false", "-f", file, "--kubeconfig", apiserver.Kubeconfig(t, server.Config())})
	go func() { ended <- command.ExecuteContext(t.Context()) }()
	if err := wait.For(t, "the end of kubectl belay bundle", ended); err != nil {
		t.Fatalf("%v: %s", err, errOut.String())
	}
	if strings.Contains(errOut.String(), "Cut to --max-size") {
		t.Errorf("the names of the tenant take the space of other objects: %s", errOut.String())
	}
}

// longNames are objects that a tenant may create, with a name of 1 MiB of other objects in each.
func longNames(namespace, node string, i int) []client.Object {
	long := strings.Repeat("a-", 1<<19) + fmt.Sprint(i)
	claim := fixture.Claim(namespace, fmt.Sprintf("long-%d", i), fixture.PersistentVolume(long, "", ""))
	pod := fixture.Pod(namespace, fmt.Sprintf("long-%d", i), node)
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: long},
	}}}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("long-%d", i)}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &long},
	}
	return []client.Object{claim, pod, lease}
}

// controller runs the attach/detach controller as belay-controller does.
func controller(t *testing.T) manager.Manager {
	t.Helper()
	clock := &kube.ServerClock{}
	mgr, err := kube.NewManager(server.Config(), kube.ManagerConfig{Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	if err := attachdetach.Setup(ctx, mgr, attachdetach.Options{Clock: clock}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return mgr
}

// served makes a volume with a claim and a pod that uses it, and returns once the controller has created its VolumeAttachment.
func served(t *testing.T, namespace, node, driver string) {
	t.Helper()
	name := "well-behaved-" + namespace // the API server keeps a PersistentVolume that is deleted: nothing here takes its finalizer off
	pv := fixture.PersistentVolume(name, driver, name)
	claim := fixture.Claim(namespace, name, pv)
	create(t, claim)
	create(t, fixture.Bind(pv, claim))
	claim.Status.Phase = corev1.ClaimBound
	if err := server.Client.Status().Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	create(t, fixture.Pod(namespace, name, node, claim.Name))
	va := client.ObjectKey{Name: kube.AttachmentName(name, driver, node)}
	wait.Until(t, "the volume of another claim has a VolumeAttachment", func() bool {
		return server.Client.Get(t.Context(), va, &storagev1.VolumeAttachment{}) == nil
	})
}
