package recovery

import (
	"cmp"
	"context"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/wait"
)

const (
	crdFence  = "../../deploy/belay-recovery/fencing.belay.dev_nodefences.yaml"
	crdSource = "../../deploy/belay-recovery/fencing.belay.dev_fencesources.yaml"
	medik8s   = "../../deploy/belay-medik8s/"
	rbac      = "../../deploy/belay-recovery/"
)

var (
	cluster = apiserver.Server{Audit: `{"level": "Metadata", "users": [
		"system:serviceaccount:belay-system:belay-recovery-detector", "system:serviceaccount:belay-system:belay-recovery-fencer",
		"system:serviceaccount:belay-system:belay-recovery-actor", "system:serviceaccount:belay-system:belay-controller"]}`}
	scheme = runtime.NewScheme()
	// granted are the rights that are shipped for each part.
	granted = map[string]map[string]bool{}
)

func TestMain(m *testing.M) {
	for _, add := range []func(*runtime.Scheme) error{clientscheme.AddToScheme, fencingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	cluster.Prepare = func(tb testing.TB) {
		tb.Helper()
		for _, kind := range []string{"belayremediations", "belayremediationtemplates"} {
			cluster.Apply(tb, rbac+"fencing.belay.dev_"+kind+".yaml")
		}
		if err := cluster.Client.Create(tb.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: nodeLeases}}); err != nil {
			tb.Fatal(err)
		}
		cluster.Apply(tb, crdFence, crdSource, rbac+"admission.yaml", rbac+"admission-nodes.yaml", rbac+"admission-roles.yaml")
		for _, role := range []string{"detector", "fencer", "actor"} {
			granted[role] = apiserver.Granted(tb, rbac+role+".yaml")
		}
		maps.Copy(granted["detector"], apiserver.Granted(tb, medik8s+"detector.yaml"))
		cluster.Check = checkRights
	}
	log.SetLogger(klog.Background())
	os.Exit(cluster.Main(m))
}

// quick is a profile for tests: two seconds of silence.
var quick = fencing.Profile{Name: "test", Silence: 2 * time.Second, LeaseDuration: time.Second}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// machine is a node and its power switch.
type machine struct {
	*site

	name, uuid string
	fenceName  string // if it is not that of the node
	port       int    // of its kubelet, which never answers: it is asked when it is silent

	renewing sync.Mutex // held while the lease is written

	mu       sync.Mutex
	power    fencing.Power
	silent   bool // its kubelet does not renew its lease
	disobeys bool
	failing  error
	// afterAnswer: after so many answers Off, the power comes back for a second, without a sign of life.
	afterAnswer int
	asked       int
	offs        int
	logins      int
	boot        string
}

// site is a cluster of machines, and what keeps a real one going: kubelets that renew leases, and an attach/detach controller.
type site struct {
	testing.TB

	client   client.Client
	mu       sync.Mutex
	machines map[string]*machine
}

func newSite(t *testing.T) *site {
	t.Helper()
	cluster.Start(t)
	c, err := client.New(cluster.Config(), client.Options{Scheme: scheme})
	must(t, err)
	s := &site{TB: t, client: c, machines: map[string]*machine{}}
	wait.Until(t, "the CRDs are served", func() bool {
		return c.List(t.Context(), &fencingv1.NodeFenceList{}) == nil && c.List(t.Context(), &fencingv1.FenceSourceList{}) == nil &&
			c.List(t.Context(), &fencingv1.BelayRemediationList{}) == nil && c.List(t.Context(), &fencingv1.BelayRemediationTemplateList{}) == nil
	})
	t.Cleanup(s.clear)
	return s
}

