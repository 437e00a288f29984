package nodekill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

const (
	namespace = scenario.Namespace
	// machine is the lab's node in whose namespaces all happens; edge is the Node of belay-node.
	machine = "node-1"
	edge    = "edge"
	// limit bounds every wait for what has to come.
	limit = 4 * time.Minute
	look  = 15 * time.Millisecond
)

// volume is one claim with its volume.
type volume struct {
	claim, pv, handle, driver string
	block, stages, attached   bool
	// token is what was written to it last; empty if nothing was.
	token string
}

func (v *volume) unique() string { return kube.UniqueVolumeName(v.driver, v.handle) }

// wish is one pod.
type wish struct {
	uid     types.UID
	volumes []*volume
}

// rig is the lab, the agent and the pods.
type rig struct {
	*testing.T
	scene      *scenario.Scene
	random     *rand.Rand
	dir        string // of the machine: the agent's root lies below it
	root       string
	init       int // process 1 of the machine
	calls      *calls
	killer     *killer
	volumes    []*volume
	pods       map[string]wish
	made       int  // pods so far
	settled    bool // the node was as wanted before the next kill
	held       atomic.Pointer[holder]
	holds      int // holders so far
	kubeconfig string

	mu       sync.Mutex
	agent    *exec.Cmd // guarded by mu, as are the next
	agentPID int
	starts   int
	// listings counts the live reads inside calls; wrong is what they found.
	listings int
	wrong    []string
}

func newRig(t *testing.T, plane string, seed uint64) *rig {
	t.Helper()
	labtest.Needs(t)
	scene := labtest.Open(t, cluster.Options{
		Name: "nodekill", Nodes: 1, NodeKind: cluster.NodeKindBelay, Plane: plane, Drivers: labdisk.Drivers(),
		// No component renews the lease of edge: its node lives as long as the test, and the agent does not decide
		// that.
		NodeMonitorGrace: 24 * time.Hour,
	})
	r := &rig{
		T: t, scene: scene, random: rand.New(rand.NewPCG(seed, 1)), calls: &calls{}, pods: map[string]wish{},
		dir: scene.Cluster.Node(machine).Config.Dir,
	}
	r.root = filepath.Join(r.dir, edge)
	r.killer = &killer{kill: r.killAgent}
	r.init = r.processOne()
	r.makeNode(plane)
	r.makeVolumes()
	r.killer.watchRecords(t, r.records())
	for i, name := range labdisk.Drivers() {
		b := &between{
			name: name, calls: r.calls, at: r.killer.at, listed: r.mustBeListed, attached: name != labdisk.DriverLocal,
			random: rand.New(rand.NewPCG(seed, uint64(2+i))),
		}
		if name == labdisk.DriverShare {
			b.hidden = filepath.Join(r.dir, "hidden")
		}
		b.serve(t, r.root, filepath.Join(scene.Cluster.Node(machine).Config.RootDir(), "plugins", name, "csi.sock"))
	}
	t.Cleanup(func() { // also if the test failed early
		r.failWrong()
		if err := r.killAgent(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// records is the agent's folder of records.
func (r *rig) records() string { return filepath.Join(r.root, "belay", "volumes") }

// inside is the path as this process reaches it inside the machine.
func (r *rig) inside(path string) string {
	return fmt.Sprintf("/proc/%d/root%s", r.init, path)
}

// processOne is the child of the process that made the machine's namespaces.
func (r *rig) processOne() int {
	r.Helper()
	state, err := r.scene.Cluster.Component(machine)
	r.must(err)
	pid, err := childOf(state.PID)
	r.must(err)
	return pid
}

func childOf(pid int) (int, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0, fmt.Errorf("look for the child of process %d: %w", pid, err)
	}
	var child int
	if _, err := fmt.Sscan(string(raw), &child); err != nil {
		return 0, fmt.Errorf("process %d has no child yet: %w", pid, err)
	}
	return child, nil
}

// makeNode makes the Node that belay-node serves, and the credential of a node for it.
func (r *rig) makeNode(plane string) {
	r.Helper()
	ctx := r.Context()
	now := metav1.Now()
	annotations := map[string]string{}
	if plane == cluster.PlaneUpstream {
		// The agent annotates its Node, but upstream's controller forgets for three minutes the pods that it
		// sees before that. Owners make the Node with it: docs/adopt-node.md.
		annotations[kube.ManagedAttachAnnotation] = "true"
	}
	node, err := r.scene.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: edge, Labels: map[string]string{corev1.LabelHostname: edge}, Annotations: annotations},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test", LastHeartbeatTime: now, LastTransitionTime: now,
		}}},
	}, metav1.CreateOptions{})
	r.must(err)
	if len(node.Status.Conditions) == 0 {
		r.Fatal("the API server did not take the new node's status")
	}
	r.kubeconfig = filepath.Join(r.dir, "edge.kubeconfig")
	r.must(r.scene.Cluster.NodeKubeconfig(edge, r.kubeconfig))
}

