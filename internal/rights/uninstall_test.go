package rights

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/recovery"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/wait"
)

// What administers belay: its removal, and versions of its CustomResourceDefinitions.

const deployed = "../../deploy/belay-recovery/"

// withFences is a client that knows belay's kinds.
func withFences(tb testing.TB, config *rest.Config) client.Client {
	tb.Helper()
	scheme := runtime.NewScheme()
	must(tb, clientscheme.AddToScheme(scheme))
	must(tb, fencingv1.AddToScheme(scheme))
	c, err := client.New(config, client.Options{Scheme: scheme})
	must(tb, err)
	return c
}

// installCRDs has the API server serve exactly these CustomResourceDefinitions, each in place of one of its name.
func installCRDs(tb testing.TB, paths ...string) {
	tb.Helper()
	for _, object := range apiserver.Manifests(tb, paths...) {
		stored := &unstructured.Unstructured{}
		stored.SetGroupVersionKind(object.GroupVersionKind())
		if server.Client.Get(tb.Context(), client.ObjectKeyFromObject(object), stored) != nil {
			must(tb, server.Client.Create(tb.Context(), object))
		} else {
			object.SetResourceVersion(stored.GetResourceVersion())
			must(tb, server.Client.Update(tb.Context(), object))
		}
		kind := &unstructured.UnstructuredList{}
		kind.SetAPIVersion(fencingv1.GroupVersion.String())
		kind.SetKind(map[bool]string{true: "NodeFenceList", false: "FenceSourceList"}[strings.HasPrefix(object.GetName(), "nodefences")])
		wait.Until(tb, object.GetName()+" is served", func() bool { return server.Client.List(tb.Context(), kind) == nil })
	}
}

// storeFence makes a fence of a node that is in a phase, as its actor left it, with its taint.
func storeFence(tb testing.TB, c client.Client, node string, phase fencing.Phase) *fencingv1.NodeFence {
	tb.Helper()
	create(tb, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{
		{Key: kube.IsolationTaint, Value: kube.FenceTaint(1), Effect: corev1.TaintEffectNoSchedule},
	}}})
	f := &fencingv1.NodeFence{
		ObjectMeta: metav1.ObjectMeta{Name: node, Finalizers: []string{kube.FenceFinalizer}},
		Spec: fencingv1.NodeFenceSpec{
			NodeName: node, NodeUID: "u", BootID: "b", MachineID: "m", Epoch: 1, LastRenewal: "r", Release: fencingv1.ReleaseAuto,
		},
	}
	must(tb, c.Create(tb.Context(), f))
	tb.Cleanup(func() { dropFence(tb, node) })
	f.Status.Evidence = []fencingv1.Evidence{{Class: string(fencing.PoweredOff), Power: "Off", BootID: "b", MachineID: "m", Time: metav1.NowMicro()}}
	for _, p := range fencing.Phases() {
		if p == fencing.Cancelled && phase != p {
			break
		}
		if phase == fencing.Cancelled && p != fencing.Suspected && p != phase {
			continue
		}
		f.Status.Phase = fencingv1.Phase(p)
		must(tb, c.Status().Update(tb.Context(), f))
		if p == phase {
			break
		}
	}
	return f
}

