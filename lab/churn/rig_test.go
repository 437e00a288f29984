package churn

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/hollow"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/proxy"
	"belay.dev/belay/lab/scenario"
)

const (
	namespace = "default"
	lookAgain = 20 * time.Millisecond
	// runLimit holds the lag of any cache, a restart of any component, and leases.
	runLimit = 3 * time.Minute
)

// A killed controller is followed after its lease, which is short here: the tests kill often.
var shortLease = []string{
	"--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=500ms",
}

// rig is a lab with hollow nodes and a proxied belay-controller.
type rig struct {
	scene  *scenario.Scene
	client kubernetes.Interface
	proxy  *proxy.Proxy
	fleet  *hollow.Fleet
	state  informers.SharedInformerFactory
	nodes  []string
	seed   uint64
	driver csi.ControllerClient

	mu      sync.Mutex
	volumes []volume
}

// volume is one exclusive volume and where it is wanted.
type volume struct {
	claim, handle string
	// node wants it, by a pod of that name; empty for none.
	node, pod string
}

func (v volume) unique() string { return kube.UniqueVolumeName(labdisk.DriverDisk, v.handle) }

// newRig starts the lab, whose attacher gets the given flags; all of it ends with the test.
func newRig(t *testing.T, name string, attacherArgs ...string) *rig {
	t.Helper()
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: churn on hollow nodes belongs to the long tests")
	}
	seed := uint64(labtest.Number(t, "BELAY_CHURN_SEED", int(time.Now().UnixNano()%1_000_000)))
	t.Logf("seed %d; BELAY_CHURN_SEED chooses another", seed)
	r := &rig{seed: seed, scene: labtest.Open(t, cluster.Options{
		Name: name, Nodes: -1, NodeKind: cluster.NodeKindBelay, Plane: cluster.PlaneBelay, Permissive: true,
		Drivers: []string{labdisk.DriverDisk}, AttacherArgs: attacherArgs,
	})}
	r.client = r.scene.Client
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	for i := range labtest.Number(t, "BELAY_CHURN_NODES", 20) {
		r.nodes = append(r.nodes, fmt.Sprintf("hollow-%d", i+1))
	}
	lab := r.scene.Cluster
	config, err := lab.ControllerConfig()
	if err == nil {
		r.proxy, err = proxy.Start(ctx, config)
	}
	if err == nil {
		r.fleet, err = hollow.Start(ctx, lab.RESTConfig(), r.nodes, hollow.Options{
			Drivers: []string{labdisk.DriverDisk}, Heartbeat: 10 * time.Second, MaxPods: 5000,
		})
	}
	if err != nil {
		stop()
		t.Fatal(err)
	}
	r.state = informers.NewSharedInformerFactory(r.client, 0)
	t.Cleanup(func() { stop(); r.fleet.Wait(); r.state.Shutdown() })
	core := r.state.Core().V1()
	core.Pods().Informer()
	core.Nodes().Informer()
	r.state.Storage().V1().VolumeAttachments().Informer()
	r.state.Start(ctx.Done())
	r.state.WaitForCacheSync(ctx.Done())
	for _, node := range r.nodes {
		if err := lab.Fabric().RegisterNode(ctx, labdisk.Node{Name: node, Zone: labdisk.DefaultZone}); err != nil {
			t.Fatal(err)
		}
	}
	r.dial(t)
	if err := lab.StopController(ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.run(); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) dial(t *testing.T) {
	t.Helper()
	socket := filepath.Join(r.scene.Cluster.Dir(), "fabric", "csi", labdisk.DriverDisk+".sock")
	connection, err := grpc.NewClient("passthrough:///"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	r.driver = csi.NewControllerClient(connection)
}

// run starts the controller through the proxy.
func (r *rig) run() error {
	return r.scene.Cluster.RunController(cluster.ControllerRun{Server: r.proxy.URL(), Args: shortLease})
}

// makeVolumes makes n volumes at the driver, with a bound claim each, and returns the
// index of the first.
func (r *rig) makeVolumes(ctx context.Context, n int) (int, error) {
	r.mu.Lock()
	first := len(r.volumes)
	for i := range n {
		r.volumes = append(r.volumes, volume{claim: fmt.Sprintf("claim-%d", first+i)})
	}
	r.mu.Unlock()
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for i := range n {
		group.Go(func() error {
			claim := fmt.Sprintf("claim-%d", first+i)
			handle, err := r.createAtDriver(groupCtx, claim)
			if err != nil {
				return err
			}
			r.set(first+i, func(v *volume) { v.handle = handle })
			return r.bind(groupCtx, claim, labdisk.DriverDisk, handle)
		})
	}
	return first, group.Wait()
}

func (r *rig) createAtDriver(ctx context.Context, name string) (handle string, err error) {
	made, err := r.driver.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
	})
	if err != nil {
		return "", fmt.Errorf("create volume %s at the driver: %w", name, err)
	}
	return made.GetVolume().GetVolumeId(), nil
}

