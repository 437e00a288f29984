package rights

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/recovery"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/wait"
)

const recoveryFiles = "../../deploy/belay-recovery/"

// fleet is a cluster with nodes that stay alive, on which the detector and the actor run with the rights that are shipped for them. A person
// states that dead machines are off: these tests have no power switch.
type fleet struct {
	testing.TB

	admin client.Client
}

// newFleet has enough nodes for the shares of silent ones that the brakes allow.
func newFleet(t *testing.T) *fleet {
	t.Helper()
	start(t)
	server.Apply(t, recoveryFiles+"fencing.belay.dev_nodefences.yaml", recoveryFiles+"fencing.belay.dev_fencesources.yaml", recoveryFiles+"admission.yaml")
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientscheme.AddToScheme, fencingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	admin, err := client.New(server.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{TB: t, admin: admin}
	wait.Until(t, "the CRDs are served", func() bool {
		return admin.List(t.Context(), &fencingv1.NodeFenceList{}) == nil && admin.List(t.Context(), &fencingv1.FenceSourceList{}) == nil
	})
	wait.Until(t, "the policy has been in force long enough for a statement to count", func() bool {
		policy, binding := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
		key := client.ObjectKey{Name: "belay-fence-statement"}
		settled := func(o client.Object) bool {
			return admin.Get(t.Context(), key, o) == nil && time.Since(o.GetCreationTimestamp().Time) > 6*time.Second
		}
		return settled(policy) && settled(binding)
	})
	t.Cleanup(f.clear)
	for i := range 6 {
		name := "alive-" + strconv.Itoa(i)
		create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		f.lease(name, 3600)
	}
	return f
}

func (f *fleet) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// clear removes the fences, which nothing finishes once the actor has stopped.
func (f *fleet) clear() {
	ctx := context.Background()
	fences := &fencingv1.NodeFenceList{}
	f.must(f.admin.List(ctx, fences))
	for i := range fences.Items {
		fence := &fences.Items[i]
		f.must(client.IgnoreNotFound(f.admin.Patch(ctx, fence, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
		f.must(client.IgnoreNotFound(f.admin.Delete(ctx, fence)))
	}
}

// lease makes the lease of a node, which renews it never: it is silent soon, or not in this test.
func (f *fleet) lease(node string, seconds int32) {
	f.Helper()
	create(f, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds},
	})
}

// dead makes a node that has died, and returns a client with the credential that its kubelet has.
func (f *fleet) dead(name string) client.Client {
	f.Helper()
	own, err := client.New(kubelet(f, name), client.Options{})
	f.must(err)
	f.must(own.Status().Patch(f.Context(), f.node(name), client.RawPatch(types.MergePatchType, fmt.Appendf(nil,
		`{"status":{"nodeInfo":{"bootID":"boot-of-%s","systemUUID":"4c4c4544-%[1]s"},"conditions":[{"type":"Ready","status":"Unknown"}]}}`, name))))
	f.lease(name, 1)
	keeps := fixture.Pod("default", "", name, "data") // without a volume there is nothing to fence the node for
	keeps.GenerateName = "keeps-" + name + "-"
	f.must(f.admin.Create(f.Context(), keeps))
	f.Cleanup(func() { _ = f.admin.Delete(context.Background(), keeps, client.GracePeriodSeconds(0)) })
	return own
}

func (f *fleet) node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// recovers runs the detector and the actor until the test ends.
func (f *fleet) recovers() {
	f.Helper()
	f.runs("detector", recovery.Roles{Detector: true})
	f.runs("actor", recovery.Roles{Actor: true})
}

// runs runs a part with the rights that are shipped for it.
func (f *fleet) runs(name string, roles recovery.Roles, change ...func(*recovery.Options)) {
	f.Helper()
	ctx, cancel := context.WithCancel(f.Context())
	config := server.ServiceAccount(f, "belay-system", "belay-recovery-"+name, recoveryFiles+name+".yaml")
	mgr, err := kube.NewManager(config, kube.ManagerConfig{MetricsAddress: "0", HealthAddress: "0"})
	f.must(err)
	o := recovery.Options{
		Roles: roles, Brakes: fencing.DefaultBrakes(),
		Profile: fencing.Profile{Name: "test", Silence: 2 * time.Second, LeaseDuration: time.Second},
	}
	for _, c := range change {
		c(&o)
	}
	f.must(recovery.Setup(mgr, name, o))
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	f.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			f.Errorf("%s: %v", name, err)
		}
	})
}

// until waits until the fence of a node is in a phase. One that is cancelled or not begun because of the attacker fails the test at once.
func (f *fleet) until(node string, phase fencing.Phase) *fencingv1.NodeFence {
	f.Helper()
	fence := &fencingv1.NodeFence{}
	wait.Until(f, node+" is "+string(phase), func() bool {
		f.must(client.IgnoreNotFound(f.admin.Get(f.Context(), client.ObjectKey{Name: node}, fence)))
		if fence.Status.Phase == fencingv1.Phase(fencing.Cancelled) {
			f.Fatalf("the fence of %s is cancelled", node)
		}
		f.heldBack(node)
		return fence.Status.Phase == fencingv1.Phase(phase)
	})
	return fence
}

