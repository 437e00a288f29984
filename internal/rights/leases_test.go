package rights

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/kubectl"
	"belay.dev/belay/internal/preflight"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/process"
)

const leaseDriver = "disk.example.com"

// leader is a lease of leader election. Without a holder it is one that was released.
func leader(namespace, name, holder string, renewed time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: coordinationv1.LeaseSpec{
		HolderIdentity: &holder, LeaseDurationSeconds: new(int32(15)), AcquireTime: new(metav1.NewMicroTime(renewed)), RenewTime: new(metav1.NewMicroTime(renewed)),
	}}
}

// attackerLeases is a cluster in which a user with the role edit writes leases, and an attachment that waits for its attacher.
type attackerLeases struct {
	*testing.T

	namespace string
	tenant    client.Client
	reader    *rest.Config
	va        string
}

func withLeases(t *testing.T, namespace string) attackerLeases {
	t.Helper()
	edit, err := client.New(tenant(t, namespace), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"belay-system", namespace + "-csi"} {
		if err := server.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); client.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
	}
	create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: namespace, Annotations: map[string]string{kube.ManagedAttachAnnotation: "true"}}})
	va := kube.AttachmentName("v", leaseDriver, namespace)
	create(t, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: leaseDriver}})
	create(t, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: va}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: leaseDriver, NodeName: namespace, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("v")},
	}})
	return attackerLeases{t, namespace, edit, server.ServiceAccount(t, "belay-system", "belay-reader", readerFile), va}
}

// writes makes an object with the tenant's credential.
func (a attackerLeases) writes(object client.Object) {
	a.Helper()
	if err := a.tenant.Create(a.Context(), object); err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() { _ = server.Client.Delete(context.WithoutCancel(a.Context()), object) })
}

// bind gives a ServiceAccount the rights of an attacher.
func (a attackerLeases) bind(namespace string) {
	a.Helper()
	name := "attacher-of-" + namespace
	create(a, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{storagev1.GroupName}, Resources: []string{"volumeattachments"}, Verbs: []string{"get", "list", "watch", "patch"}},
	}})
	create(a, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "attacher"}},
	})
}

// run runs a command of the plugin as the reader.
func (a attackerLeases) run(args ...string) string {
	a.Helper()
	var out bytes.Buffer
	var errOut process.Output
	c := kubectl.NewCommand(genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &out, ErrOut: &errOut}, "test")
	c.SetArgs(append(args, "--kubeconfig", apiserver.Kubeconfig(a, a.reader)))
	if err := c.ExecuteContext(a.Context()); err != nil && !kubectl.Printed(err) {
		a.Fatalf("%v: %v", args, err)
	}
	return out.String()
}

// says compares an answer with what it has to say, and with what only the tenant says.
func (a attackerLeases) says(answer string, want []string, never ...string) {
	a.Helper()
	for _, text := range want {
		if !strings.Contains(answer, text) {
			a.Errorf("it does not say %q:\n%s", text, answer)
		}
	}
	for _, text := range append(never, a.namespace+"/") {
		if strings.Contains(answer, text) {
			a.Errorf("it says %q:\n%s", text, answer)
		}
	}
}

const readerFile = "../../deploy/kubectl-belay/reader.yaml"

const attachersLease = "external-attacher-leader-disk-example-com"

// TestLeaseOfATenantIsNoLeader: what a tenant writes says neither that an attacher or a controller runs, nor that it does not.
func TestLeaseOfATenantIsNoLeader(t *testing.T) {
	a := withLeases(t, "lease-alive")
	for _, name := range []string{attachersLease, "belay-controller", "kube-controller-manager"} {
		a.writes(leader(a.namespace, name, "tenant-0", time.Now().Add(time.Minute)))
	}
	a.says(a.run("explain", "va/"+a.va, "-o", "wide"), nil, "its lease was renewed", "does not run")
	a.says(a.run("check"), []string{"its attacher has no lease that counts"}, "belay-controller attaches and detaches", "kube-controller-manager leads", "an attacher holds its lease", "held by")
	a.says(a.run("check", "-o", "json"), nil, "belay-controller attaches and detaches", "tenant-0")
}

// TestLeaseOfATenantHidesNoLeader: a lease that is newer than the attacher's own, and was released, does not make the attacher one that is
// gone. That of a driver whose ServiceAccount may write VolumeAttachments counts.
func TestLeaseOfATenantHidesNoLeader(t *testing.T) {
	a := withLeases(t, "lease-released")
	a.bind(a.namespace + "-csi")
	a.writes(leader(a.namespace, attachersLease, "", time.Now().Add(time.Minute)))
	create(t, leader(a.namespace+"-csi", attachersLease, "attacher-0", time.Now()))
	a.says(a.run("explain", "va/"+a.va, "-o", "wide"), []string{"runs: its lease was renewed"}, "does not run", "none has held its lease")
	a.says(a.run("check"), []string{"an attacher holds its lease"}, "no attacher holds its lease")
}