// bind makes the volume and its claim, bound to each other.
func (r *rig) bind(ctx context.Context, name, driver, handle string) error {
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: modes, VolumeName: name, StorageClassName: new(""), Resources: corev1.VolumeResourceRequirements{Requests: size},
	}}
	claims := r.client.CoreV1().PersistentVolumeClaims(namespace)
	made, err := claims.Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create claim %s: %w", name, err)
	}
	if handle != "" {
		_, err = r.client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: size, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				ClaimRef:               &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: namespace, Name: name, UID: made.UID},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create volume %s: %w", name, err)
		}
	}
	// kube-controller-manager does the same in its own time.
	patch := []byte(`{"status":{"phase":"Bound"}}`)
	if _, err := claims.Patch(ctx, name, "application/merge-patch+json", patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("bind claim %s: %w", name, err)
	}
	return nil
}

func (r *rig) get(i int) volume {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.volumes[i]
}

func (r *rig) set(i int, change func(*volume)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.volumes[i])
}

func (r *rig) all() []volume {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.volumes)
}

func podOf(name, claim, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{
		NodeName: node, AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		Containers: []corev1.Container{{Name: "c", Image: "none.invalid/none"}},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}},
	}}
}

// place wants volume i on a node, by a new pod.
func (r *rig) place(ctx context.Context, i int, node, pod string) error {
	err := stubborn(ctx, "create pod "+pod, func() error {
		_, err := r.client.CoreV1().Pods(namespace).Create(ctx, podOf(pod, r.get(i).claim, node), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // the answer to an earlier try was lost
		}
		return err
	})
	if err == nil {
		r.set(i, func(v *volume) { v.node, v.pod = node, pod })
	}
	return err
}