// dropFence removes a fence, whatever state it is in.
func dropFence(tb testing.TB, name string) {
	tb.Helper()
	ctx, f := context.WithoutCancel(tb.Context()), &unstructured.Unstructured{}
	f.SetAPIVersion(fencingv1.GroupVersion.String())
	f.SetKind("NodeFence")
	f.SetName(name)
	_ = server.Client.Patch(ctx, f, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
	_ = server.Client.Delete(ctx, f)
}

// TestUninstall (point 11): with the rights of the hook alone, `belay-controller leave` refuses for each unfinished phase and changes nothing,
// and releases a fence that was cancelled or released, and whose actor was gone before it could.
func TestUninstall(t *testing.T) {
	start(t)
	installCRDs(t, deployed+"fencing.belay.dev_nodefences.yaml", deployed+"fencing.belay.dev_fencesources.yaml")
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "belay-system"}})
	hook := withFences(t, server.ServiceAccount(t, "belay-system", "belay-recovery-leave", deployed+"leave.yaml"))
	admin := withFences(t, server.Config())
	lease := client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "belay-recovery-detector"}
	create(t, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.Name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("a"), LeaseDurationSeconds: new(int32(1))},
	})
	for _, phase := range fencing.Phases() {
		name := "leave-" + strings.ToLower(string(phase))
		done := phase == fencing.Released || phase == fencing.Cancelled
		f := storeFence(t, admin, name, phase)
		node := &corev1.Node{}
		must(t, admin.Get(t.Context(), client.ObjectKey{Name: name}, node))
		if phase == fencing.Released { // its taints were removed before that
			node.Spec.Taints = nil
			must(t, admin.Update(t.Context(), node))
		}
		before := node.ResourceVersion + f.ResourceVersion
		err := recovery.Leave(t.Context(), hook, lease)
		must(t, admin.Get(t.Context(), client.ObjectKey{Name: name}, node))
		must(t, admin.Get(t.Context(), client.ObjectKey{Name: name}, f))
		switch {
		case done && err != nil:
			t.Errorf("%s: %v", phase, err)
		case done && (len(f.Finalizers) > 0 || slices.ContainsFunc(node.Spec.Taints, func(x corev1.Taint) bool { return x.Key == kube.IsolationTaint })):
			t.Errorf("%s: left finalizers %v, taints %v", phase, f.Finalizers, node.Spec.Taints)
		case !done && (err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%s (%s)", name, phase)) || !strings.Contains(err.Error(), "kubectl belay unfence")):
			t.Errorf("%s: %v", phase, err)
		case !done && node.ResourceVersion+f.ResourceVersion != before:
			t.Errorf("%s: refused, and changed something", phase)
		}
		dropFence(t, name)
		must(t, admin.Delete(t.Context(), node))
	}
	create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "leave-tainted"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{
		{Key: kube.OutOfServiceTaint, Value: kube.FenceTaint(1), Effect: corev1.TaintEffectNoExecute},
	}}})
	if err := recovery.Leave(t.Context(), hook, lease); err == nil || !strings.Contains(err.Error(), "leave-tainted. Remove them as `kubectl belay runbook TaintWithoutFence`") {
		t.Errorf("with a taint that nothing would remove: %v", err)
	}
}

// TestVersionsOfCRDs (point 11): a fence that was stored under the NodeFence of the version before is read and carried on under this one, and one
// of this version under the one before. What only the newer one knows is gone once the older one has written, and nothing else is.
func TestVersionsOfCRDs(t *testing.T) {
	start(t)
	const older, newer = "testdata/nodefences-previous.yaml", deployed + "fencing.belay.dev_nodefences.yaml"
	c := withFences(t, server.Config())
	f := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "versions"}}
	said := &fencingv1.StatementRecord{Expires: metav1.Unix(2_000_000_000, 0)} // the older version has no field for it
	enter := func(phase fencing.Phase, options ...client.SubResourceUpdateOption) {
		t.Helper()
		f.Status.Phase, f.Status.Statement = fencingv1.Phase(phase), said
		must(t, c.Status().Update(t.Context(), f, options...))
	}
	serve := func(path string, knows bool) {
		t.Helper()
		installCRDs(t, path)
		wait.Until(t, path+" is served", func() bool { // the API server takes it up some time after it has stored it
			must(t, c.Get(t.Context(), client.ObjectKeyFromObject(f), f))
			enter(fencing.Phase(f.Status.Phase), client.DryRunAll)
			return (f.Status.Statement != nil) == knows
		})
		must(t, c.Get(t.Context(), client.ObjectKeyFromObject(f), f))
	}
	installCRDs(t, older)
	storeFence(t, c, f.Name, fencing.Evicting)
	serve(older, false)
	stored := f.DeepCopy()
	for _, step := range []struct {
		path  string
		knows bool
		enter fencing.Phase
	}{{newer, true, fencing.Detaching}, {older, false, fencing.Moved}, {newer, true, fencing.Releasing}} {
		serve(step.path, step.knows)
		enter(step.enter)
		must(t, c.Get(t.Context(), client.ObjectKeyFromObject(f), f))
		if (f.Status.Statement != nil) != step.knows || f.Status.Phase != fencingv1.Phase(step.enter) {
			t.Errorf("%s: %s, statement %v", step.path, f.Status.Phase, f.Status.Statement)
		}
		f.Status.Statement, stored.Status.Phase = nil, f.Status.Phase
		if !apiequality.Semantic.DeepEqual(f.Spec, stored.Spec) || !apiequality.Semantic.DeepEqual(f.Status, stored.Status) || !slices.Equal(f.Finalizers, stored.Finalizers) {
			t.Errorf("%s: %+v, want %+v", step.path, f, stored)
		}
	}
	enter(fencing.Released)
	f.Finalizers = nil
	must(t, c.Update(t.Context(), f))
	if !kube.FenceFinished(f) {
		t.Errorf("it does not end: %+v", f)
	}
}