// heldBack fails the test if a brake keeps a node from being fenced.
func (f *fleet) heldBack(node string) {
	f.Helper()
	events := &eventsv1.EventList{}
	f.must(f.admin.List(f.Context(), events))
	for _, e := range events.Items {
		if e.Regarding.Name == node && strings.HasPrefix(e.Reason, "TooMany") {
			f.Fatalf("%s is not fenced: %s", node, e.Reason)
		}
	}
}

// stated has a person say that the machine of a fenced node is off.
func (f *fleet) stated(node string) *fencingv1.NodeFence {
	f.Helper()
	fence := f.until(node, fencing.Fencing)
	before := fence.DeepCopy()
	fence.Spec.Statement = &fencingv1.Statement{By: "admin", Reason: "pulled the plug", MachineID: fence.Spec.MachineID, Expires: metav1.NewTime(time.Now().Add(time.Hour))}
	f.must(f.admin.Patch(f.Context(), fence, client.MergeFrom(before)))
	return fence
}

// TestKubeletWritesTheEpoch: what a kubelet writes into the annotation of its own Node neither ends its fence, nor has another one begun,
// nor takes from what the brakes leave for other nodes.
func TestKubeletWritesTheEpoch(t *testing.T) {
	f := newFleet(t)
	liar := f.dead("liar")
	says := func(epoch int64) {
		t.Helper()
		f.must(liar.Patch(t.Context(), f.node("liar"), client.RawPatch(types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, kube.FenceEpochAnnotation, epoch))))
	}
	says(math.MaxInt64)
	f.recovers()
	began := f.until("liar", fencing.Fencing)
	if ahead := time.Until(time.Unix(began.Spec.Epoch, 0)); ahead > time.Minute {
		t.Errorf("the fence has epoch %d, which is %v ahead", began.Spec.Epoch, ahead)
	}
	says(time.Now().Add(23 * time.Hour).Unix()) // one that counts, while the fence waits
	f.stated("liar")
	if moved := f.until("liar", fencing.Moved); moved.UID != began.UID {
		t.Error("the fence of the liar was begun again")
	}
	f.dead("victim")
	f.until("victim", fencing.Fencing)
}

// TestTenantNamesItsPods: a pod that uses a claim of the tenant goes with its machine, whatever the tenant wrote into it: that a DaemonSet or
// the kubelet would make it again. The next pod of a DaemonSet stays. A finalizer of the tenant's keeps the fences of two nodes from their
// end, and no other node from being fenced.
func TestTenantNamesItsPods(t *testing.T) {
	f := newFleet(t)
	edit, err := client.New(tenant(t, "names-its-pods"), client.Options{})
	f.must(err)
	pod := func(node, name string, change ...func(*corev1.Pod)) *corev1.Pod {
		t.Helper()
		p := fixture.Pod("names-its-pods", node+"-"+name, node, "data-"+name)
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		for _, c := range change {
			c(p)
		}
		f.must(edit.Create(t.Context(), p))
		return p
	}
	ofDaemonSet := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "none", UID: "none", Controller: new(true)}}
	}
	mirror := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "none"} }
	stays := func(p *corev1.Pod) { p.Finalizers = []string{"tenant.example.com/stays"} }
	nodes := []string{"first", "second"}
	for _, node := range nodes {
		f.dead(node)
		stuck := pod(node, "stuck", ofDaemonSet, stays)
		gone := []*corev1.Pod{pod(node, "owned", ofDaemonSet), pod(node, "mirror", mirror), pod(node, "both", ofDaemonSet, mirror)}
		create(t, fixture.Attachment(node+"-va", "disk.test", node, "pv-"+node))
		t.Cleanup(func() {
			_ = f.admin.Patch(context.Background(), stuck, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
			for _, p := range append(gone, stuck) {
				_ = f.admin.Delete(context.Background(), p, client.GracePeriodSeconds(0))
			}
		})
	}
	f.recovers()
	left := func(node string) (names []string) {
		t.Helper()
		pods := &corev1.PodList{}
		f.must(f.admin.List(t.Context(), pods, client.InNamespace("names-its-pods"), client.MatchingFields{"spec.nodeName": node}))
		for i := range pods.Items {
			if p := &pods.Items[i]; p.DeletionTimestamp == nil || p.Name != node+"-stuck" {
				names = append(names, p.Name)
			}
		}
		slices.Sort(names)
		return names
	}
	for _, node := range nodes {
		f.stated(node)
		f.until(node, fencing.Detaching)
		if names := left(node); len(names) > 0 {
			t.Errorf("of the pods on %s are left: %v", node, names)
		}
	}
	next := pod("first", "next", ofDaemonSet)
	f.dead("victim")
	f.until("victim", fencing.Fencing)
	f.until("first", fencing.Detaching)
	f.must(f.admin.Delete(t.Context(), fixture.Attachment("first-va", "", "", ""))) // as the attach/detach controller does
	f.until("first", fencing.Moved)
	if names := left("first"); !slices.Equal(names, []string{next.Name}) {
		t.Errorf("on the first node are %v, and not only the next pod of the DaemonSet", names)
	}
}