// remove deletes a pod; forced leaves its object gone before its volume is unmounted.
func (r *rig) remove(ctx context.Context, pod string, forced bool) error {
	options := metav1.DeleteOptions{}
	if forced {
		options.GracePeriodSeconds = new(int64)
	}
	return stubborn(ctx, "delete pod "+pod, func() error {
		err := r.client.CoreV1().Pods(namespace).Delete(ctx, pod, options)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// stubborn repeats a request while the API server may be restarting.
func stubborn(ctx context.Context, what string, do func() error) error {
	return until(ctx, runLimit, what, do)
}

// until repeats do until it succeeds.
func until(ctx context.Context, limit time.Duration, what string, do func() error) error {
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	for {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: after %v: %w", what, limit, err)
		case <-time.After(lookAgain):
		}
	}
}

func (r *rig) pod(name string) *corev1.Pod {
	pod, err := r.state.Core().V1().Pods().Lister().Pods(namespace).Get(name)
	if err != nil {
		return nil
	}
	return pod
}

// awaitRunning waits until the pod runs, which on a hollow node means: its volume is mounted.
func (r *rig) awaitRunning(ctx context.Context, name string) error {
	return until(ctx, runLimit, "wait for pod "+name+" to run", func() error {
		if pod := r.pod(name); pod == nil || pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("it is %s", phaseOf(pod))
		}
		return nil
	})
}

func phaseOf(pod *corev1.Pod) string {
	if pod == nil {
		return "not there"
	}
	return string(pod.Status.Phase)
}

func (r *rig) awaitGone(ctx context.Context, name string) error {
	return until(ctx, runLimit, "wait for pod "+name+" to be gone", func() error {
		if pod := r.pod(name); pod != nil {
			return fmt.Errorf("it is %s", phaseOf(pod))
		}
		return nil
	})
}

// movers move volumes first to first+n about until ctx ends, several at a time, and
// leave each with a running pod or with none. The number of moves is returned.
func (r *rig) movers(ctx context.Context, stop <-chan struct{}, first, n, atOnce int, random *rand.Rand) (int, error) {
	var mu sync.Mutex
	moves := 0
	group, groupCtx := errgroup.WithContext(ctx)
	atOnce = min(atOnce, n)
	for w := range atOnce {
		own := rand.New(rand.NewPCG(random.Uint64(), uint64(w)))
		group.Go(func() error {
			for turn := 0; ; turn++ {
				select {
				case <-stop:
					return nil
				case <-groupCtx.Done():
					return context.Cause(groupCtx)
				default:
				}
				share := (n - w + atOnce - 1) / atOnce // volumes w, w+atOnce, ...
				i := first + w + atOnce*own.IntN(share)
				if err := r.move(groupCtx, i, own); err != nil {
					return err
				}
				mu.Lock()
				moves++
				mu.Unlock()
			}
		})
	}
	err := group.Wait()
	return moves, err
}

// move takes a volume to another node, or away, or brings it back.
func (r *rig) move(ctx context.Context, i int, random *rand.Rand) error {
	v := r.get(i)
	node := r.nodes[random.IntN(len(r.nodes))]
	next := fmt.Sprintf("p-%d-%d", i, random.Uint32())
	forced, early, away := random.IntN(3) == 0, random.IntN(2) == 0, random.IntN(6) == 0
	patience := runLimit
	if random.IntN(3) == 0 {
		// The next move comes while this one is in progress: where the volume is then is unknown.
		patience = time.Duration(random.Int64N(int64(3 * publishTakes)))
	}
	if v.pod == "" {
		if err := r.place(ctx, i, node, next); err != nil {
			return err
		}
		return r.waitOrLeave(ctx, next, patience)
	}
	if err := r.remove(ctx, v.pod, forced); err != nil {
		return err
	}
	if away {
		r.set(i, func(v *volume) { v.node, v.pod = "", "" })
		return r.awaitGone(ctx, v.pod)
	}
	if !early {
		if err := r.awaitGone(ctx, v.pod); err != nil {
			return err
		}
	}
	if err := r.place(ctx, i, node, next); err != nil {
		return err
	}
	return r.waitOrLeave(ctx, next, patience)
}

// waitOrLeave waits until the pod runs; with less patience than runLimit it may not.
func (r *rig) waitOrLeave(ctx context.Context, pod string, patience time.Duration) error {
	if patience == runLimit {
		return r.awaitRunning(ctx, pod)
	}
	select {
	case <-time.After(patience):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

const (
	// publishTakes is the driver's own time while there is trouble.
	publishTakes = 100 * time.Millisecond
	// replyLost is how often the driver's answer to a publish or an unpublish is lost.
	replyLost = 500 * time.Millisecond
)

// trouble makes the driver slow, and lets it lose a reply now and then, until the test ends: the call is done, and its
// caller does not know.
func (r *rig) trouble(ctx context.Context, t *testing.T) (calm func()) {
	t.Helper()
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	fabric := r.scene.Cluster.Fabric()
	// Of several faults that match the oldest counts, so rare ones must be set first.
	next := func(turn int) error {
		if err := fabric.ClearFaults(ctx); err != nil {
			return err
		}
		for _, fault := range []labdisk.Fault{
			{
				Method: []string{methodPublish, methodUnpublish}[turn%2], Effect: labdisk.EffectLostReply,
				Delay: publishTakes, Code: "Unavailable", Count: 1,
			},
			{Method: methodPublish, Effect: labdisk.EffectDelay, Delay: publishTakes},
		} {
			if _, err := fabric.SetFault(ctx, fault); err != nil {
				return err
			}
		}
		return nil
	}
	running.Go(func() {
		for turn := 0; ctx.Err() == nil; turn++ {
			if err := next(turn); err != nil && ctx.Err() == nil {
				t.Errorf("make trouble at the driver: %v", err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(replyLost):
			}
		}
	})
	return func() {
		stop()
		running.Wait()
		if err := fabric.ClearFaults(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	}
}

// placeAll gives each of the volumes a pod and waits until all run.
func (r *rig) placeAll(ctx context.Context, first, n int, random *rand.Rand) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := first; i < first+n; i++ {
		node := r.nodes[random.IntN(len(r.nodes))]
		group.Go(func() error {
			name := fmt.Sprintf("p-%d-first", i)
			if err := r.place(groupCtx, i, node, name); err != nil {
				return err
			}
			return r.awaitRunning(groupCtx, name)
		})
	}
	return group.Wait()
}

// removeAll deletes every pod.
func (r *rig) removeAll(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i, v := range r.all() {
		if v.pod == "" {
			continue
		}
		group.Go(func() error {
			if err := r.remove(groupCtx, v.pod, false); err != nil {
				return err
			}
			r.set(i, func(v *volume) { v.node, v.pod = "", "" })
			return r.awaitGone(groupCtx, v.pod)
		})
	}
	return group.Wait()
}

// awaitSettled waits until attachments, reports and the storage are what the pods want.
func (r *rig) awaitSettled(ctx context.Context) error {
	return until(ctx, runLimit, "wait until all is attached that is wanted, and nothing else", func() error {
		wrong := r.unsettled(ctx)
		if len(wrong) == 0 {
			return nil
		}
		time.Sleep(10 * lookAgain) // it is much to compare
		return fmt.Errorf("%d wrong:\n  %s", len(wrong), strings.Join(wrong[:min(len(wrong), 10)], "\n  "))
	})
}

func (r *rig) unsettled(ctx context.Context) []string {
	wanted := map[string]bool{} // "node volume"
	for _, v := range r.all() {
		if v.node != "" {
			wanted[v.node+" "+v.unique()] = true
		}
	}
	views := map[string]map[string]bool{"attachments": {}, "reports": {}, "storage": {}, "in use": {}}
	var wrong []string
	attachments, err := r.state.Storage().V1().VolumeAttachments().Lister().List(labels.Everything())
	if err != nil {
		return []string{err.Error()}
	}
	names := r.attachmentNames()
	for _, va := range attachments {
		views["attachments"][names[va.Name]] = true
		if !va.Status.Attached || va.DeletionTimestamp != nil {
			wrong = append(wrong, describe(va))
		}
	}
	nodes, err := r.state.Core().V1().Nodes().Lister().List(labels.Everything())
	if err != nil {
		return []string{err.Error()}
	}
	for _, n := range nodes {
		for _, v := range n.Status.VolumesAttached {
			views["reports"][n.Name+" "+string(v.Name)] = true
		}
		for _, v := range n.Status.VolumesInUse {
			views["in use"][n.Name+" "+string(v)] = true
		}
	}
	held, err := r.scene.Cluster.Fabric().Attachments(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	for _, a := range held {
		views["storage"][a.Node+" "+kube.UniqueVolumeName(a.Driver, a.Volume)] = true
	}
	for view, has := range views {
		wrong = append(wrong, differ(view, has, wanted)...)
	}
	slices.Sort(wrong)
	return wrong
}

func describe(va *storagev1.VolumeAttachment) string {
	return fmt.Sprintf("attachment %s to %s: attached %v, deleting %v, error %v", va.Name, va.Spec.NodeName,
		va.Status.Attached, va.DeletionTimestamp != nil, va.Status.AttachError)
}

func differ(view string, has, wanted map[string]bool) []string {
	var wrong []string
	for pair := range wanted {
		if !has[pair] {
			wrong = append(wrong, view+": misses "+pair)
		}
	}
	for pair := range has {
		if !wanted[pair] {
			wrong = append(wrong, view+": has "+pair+", which nobody wants")
		}
	}
	return wrong
}

// attachmentNames gives "node volume" by the name of its VolumeAttachment.
func (r *rig) attachmentNames() map[string]string {
	names := map[string]string{}
	for _, v := range r.all() {
		for _, node := range r.nodes {
			names[kube.AttachmentName(v.handle, labdisk.DriverDisk, node)] = node + " " + v.unique()
		}
	}
	return names
}

// check judges all that has happened so far.
func (r *rig) check(ctx context.Context, t *testing.T) {
	t.Helper()
	calls, err := r.scene.Cluster.Fabric().Calls(ctx, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	h := history{calls: calls, mounts: r.fleet.Mounts()}
	names := r.attachmentNames()
	counts := map[string]int{}
	for _, w := range r.proxy.Writes() {
		counts[fmt.Sprintf("%s: %d", w.Right(), w.Code)]++
		node, volume, known := strings.Cut(names[w.Name], " ")
		if w.Right() == "delete volumeattachments" && w.Code == 200 && known {
			h.detaches = append(h.detaches, detach{volume: volume, node: node, sent: w.Sent, answered: w.Answered})
		}
	}
	found := slices.Concat(h.breaches(), r.fleet.Violations())
	for _, line := range found[:min(len(found), 30)] {
		t.Error(line)
	}
	t.Logf("%d calls of the driver, %d mounts, %d detaches, %d breaches; writes of the controller: %v",
		len(calls), len(h.mounts), len(h.detaches), len(found), counts)
}
