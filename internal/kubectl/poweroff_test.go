package kubectl

import (
	"context"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/inspect"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
)

// withRole is a kubeconfig of a user with a ClusterRole that is shipped.
func withRole(t *testing.T, name, role string) (kubeconfig string) {
	t.Helper()
	create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: name}},
	})
	granted := rbacv1.ClusterRole{}
	if err := server.Client.Get(t.Context(), client.ObjectKey{Name: role}, &granted); err != nil {
		t.Fatal(err)
	}
	server.AwaitRights(t, []rbacv1.ClusterRole{granted}, name)
	return apiserver.Kubeconfig(t, server.User(t, name))
}

// switched makes a node that is lost, with a power switch that said On during its boot, a pod and a volume.
func switched(t *testing.T, name string) {
	t.Helper()
	lost(t, name)
	n := &corev1.Node{}
	if err := server.Client.Get(t.Context(), client.ObjectKey{Name: name}, n); err != nil {
		t.Fatal(err)
	}
	source := sourceOf(name, "a", "b")
	meta.SetStatusCondition(&source.Status.Conditions, metav1.Condition{Type: kube.ConditionFenceReady, Status: metav1.ConditionTrue, Reason: "SaidOn"})
	source.Status.Bound = &fencingv1.Bound{NodeUID: string(n.UID), BootID: bootOfA, MachineID: uuidOfA, HardwareID: uuidOfA, Time: metav1.NowMicro()}
	create(t, source)
	create(t, fixture.Pod("default", name+"-db-0", name, "data"))
	create(t, fixture.Attachment(name+"-va", "disk.test", name, "pv-"+name))
	t.Cleanup(func() {
		_ = server.Client.Delete(context.WithoutCancel(t.Context()), &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name + "-va"}})
	})
}

// hasFence reports whether there is a NodeFence.
func hasFence(t *testing.T, name string) bool {
	t.Helper()
	err := server.Client.Get(t.Context(), client.ObjectKey{Name: name}, &fencingv1.NodeFence{})
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return !apierrors.IsNotFound(err)
}

// TestPowerOff: what would happen is shown; a request is written only with --confirm and the machine's name, by a user who may ask, in the user's own name,
// and for no node that is Ready or renews its lease (S8).
func TestPowerOff(t *testing.T) {
	server.Start(t)
	switched(t, "off")
	switched(t, "ready")
	switched(t, "renews")
	lost(t, "without-a-switch")
	switched(t, "master")
	change := func(name string, with func(*corev1.Node)) {
		t.Helper()
		n := &corev1.Node{}
		if err := server.Client.Get(t.Context(), client.ObjectKey{Name: name}, n); err != nil {
			t.Fatal(err)
		}
		with(n)
		if err := server.Client.Update(t.Context(), n.DeepCopy()); err != nil {
			t.Fatal(err)
		}
	}
	ready(t, "ready")
	renew(t, "renews")
	change("master", func(n *corev1.Node) { n.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""} })
	alice, stranger := withRole(t, "alice", "belay-fence-power-off"), confirmer(t, "stranger-to-power")
	ask := func(node string, more ...string) []string {
		return append([]string{"fence", "node/" + node, "--power-off", "--reason", "kubelet does not start"}, more...)
	}
	confirmed := []string{"--confirm", "--machine", strings.ToUpper(uuidOfA)}
	for name, tc := range map[string]struct {
		who    string
		args   []string
		status int
		says   string
	}{
		"only shown":                    {alice, ask("off"), StatusClear, "the API server accepts the request"},
		"what is released":              {alice, ask("off"), StatusClear, "with volumes: default/off-db-0), and its volumes are detached: 1 (volume pv-off)"},
		"which switch":                  {alice, ask("off"), StatusClear, "asks its power switch (fence_ipmilan)"},
		"what to type":                  {alice, ask("off"), StatusClear, "add --machine " + uuidOfA + " and --confirm"},
		"for JSON":                      {alice, ask("off", "-o", "json"), StatusClear, `"action": "RequestPowerOff"`},
		"confirmed without the machine": {alice, ask("off", "--confirm"), StatusBlocked, "machine, NOT MET"},
		"another machine":               {alice, ask("off", "--confirm", "--machine", "x"), StatusBlocked, "machine, NOT MET"},
		"no reason":                     {alice, []string{"fence", "off", "--power-off"}, StatusClear, "add --reason \"...\", --machine " + uuidOfA + " and --confirm"},
		"no reason, what is released":   {alice, []string{"fence", "off", "--power-off"}, StatusClear, "the API server accepts the request"},
		"confirmed without a reason":    {alice, append([]string{"fence", "off", "--power-off"}, confirmed...), StatusBlocked, "reason, NOT MET"},
		"off already":                   {alice, ask("off", "--confirm-powered-off"), StatusError, "--power-off asks"},
		"a Ready node":                  {alice, ask("ready", confirmed...), StatusBlocked, "is true: not Ready"},
		"a node that renews its lease":  {alice, ask("renews", confirmed...), StatusBlocked, "is true: silence"},
		"no switch":                     {alice, ask("without-a-switch", confirmed...), StatusBlocked, "has no FenceSource"},
		"the control plane":             {alice, ask("master", confirmed...), StatusBlocked, "is true: node"},
		"no such node":                  {alice, ask("nowhere", confirmed...), StatusError, "does not exist"},
		"without the right":             {stranger, ask("off"), StatusBlocked, "create and power-off on nodefences (ClusterRole belay-fence-power-off)"},
		"confirmed without the right":   {stranger, ask("off", confirmed...), StatusBlocked, "permission, NOT MET"},
	} {
		got := run(t, tc.who, tc.args...)
		if got.status != tc.status || !strings.Contains(got.out+got.err, tc.says) {
			t.Errorf("%s: exit status %d, want %d and %q:\n%s%s", name, got.status, tc.status, tc.says, got.out, got.err)
		}
		if tc.who == alice && strings.Contains(got.out, "You lack permission") {
			t.Errorf("%s: the ClusterRole lacks what the command reads:\n%s", name, got.out)
		}
		if hasFence(t, "off") || hasFence(t, "ready") || hasFence(t, "renews") {
			t.Fatalf("%s: a request was written", name)
		}
		if name == "only shown" || name == "a Ready node" || name == "without the right" {
			t.Logf("$ kubectl belay %s\n%s%s(exit status %d)", strings.Join(tc.args, " "), got.out, got.err, got.status)
		}
	}
	got := run(t, alice, ask("off", confirmed...)...)
	if got.status != StatusClear {
		t.Fatalf("exit status %d:\n%s%s", got.status, got.out, got.err)
	}
	t.Logf("$ kubectl belay %s\n%s%s(exit status %d)", strings.Join(ask("off", confirmed...), " "), got.out, got.err, got.status)
	f := stored(t, "off")
	if r := f.Spec.Request; r == nil || r.By != "alice" || r.Reason != "kubelet does not start" || f.Spec.Trigger != fencingv1.TriggerRequested ||
		f.Spec.MachineID != uuidOfA || f.Spec.BootID != bootOfA || f.Spec.LastRenewal == "" || len(f.Finalizers) != 1 {
		t.Errorf("the NodeFence is %+v", f)
	}
	t.Cleanup(func() { end(t, "off") })
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"asked again": {ask("off"), "alice asked for it already (kubelet does not start)"},
		"explain":     {[]string{"explain", "node/off"}, "alice asked for the power-off of the machine (kubelet does not start)"},
		"evidence":    {[]string{"evidence", "off"}, "alice asked for the power-off of the machine (kubelet does not start)"},
		"withdraw it": {[]string{"unfence", "off"}, "recovery cancels the fence"},
	} {
		if got := run(t, alice, tc.args...); !strings.Contains(got.out, tc.says) {
			t.Errorf("%s: want %q:\n%s%s", name, tc.says, got.out, got.err)
		}
	}
	if got := run(t, alice, "unfence", "off", "--confirm"); got.status != StatusClear || stored(t, "off").DeletionTimestamp == nil {
		t.Errorf("the request is not withdrawn: exit status %d:\n%s%s", got.status, got.out, got.err)
	}
}