// TestLeaseWithoutTheRightToReadRoles: a user who may not read who writes VolumeAttachments learns nothing from the leases of other namespaces,
// and which permission that takes.
func TestLeaseWithoutTheRightToReadRoles(t *testing.T) {
	a := withLeases(t, "lease-blind")
	a.bind(a.namespace + "-csi")
	a.writes(leader(a.namespace, attachersLease, "", time.Now().Add(time.Minute)))
	create(t, leader(a.namespace+"-csi", attachersLease, "attacher-0", time.Now()))
	role := apiserver.Decode[rbacv1.ClusterRole](t, apiserver.Manifests(t, readerFile), "ClusterRole")[0]
	role.Name = "lease-blind-reader"
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.APIGroups, rbacv1.GroupName) })
	server.Grant(t, &role, role.Name)
	a.reader = server.User(t, role.Name)
	a.says(a.run("explain", "va/"+a.va, "-o", "wide"), []string{"list clusterroles: forbidden"}, "its lease was renewed", "does not run")
	a.says(a.run("check"), []string{"its attacher is unknown: needs the permission to list clusterroles"}, "attacher holds its lease", "its attacher has no lease")
	clients := kubernetes.NewForConfigOrDie(a.reader)
	a.writes(leader(a.namespace, kube.FieldManager, "belay-0_u", time.Now().Add(time.Minute)))
	report := preflight.Run(t.Context(), preflight.Config{Clients: clients, Phase: preflight.RollBack})
	if own := report.Checks[0]; own.Result != preflight.Unknown || !strings.Contains(own.Message, "needs the permission to list clusterroles") {
		t.Errorf("%+v", own)
	}
}

// TestLeaseOfATenantStopsNoRollBack: belay-controller has ended where only a tenant says that it leads.
func TestLeaseOfATenantStopsNoRollBack(t *testing.T) {
	a := withLeases(t, "lease-back")
	// Other tests install it for its rights.
	installed := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "belay-system", Name: "belay-controller"}}
	if err := server.Client.Delete(t.Context(), installed); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	a.writes(leader(a.namespace, kube.FieldManager, "belay-0_u", time.Now().Add(time.Minute)))
	clients := kubernetes.NewForConfigOrDie(server.Config())
	report := preflight.Run(t.Context(), preflight.Config{Clients: clients, Phase: preflight.RollBack})
	if !report.Ready {
		t.Errorf("%s %+v", report.Verdict(), report.Checks)
	}
	a.bind(a.namespace) // who may use its ServiceAccounts may write VolumeAttachments now
	if report := preflight.Run(t.Context(), preflight.Config{Clients: clients, Phase: preflight.RollBack}); report.Ready {
		t.Errorf("belay-controller leads with another lease: %+v", report.Checks)
	}
}

// TestLeaseOfATenantOpensNoLogs: a bundle has no logs of pods that only a tenant calls an attacher.
func TestLeaseOfATenantOpensNoLogs(t *testing.T) {
	a := withLeases(t, "lease-logs")
	create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: "default"}})
	a.writes(leader(a.namespace, attachersLease, "csi-attacher-0", time.Now().Add(time.Minute)))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: "csi-attacher-0"}, Spec: corev1.PodSpec{
		NodeName: a.namespace, Containers: []corev1.Container{{Name: "c", Image: "tenant/csi-attacher:v1"}},
	}}
	a.writes(pod)
	pod.Status.Phase = corev1.PodRunning // as the kubelet says
	if err := server.Client.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	files := archived(t, a.run("bundle", "-f", "-"))
	a.says(files["README.txt"], []string{"objects/leases.yaml"}, "logs/"+a.namespace)
	a.says(files["check.txt"], []string{"its attacher has no lease"}, "tenant/csi-attacher")
}

// archived returns the files of a bundle.
func archived(t *testing.T, packed string) map[string]string {
	t.Helper()
	zipped, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	files, archive := map[string]string{}, tar.NewReader(zipped)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		content, readErr := io.ReadAll(archive)
		if err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		files[strings.TrimPrefix(header.Name, "belay-bundle/")] = string(content)
	}
}

// TestLeadInANamespaceOfRecords: the chart may be installed into any namespace. In one whose name has "-records" in it, belay-controller makes its two leases, and
// no other.
func TestLeadInANamespaceOfRecords(t *testing.T) {
	const user = "system:serviceaccount:medical-records:belay-controller"
	policies(t, "records", controllerFiles+"admission-writes.yaml", "system:serviceaccount:belay-system:", "system:serviceaccount:medical-records:")
	server.Grant(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "medical-records"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create"}},
	}}, user)
	leases := []attempt{
		{"leads in the place of another", "create", lease("kube-system", "another"), "", "belay-records-leases"},
		{"leads in the place of the actor", "create", lease("kube-system", "belay-recovery-actor"), "", "belay-records-leases"},
		{"leads", "create", lease("kube-system", "belay-controller"), "", byNone},
		{"says that all attachments are recorded", "create", lease("kube-system", "belay-controller-records"), "", byNone},
	}
	t.Cleanup(func() {
		for _, a := range leases {
			_ = server.Client.Delete(context.WithoutCancel(t.Context()), a.object)
		}
	})
	attempts(t, withFences(t, server.User(t, user)), leases...)
}
