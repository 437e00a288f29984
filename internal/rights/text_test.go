package rights

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kubectl"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/hostile"
	"belay.dev/belay/internal/testing/process"
	"belay.dev/belay/internal/testing/wait"
)

// TestHostileTextOfATenant: a tenant, and a kubelet, write all that the API server takes, and what an administrator prints of it is printable.
func TestHostileTextOfATenant(t *testing.T) {
	const namespace, nodeName = "hostile-text", "hostile-node"
	edit, err := client.New(tenant(t, namespace), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	own, err := client.New(kubelet(t, nodeName), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}})
	pv := fixture.PersistentVolume("hostile-volume", "disk.example.com", "h")
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: "bound"}
	create(t, pv)
	va := fixture.Attachment("hostile-attachment", "disk.example.com", nodeName, pv.Name)
	create(t, va)

	bound, lost := fixture.Claim(namespace, "bound", pv), fixture.Claim(namespace, "lost", pv)
	lost.Spec.VolumeName = pv.Name + hostile.Text
	pod := fixture.Pod(namespace, "waiter", "", "lost")
	pod.Annotations = map[string]string{"example.com/a": hostile.Text}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "external-attacher-leader-disk-example-com"}}
	now := metav1.NowMicro()
	lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: new("waiter" + hostile.Text), LeaseDurationSeconds: new(int32(3600)), AcquireTime: &now, RenewTime: &now}
	event := func(namespace, kind, name string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: strings.ToLower(kind) + "-" + name},
			InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: namespace, Name: name},
			Reason:         "FailedAttachVolume", Message: "failed" + hostile.Text, Type: corev1.EventTypeWarning, FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(),
			Source: corev1.EventSource{Component: "attachdetach-controller" + hostile.Text, Host: hostile.Text},
		}
	}
	wait.Until(t, "the rights of the tenant count", func() bool { return edit.Create(t.Context(), bound) == nil })
	taken := 0
	for what, o := range map[string]client.Object{"claim without a volume": lost, "pod": pod, "lease": lease, "event": event(namespace, "Pod", "waiter")} {
		if err := edit.Create(t.Context(), o); err != nil {
			t.Logf("a tenant's %s is not taken: %v", what, err)
			continue
		}
		taken++
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: hostile.Text, Message: hostile.Text}}
	node.Status.NodeInfo = corev1.NodeSystemInfo{SystemUUID: hostile.Text, BootID: hostile.Text, MachineID: hostile.Text, KubeletVersion: hostile.Text}
	node.Status.VolumesInUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/disk.example.com^h", "kubernetes.io/csi/disk.example.com^" + hostile.Text}
	node.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "kubernetes.io/csi/disk.example.com^" + hostile.Text, DevicePath: hostile.Text}}
	if err := own.Status().Patch(t.Context(), node, client.MergeFrom(&corev1.Node{ObjectMeta: node.ObjectMeta})); err != nil {
		t.Logf("a kubelet's status is not taken: %v", err)
	} else {
		taken++
	}
	csiNode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "disk.example.com", NodeID: hostile.Text}}}}
	for what, o := range map[string]client.Object{"CSINode": csiNode, "event": event("default", "Node", nodeName)} {
		if err := own.Create(t.Context(), o); err != nil {
			t.Logf("a kubelet's %s is not taken: %v", what, err)
			continue
		}
		taken++
		t.Cleanup(func() { _ = server.Client.Delete(context.WithoutCancel(t.Context()), o) })
	}
	if taken < 5 {
		t.Fatalf("the API server took only %d of the objects", taken)
	}
	printed := 0
	for _, args := range [][]string{
		{"explain", "pod/waiter", "-n", namespace}, {"explain", "pvc/lost", "-n", namespace}, {"explain", "node/" + nodeName}, {"explain", "va/" + va.Name}, {"explain", "pv/" + pv.Name},
		{"stuck", "-A"}, {"orphans"}, {"map"}, {"timeline", "pvc/bound", "-n", namespace}, {"check"}, {"evidence", "node/" + nodeName}, {"force-detach", "va/" + va.Name},
	} {
		for _, format := range []string{"", "wide", "json", "yaml"} {
			given := slices.Clone(args)
			if format != "" {
				given = append(given, "-o", format)
			}
			if out := printedBy(t, given...); strings.Contains(out, hostile.Shown) {
				printed++
			}
		}
	}
	if t.Logf("%d outputs have the text", printed); printed < 8 {
		t.Errorf("only %d outputs have the text: the others show nothing", printed)
	}
	if readable := printedBy(t, "bundle", "--logs=false", "-f", t.TempDir()+"/bundle.tar.gz"); !strings.Contains(readable, "Wrote ") {
		t.Errorf("no bundle: %s", readable)
	}
}

// printedBy runs the plugin as an administrator, and fails for what is not printable.
func printedBy(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	var errOut process.Output
	c := kubectl.NewCommand(genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &out, ErrOut: &errOut}, "test")
	c.SetArgs(append(args, "--kubeconfig", apiserver.Kubeconfig(t, server.Config())))
	if err := c.ExecuteContext(t.Context()); err != nil && !kubectl.Printed(err) {
		c.PrintErrln("error:", err)
	}
	printed := out.String() + errOut.String()
	hostile.Check(t, strings.Join(args, " "), printed)
	return printed
}