// makeVolumes makes the claims and waits until each has its volume.
func (r *rig) makeVolumes() {
	r.Helper()
	block := corev1.PersistentVolumeBlock
	for _, v := range []struct {
		class string
		mode  *corev1.PersistentVolumeMode
		v     volume
	}{
		{"labdisk", nil, volume{claim: "disk-1", stages: true, attached: true}},
		{"labdisk", nil, volume{claim: "disk-2", stages: true, attached: true}},
		{"labdisk", &block, volume{claim: "block-1", stages: true, attached: true, block: true}},
		{"labshare", nil, volume{claim: "share-1", attached: true}},
		{"lablocal", nil, volume{claim: "local-1"}},
	} {
		_, err := r.scene.Client.CoreV1().PersistentVolumeClaims(namespace).Create(r.Context(), &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v.v.claim},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &v.class, VolumeMode: v.mode,
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("16Mi")}},
			},
		}, metav1.CreateOptions{})
		r.must(err)
		r.volumes = append(r.volumes, &v.v)
	}
	for _, v := range r.volumes {
		r.until("claim "+v.claim+" is bound", func() bool {
			claim, err := r.scene.Client.CoreV1().PersistentVolumeClaims(namespace).Get(r.Context(), v.claim, metav1.GetOptions{})
			r.must(err)
			v.pv = claim.Spec.VolumeName
			return claim.Status.Phase == corev1.ClaimBound
		})
		pv, err := r.scene.Client.CoreV1().PersistentVolumes().Get(r.Context(), v.pv, metav1.GetOptions{})
		r.must(err)
		v.driver, v.handle = pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle
	}
}

func (r *rig) until(what string, is func() bool) {
	r.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(look)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-deadline:
			r.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// startAgent starts belay-node in the machine's namespaces.
func (r *rig) startAgent() {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	log, err := os.OpenFile(r.scene.Cluster.LogOf("belay-node"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	r.must(err)
	defer func() { _ = log.Close() }()
	r.agent = exec.Command("nsenter", "-t", strconv.Itoa(r.init), "-m", "-p", "--",
		filepath.Join(os.Getenv("BELAY_BIN"), "belay-node"), "--node-name", edge, "--kubeconfig", r.kubeconfig, "--root-dir", r.root, "--v=1")
	r.agent.Stdout, r.agent.Stderr = log, log
	r.must(r.agent.Start())
	r.starts++
	r.agentPID = 0
	// nsenter makes a child to enter a pid namespace.
	r.until("belay-node is a process", func() bool {
		pid, err := childOf(r.agent.Process.Pid)
		if err != nil {
			return false
		}
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil || string(name) != "belay-node\n" {
			return false
		}
		r.agentPID = pid
		return true
	})
}

// killAgent returns when no process of the agent runs.
func (r *rig) killAgent() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.agentPID == 0 {
		return nil
	}
	if err := syscall.Kill(r.agentPID, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill -9 of belay-node (did it end by itself?): %w", err)
	}
	_ = r.agent.Wait() // it says that it was killed
	r.agentPID = 0
	return nil
}

// create makes a pod that is bound to edge.
func (r *rig) create(volumes ...*volume) {
	r.Helper()
	r.made++
	name := fmt.Sprintf("pod-%d", r.made)
	container := corev1.Container{Name: "c", Image: "none"}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{NodeName: edge, AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64(0))},
	}
	for _, v := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: v.claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.claim},
		}})
		if v.block {
			container.VolumeDevices = append(container.VolumeDevices, corev1.VolumeDevice{Name: v.claim, DevicePath: "/dev/" + v.claim})
		} else {
			container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: v.claim, MountPath: "/" + v.claim})
		}
	}
	pod.Spec.Containers = []corev1.Container{container}
	pod, err := r.scene.Client.CoreV1().Pods(namespace).Create(r.Context(), pod, metav1.CreateOptions{})
	r.must(err)
	r.pods[name] = wish{uid: pod.UID, volumes: volumes}
}

func (r *rig) remove(name string) {
	r.Helper()
	r.must(r.scene.Client.CoreV1().Pods(namespace).Delete(r.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	delete(r.pods, name)
}

// usedBy are the pods that want a volume.
func (r *rig) usedBy(v *volume) []string {
	var names []string
	for name, p := range r.pods {
		for _, one := range p.volumes {
			if one == v {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// node reads the Node live.
func (r *rig) node(ctx context.Context) (*corev1.Node, error) {
	return r.scene.Client.CoreV1().Nodes().Get(ctx, edge, metav1.GetOptions{})
}
