package kubectl

import (
	"bytes"
	"context"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/process"
	"belay.dev/belay/internal/testing/wait"
)

var server = apiserver.Server{}

// recoveryFiles are what a cluster with recovery has.
var recoveryFiles = []string{
	"../../deploy/belay-recovery/fencing.belay.dev_nodefences.yaml", "../../deploy/belay-recovery/fencing.belay.dev_fencesources.yaml", "../../deploy/belay-recovery/admission.yaml",
	"../../deploy/belay-recovery/admission-nodes.yaml", "../../deploy/belay-recovery/admission-roles.yaml", "../../deploy/belay-recovery/admission-writes.yaml",
}

func TestMain(m *testing.M) {
	if err := fencingv1.AddToScheme(clientscheme.Scheme); err != nil {
		panic(err)
	}
	server.Prepare = func(tb testing.TB) {
		tb.Helper()
		server.Apply(tb, recoveryFiles...)
		wait.Until(tb, "NodeFences and FenceSources are served", func() bool {
			return server.Client.List(tb.Context(), &fencingv1.NodeFenceList{}) == nil && server.Client.List(tb.Context(), &fencingv1.FenceSourceList{}) == nil
		})
	}
	os.Exit(server.Main(m))
}

const driver = "disk.example.com"

// answer is what a command printed, and its exit status.
type answer struct {
	out, err string
	status   int
}

// run runs a command as a user does.
func run(t *testing.T, kubeconfig string, args ...string) answer {
	t.Helper()
	var out bytes.Buffer
	var errOut process.Output // goroutines write to it side by side, as they do to standard error
	c := NewCommand(genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &out, ErrOut: &errOut}, "test")
	c.SetArgs(append(args, "--kubeconfig", kubeconfig))
	err := c.ExecuteContext(t.Context())
	if err != nil && !Printed(err) {
		c.PrintErrln("error:", err)
	}
	return answer{out.String(), errOut.String(), Status(err)}
}

// create creates an object and stores its status too.
func create(t *testing.T, o client.Object) {
	t.Helper()
	withStatus := o.DeepCopyObject().(client.Object)
	if err := server.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if len(o.GetFinalizers()) > 0 {
			_ = server.Client.Patch(context.WithoutCancel(t.Context()), o, client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`)))
		}
		o.SetFinalizers(nil)
		_ = server.Client.Delete(context.WithoutCancel(t.Context()), o, client.GracePeriodSeconds(0)) // it is canceled before this
	})
	withStatus.SetResourceVersion(o.GetResourceVersion())
	withStatus.SetUID(o.GetUID())
	if err := server.Client.Status().Update(t.Context(), withStatus); err != nil && client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
}

// node is a node that is Ready and has the volumes.
func node(name string, handles ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{kube.ManagedAttachAnnotation: "true"}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	n.Status.NodeInfo.SystemUUID = "uuid-of-" + name
	for _, handle := range handles {
		unique := corev1.UniqueVolumeName(kube.UniqueVolumeName(driver, handle))
		n.Status.VolumesInUse = append(n.Status.VolumesInUse, unique)
		n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: unique, DevicePath: "x"})
	}
	return n
}

// held makes a volume whose claim is in the namespace, with a pod that has it on the first node and one that waits on the second.
func held(t *testing.T, namespace, name, at, wanted string) {
	t.Helper()
	pv := fixture.PersistentVolume(name, driver, name)
	claim := fixture.Claim(namespace, namespace+"-claim", pv)
	create(t, claim)
	fixture.Bind(pv, claim)
	pv.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Namespace: namespace, Name: namespace + "-password"}
	create(t, pv)
	running := fixture.Pod(namespace, namespace+"-holder", at, claim.Name)
	running.Status.Phase = corev1.PodRunning
	running.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	create(t, running)
	create(t, fixture.Pod(namespace, namespace+"-waiter", wanted, claim.Name))
	va := fixture.Attachment(kube.AttachmentName(name, driver, at), driver, at, name)
	va.Status.Attached = true
	va.Status.DetachError = nil
	create(t, va)
}

func namespaces(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := server.Client.Create(t.Context(), ns); err != nil {
			t.Fatal(err)
		}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}}
		if err := server.Client.Create(t.Context(), account); err != nil {
			t.Fatal(err)
		}
	}
}