// clear removes all that the test made.
func (s *site) clear() {
	ctx := context.Background()
	fences := &fencingv1.NodeFenceList{}
	must(s, s.client.List(ctx, fences))
	for i := range fences.Items {
		f := &fences.Items[i]
		// Whatever its version is: the last write of a role that was just stopped may still be carried out.
		must(s, client.IgnoreNotFound(s.client.Patch(ctx, f, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
		must(s, client.IgnoreNotFound(s.client.Delete(ctx, f)))
	}
	must(s, s.client.DeleteAllOf(ctx, &fencingv1.FenceSource{}))
	remediations := &fencingv1.BelayRemediationList{}
	must(s, s.client.List(ctx, remediations))
	for i := range remediations.Items {
		r := &remediations.Items[i]
		must(s, client.IgnoreNotFound(s.client.Patch(ctx, r, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
		must(s, client.IgnoreNotFound(s.client.Delete(ctx, r)))
	}
	must(s, s.client.DeleteAllOf(ctx, &fencingv1.BelayRemediationTemplate{}, client.InNamespace("default")))
	must(s, s.client.DeleteAllOf(ctx, &coordinationv1.Lease{}, client.InNamespace(nodeLeases)))
	must(s, s.client.DeleteAllOf(ctx, &corev1.Node{}))
	must(s, s.client.DeleteAllOf(ctx, &storagev1.VolumeAttachment{}))
	must(s, s.client.DeleteAllOf(ctx, &storagev1.CSIDriver{}))
	must(s, s.client.DeleteAllOf(ctx, &coordinationv1.Lease{}, client.InNamespace(corev1.NamespaceNodeLease)))
	must(s, s.client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace("default"), client.GracePeriodSeconds(0)))
	must(s, s.client.DeleteAllOf(ctx, &corev1.Event{}, client.InNamespace("default")))
}

// machine adds a node that runs.
func (s *site) machine(name string) *machine {
	s.Helper()
	m := &machine{site: s, name: name, uuid: "4C4C4544-" + strings.ToUpper(name), power: fencing.PowerOn, boot: name + "-boot-1"}
	dark, err := (&net.ListenConfig{}).Listen(s.Context(), "tcp", "127.0.0.1:0")
	must(s, err)
	s.Cleanup(func() { _ = dark.Close() })
	m.port = dark.Addr().(*net.TCPAddr).Port
	s.mu.Lock()
	s.machines[name] = m
	s.mu.Unlock()
	ctx := s.Context()
	must(s, s.client.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	m.report(corev1.ConditionTrue)
	must(s, s.client.Create(ctx, fixture.Pod("default", name+"-keeps", name, "data"))) // without a volume there is nothing to fence the node for
	lease := leaseOf(name)
	lease.Spec.LeaseDurationSeconds = new(living)
	must(s, s.client.Create(ctx, lease))
	go m.beat(ctx)
	return m
}

// living is the duration of the lease of a machine that runs, in seconds: on a busy machine, a renewal may take longer than quick.Silence.
const living int32 = 60

// shortens has the silence of a machine that renews its lease no more count as quick says.
func (m *machine) shortens() {
	m.Helper()
	m.renewing.Lock()
	defer m.renewing.Unlock()
	short := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"leaseDurationSeconds":1}}`))
	must(m, m.client.Patch(m.Context(), leaseOf(m.name), short))
}

// leaseOf is the lease of a kubelet that renews it often.
func leaseOf(name string) *coordinationv1.Lease {
	seconds := int32(1)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds},
	}
}

// report writes the Node's status, as its kubelet and the node lifecycle controller do.
func (m *machine) report(ready corev1.ConditionStatus) {
	m.Helper()
	node := &corev1.Node{}
	must(m, m.client.Get(m.Context(), client.ObjectKey{Name: m.name}, node))
	before := client.MergeFrom(node.DeepCopy())
	m.mu.Lock()
	node.Status.NodeInfo = corev1.NodeSystemInfo{BootID: m.boot, SystemUUID: m.uuid}
	m.mu.Unlock()
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(m.port)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	must(m, m.client.Status().Patch(m.Context(), node, before))
}

// beat renews the lease, until the test ends.
func (m *machine) beat(ctx context.Context) {
	for ctx.Err() == nil {
		m.renew(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(250 * time.Millisecond):
		}
	}
}

func (m *machine) renew(ctx context.Context) {
	m.renewing.Lock()
	defer m.renewing.Unlock()
	m.mu.Lock()
	silent := m.silent
	m.mu.Unlock()
	lease := &coordinationv1.Lease{}
	if silent || m.client.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: m.name}, lease) != nil {
		return
	}
	now := metav1.NowMicro()
	lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = &now, new(living)
	_ = m.client.Update(ctx, lease) // the next one will do
}

// event reports whether an event of a reason is there.
func (s *site) event(reason string) bool {
	s.Helper()
	events := &corev1.EventList{}
	must(s, s.client.List(s.Context(), events))
	return slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Reason == reason })
}

// bind gives a user the rights of a ClusterRole.
func (s *site) bind(user, role string) {
	s.Helper()
	must(s, client.IgnoreAlreadyExists(s.client.Create(s.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	})))
	granted := rbacv1.ClusterRole{}
	must(s, s.client.Get(s.Context(), client.ObjectKey{Name: role}, &granted))
	cluster.AwaitRights(s, []rbacv1.ClusterRole{granted}, user)
}

// source adds the FenceSource of a machine.
func (m *machine) source(change ...func(*fencingv1.FenceSource)) {
	m.Helper()
	s := &fencingv1.FenceSource{ObjectMeta: metav1.ObjectMeta{Name: m.name}, Spec: fencingv1.FenceSourceSpec{
		Levels: []fencingv1.FenceLevel{{Feeds: []fencingv1.Feed{{Agent: "fence_test", Options: map[string]fencingv1.FeedOption{"ip": fencingv1.FeedOption(m.name)}}}}},
	}}
	for _, c := range change {
		c(s)
	}
	must(m, m.client.Create(m.Context(), s))
}

// bound waits until the switch of the machine is known to be its own.
func (m *machine) bound() {
	m.Helper()
	wait.Until(m, "the switch of "+m.name+" is bound", func() bool {
		s := &fencingv1.FenceSource{}
		must(m, m.client.Get(m.Context(), client.ObjectKey{Name: m.name}, s))
		return s.Status.Bound != nil
	})
}

// dies: the machine loses its power, or hangs, and its node is found to be not Ready.
func (m *machine) dies(power fencing.Power) {
	m.Helper()
	m.mu.Lock()
	m.silent, m.power = true, power
	m.mu.Unlock()
	m.shortens()
	m.report(corev1.ConditionUnknown)
}

// boots: the machine starts again.
func (m *machine) boots() {
	m.Helper()
	m.mu.Lock()
	m.silent, m.power, m.boot = false, fencing.PowerOn, m.boot+"x"
	m.mu.Unlock()
	m.report(corev1.ConditionTrue)
}

// workload puts a pod with a volume on the node.
func (m *machine) workload() {
	m.Helper()
	pod := fixture.Pod("default", m.name+"-db-0", m.name)
	must(m, m.client.Create(m.Context(), pod))
	must(m, m.client.Create(m.Context(), fixture.Attachment(m.name+"-va", "disk.test", m.name, "pv-"+m.name)))
}

// moved reports whether nothing of the workload is left.
func (m *machine) moved() bool {
	return client.IgnoreNotFound(m.client.Get(m.Context(), client.ObjectKey{Namespace: "default", Name: m.name + "-db-0"}, &corev1.Pod{})) == nil &&
		!m.exists(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: m.name + "-db-0"}}) &&
		!m.exists(&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: m.name + "-va"}})
}

func (m *machine) exists(object client.Object) bool {
	m.Helper()
	err := m.client.Get(m.Context(), client.ObjectKeyFromObject(object), object)
	must(m, client.IgnoreNotFound(err))
	return err == nil
}

func (m *machine) node() *corev1.Node {
	m.Helper()
	node := &corev1.Node{}
	must(m, m.client.Get(m.Context(), client.ObjectKey{Name: m.name}, node))
	return node
}

// fence returns the NodeFence of the machine, nil if there is none.
func (m *machine) fence() *fencingv1.NodeFence {
	m.Helper()
	f := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: cmp.Or(m.fenceName, m.name)}}
	if !m.exists(f) {
		return nil
	}
	return f
}

// until waits until the fence is in a phase.
func (m *machine) until(phase fencing.Phase) *fencingv1.NodeFence {
	m.Helper()
	var f *fencingv1.NodeFence
	wait.Until(m, m.name+" is "+string(phase), func() bool {
		f = m.fence()
		return f != nil && f.Status.Phase == fencingv1.Phase(phase)
	})
	return f
}

// past waits until the fence has been in a phase.
func (m *machine) past(phase fencing.Phase) *fencingv1.NodeFence {
	m.Helper()
	var f *fencingv1.NodeFence
	wait.Until(m, m.name+" is past "+string(phase), func() bool {
		f = m.fence()
		return f != nil && slices.Index(fencing.Phases(), fencing.Phase(f.Status.Phase)) >= slices.Index(fencing.Phases(), phase)
	})
	return f
}

// waits waits until the fence misses something that contains the words.
func (m *machine) waits(words string) *fencingv1.NodeFence {
	m.Helper()
	var f *fencingv1.NodeFence
	wait.Until(m, m.name+" misses "+words, func() bool {
		f = m.fence()
		return f != nil && slices.ContainsFunc(f.Status.Missing, func(s string) bool { return strings.Contains(s, words) })
	})
	return f
}

func (m *machine) tainted(key string) bool {
	m.Helper()
	return slices.ContainsFunc(m.node().Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// Status is the answer of the switch.
func (m *machine) Status(context.Context) (fencing.Power, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	said := m.power
	if m.afterAnswer > 0 && said == fencing.PowerOff {
		if m.afterAnswer--; m.afterAnswer == 0 {
			m.power = fencing.PowerOn
		}
	}
	return said, "Status: " + powerName(said), m.failing
}

// Off switches off, if the switch obeys.
func (m *machine) Off(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.offs++
	if !m.disobeys && m.failing == nil {
		m.power, m.silent = fencing.PowerOff, true
	}
	return m.failing
}

// Identity is the system UUID, in another form than the Node's.
func (m *machine) Identity(context.Context) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.logins++
	return strings.ToLower(m.uuid), m.failing
}

// count is how often the switch was asked and commanded.
func (m *machine) count() (asked, offs int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked, m.offs
}

// dial finds the switch by its address.
func (s *site) dial(feed fencingv1.Feed, _ map[string][]byte) (Switch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machines[strings.ToLower(string(feed.Options["ip"]))], nil
}

// run runs the three parts apart, each with the rights that are shipped for it, until the returned function is called. With Proofs the actor
// has the rights of belay-controller, of which it is a part then.
func (s *site) run(change ...func(*Options)) (stop func()) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	var done sync.WaitGroup
	for name, roles := range map[string]Roles{"detector": {Detector: true}, "fencer": {Fencer: true}, "actor": {Actor: true}} {
		o := Options{Roles: roles, Profile: quick, Brakes: fencing.DefaultBrakes(), Dial: s.dial}
		for _, c := range change {
			c(&o)
		}
		account, files := "belay-recovery-"+name, []string{rbac + name + ".yaml"}
		if roles.Detector && o.NodeLeases != "" {
			files = append(files, medik8s+"detector.yaml")
		}
		if roles.Actor && o.Proofs != nil {
			cluster.Apply(s, files...) // the role that it is bound to, too
			account, files = "belay-controller", []string{rbac + "actor-in-controller.yaml", "../../deploy/belay-controller/belay-controller.yaml"}
		}
		mgr, err := kube.NewManager(cluster.ServiceAccount(s, "belay-system", account, files...), kube.ManagerConfig{MetricsAddress: "0", HealthAddress: "0"})
		must(s, err)
		must(s, Setup(mgr, name, o))
		done.Go(func() {
			if err := mgr.Start(ctx); err != nil {
				s.Errorf("%s: %v", name, err)
			}
		})
	}
	detached := s.detach(ctx)
	stop = sync.OnceFunc(func() {
		cancel()
		done.Wait()
		<-detached
	})
	s.Cleanup(stop)
	return stop
}

// detach deletes the VolumeAttachments of nodes that are out of service, as an attach/detach controller does.
func (s *site) detach(ctx context.Context) <-chan struct{} {
	s.Helper()
	done := make(chan struct{})
	watch, err := cluster.Client.Watch(ctx, &corev1.NodeList{})
	must(s, err)
	go func() {
		defer close(done)
		defer watch.Stop()
		for change := range watch.ResultChan() {
			node, ok := change.Object.(*corev1.Node)
			if !ok || !kube.OutOfService(node) {
				continue
			}
			_ = s.client.Delete(ctx, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: node.Name + "-va"}})
		}
	}()
	return done
}

// fleet adds some nodes that stay alive, so that the brakes have something to compare with.
func (s *site) fleet(names ...string) {
	s.Helper()
	for _, name := range names {
		s.machine(name)
	}
}