// end removes a NodeFence, which nothing finishes here.
func end(t *testing.T, name string) {
	t.Helper()
	ctx, f := context.WithoutCancel(t.Context()), &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_ = server.Client.Patch(ctx, f, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
	if err := server.Client.Delete(ctx, f); client.IgnoreNotFound(err) != nil {
		t.Error(err)
	}
}

// ready has a node count as Ready.
func ready(t *testing.T, name string) {
	t.Helper()
	n := &corev1.Node{}
	if err := server.Client.Get(t.Context(), client.ObjectKey{Name: name}, n); err != nil {
		t.Fatal(err)
	}
	n.Status.Conditions[0].Status = corev1.ConditionTrue
	if err := server.Client.Status().Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
}

// renew renews the lease of a node.
func renew(t *testing.T, name string) {
	t.Helper()
	lease := &coordinationv1.Lease{}
	if err := server.Client.Get(t.Context(), client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: name}, lease); err != nil {
		t.Fatal(err)
	}
	lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	if err := server.Client.Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
}

// TestPowerOffIsReadAgain (S8): a node that becomes Ready, or renews its lease, after the plan was made is left alone. The record of a fence that is over
// makes room for the next request.
func TestPowerOffIsReadAgain(t *testing.T) {
	server.Start(t)
	reader, err := inspect.New(server.Config())
	if err != nil {
		t.Fatal(err)
	}
	plan := func(name string) diagnosis.FencePlan {
		t.Helper()
		p, err := diagnosis.PlanPowerOff(reader.PoweredOff(t.Context(), name), name,
			diagnosis.PowerOffRequest{Machine: uuidOfA, Reason: "r", Confirmed: true}, reader.Author(t.Context(), verbPowerOff, name))
		if err != nil || p.Refusal != "" {
			t.Fatalf("%v %+v", err, p)
		}
		return p
	}
	for name, lives := range map[string]func(*testing.T, string){"ready-again": ready, "renewed-again": renew} {
		switched(t, name)
		p := plan(name)
		lives(t, name)
		if err := reader.Fence(t.Context(), p, false); err == nil || !strings.Contains(err.Error(), "has changed since it was looked at") || hasFence(t, name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	switched(t, "fenced-before")
	before := fenceOn("fenced-before", 7)
	before.Finalizers = nil
	create(t, before)
	before = stored(t, "fenced-before")
	before.Status.Phase = fencingv1.Phase(fencing.Cancelled)
	if err := server.Client.Status().Update(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	if err := reader.Fence(t.Context(), plan("fenced-before"), false); err != nil {
		t.Fatal(err)
	}
	if f := stored(t, "fenced-before"); f.UID == before.UID || f.Spec.Epoch <= before.Spec.Epoch || f.Spec.Request == nil {
		t.Errorf("the NodeFence is %+v", f)
	}
	end(t, "fenced-before")
}
