package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/node"
)

// PodLifecycleHandler is what virtual-kubelet asks of a provider.
type PodLifecycleHandler interface {
	CreatePod(ctx context.Context, pod *corev1.Pod) error
	UpdatePod(ctx context.Context, pod *corev1.Pod) error
	DeletePod(ctx context.Context, pod *corev1.Pod) error
	GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error)
	GetPods(ctx context.Context) ([]*corev1.Pod, error)
}

var _ PodLifecycleHandler = (*Provider)(nil)

// Bind is a volume in one container: a directory to bind-mount, or a device to pass.
type Bind struct {
	Host, Container string
	Device          bool
	ReadOnly        bool
}

// Runtime runs containers in the provider's own way. Both methods are called again for the
// same pod, and do nothing where there is nothing to do.
type Runtime interface {
	// Start begins with the containers of a pod; binds are by container name. With an
	// error none of them runs.
	Start(pod *corev1.Pod, binds map[string][]Bind) error
	// Stop ends them. When it returns, none of them uses a volume any more.
	Stop(pod *corev1.Pod) error
}

// unmountPatience bounds one DeletePod: virtual-kubelet has ten workers for all its pods, and
// asks again for three quarters of an hour.
const unmountPatience = 20 * time.Second

// Provider runs the pods of a virtual node. Their CSI volumes are the agent's business.
type Provider struct {
	ctx     context.Context // ends with the provider: it starts no containers any more
	volumes *node.Agent
	runtime Runtime

	mu   sync.Mutex
	pods map[string]*run // guarded by mu, as their fields; by namespace and name
}

// run is one pod from CreatePod to the end of DeletePod.
type run struct {
	pod    *corev1.Pod        // as virtual-kubelet gave it last; replaced, never changed
	giveUp context.CancelFunc // ends the wait for volumes
	waited chan struct{}      // closed when nothing is being started any more
	phase  corev1.PodPhase
	state  corev1.ContainerState // of each container; Waiting gets its words when it is asked for
	ending bool
}

// NewProvider makes a provider that has these pods: those that the API binds to the node and that have
// not run to their end, and those that the runtime still has. What else is mounted is unmounted from here on.
func NewProvider(ctx context.Context, volumes *node.Agent, runtime Runtime, pods ...*corev1.Pod) *Provider {
	p := &Provider{ctx: ctx, volumes: volumes, runtime: runtime, pods: map[string]*run{}}
	for _, pod := range pods {
		p.begin(pod)
	}
	volumes.PodsSynced()
	return p
}

func key(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// CreatePod takes a pod in. It does not wait for the volumes: they may take long, and
// virtual-kubelet, which asks once and not again, could not delete the pod meanwhile.
func (p *Provider) CreatePod(_ context.Context, pod *corev1.Pod) error {
	p.begin(pod)
	return nil
}

func (p *Provider) begin(pod *corev1.Pod) {
	ctx, giveUp := context.WithCancel(p.ctx)
	r := &run{
		pod: pod, giveUp: giveUp, waited: make(chan struct{}), phase: corev1.PodPending,
		state: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}},
	}
	p.mu.Lock()
	p.pods[key(pod)] = r
	p.volumes.SetPod(pod)
	p.mu.Unlock()
	go func() {
		defer close(r.waited)
		p.start(ctx, r, pod.UID)
	}()
}

// start runs the containers once their volumes are there. The agent tries for as long as it takes, and
// tells the pod by events what it waits for; an error means that the pod can never be mounted here.
func (p *Provider) start(ctx context.Context, r *run, uid types.UID) {
	mounts, err := p.volumes.WaitMounted(ctx, uid)
	if _, refused := errors.AsType[*node.RefusedError](err); err != nil && !refused {
		return // it is to end
	}
	p.mu.Lock()
	pod := r.pod
	p.mu.Unlock()
	var all map[string][]Bind
	if err == nil {
		all, err = p.binds(pod, mounts)
	}
	if err == nil {
		err = p.runtime.Start(pod, all)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		r.phase = corev1.PodFailed
		r.state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "StartError", Message: err.Error(), ExitCode: 128}}
		p.volumes.RemovePod(uid)
		return
	}
	r.phase = corev1.PodRunning
	r.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
}

// binds finds the volumes of each container. Those of other kinds (emptyDir, configMap ...)
// are the provider's own business.
func (p *Provider) binds(pod *corev1.Pod, mounts []node.Mount) (map[string][]Bind, error) {
	volumes := map[string]node.Mount{}
	for _, m := range mounts {
		if m.PersistentVolume != nil {
			return nil, fmt.Errorf("volume %s is no CSI volume, and there are no others here", m.VolumeName)
		}
		volumes[m.VolumeName] = m
	}
	out := map[string][]Bind{}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for i, use := range c.VolumeMounts {
			m, ok := volumes[use.Name]
			if !ok {
				continue
			}
			bind := Bind{Host: m.Path, Container: use.MountPath, ReadOnly: m.ReadOnly || use.ReadOnly}
			var err error
			switch {
			case use.SubPathExpr != "":
				err = fmt.Errorf("container %s: subPathExpr is not supported here", c.Name)
			case use.SubPath != "":
				bind.Host, err = p.volumes.MountSubPath(pod.UID, node.SubPath{
					Volume: use.Name, Container: c.Name, MountIndex: i, Path: use.SubPath, ReadOnly: bind.ReadOnly,
				})
			}
			if err != nil {
				return nil, err
			}
			out[c.Name] = append(out[c.Name], bind)
		}
		for _, use := range c.VolumeDevices {
			if m, ok := volumes[use.Name]; ok {
				out[c.Name] = append(out[c.Name], Bind{Host: m.Path, Container: use.DevicePath, Device: true, ReadOnly: m.ReadOnly})
			}
		}
	}
	return out, nil
}

// UpdatePod takes the newer version of a pod in: what GetPod returns is what virtual-kubelet
// compares with, and an edit has the agent read the claims again.
func (p *Provider) UpdatePod(ctx context.Context, pod *corev1.Pod) error {
	if p.take(pod) != nil {
		return nil
	}
	// The one of that name has gone from the API; this is another one.
	if err := p.DeletePod(ctx, pod); err != nil {
		return err
	}
	return p.CreatePod(ctx, pod)
}

// take stores a version of a pod that is there, and gives it to the agent; nil if it is not.
func (p *Provider) take(pod *corev1.Pod) *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.pods[key(pod)]
	if r == nil || r.pod.UID != pod.UID {
		return nil
	}
	r.pod = pod
	if !r.ending && r.phase != corev1.PodFailed { // it would be mounted again
		p.volumes.SetPod(pod)
	}
	return r
}

// DeletePod ends the pod of that name, in whatever state it is. Its object may go from the API when
// this returns nil, and not before; after an error virtual-kubelet asks again.
func (p *Provider) DeletePod(ctx context.Context, pod *corev1.Pod) error {
	p.take(pod) // its deletionTimestamp
	p.mu.Lock()
	r := p.pods[key(pod)]
	if r == nil {
		p.mu.Unlock()
		return nil
	}
	r.ending = true
	pod = r.pod
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, unmountPatience)
	defer cancel()
	r.giveUp()
	select {
	case <-r.waited: // no container starts behind the Stop
	case <-ctx.Done():
		return fmt.Errorf("pod %s is being started: %w", pod.Name, ctx.Err())
	}
	if err := p.runtime.Stop(pod); err != nil {
		return err
	}
	p.volumes.RemovePod(pod.UID)
	if err := p.volumes.WaitUnmounted(ctx, pod.UID); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pods, key(pod))
	return nil
}

// GetPod returns a pod that was created and not deleted, or nil.
func (p *Provider) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.pods[namespace+"/"+name]; r != nil {
		return r.pod, nil
	}
	return nil, nil
}

// GetPodStatus returns a pod's status, or nil. A pod that is being deleted counts as running until its
// volumes are unmounted: from one that does not run virtual-kubelet takes the object away unasked.
func (p *Provider) GetPodStatus(_ context.Context, namespace, name string) (*corev1.PodStatus, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.pods[namespace+"/"+name]
	if r == nil {
		return nil, nil
	}
	status, state := r.pod.Status.DeepCopy(), r.state.DeepCopy()
	if state.Waiting != nil {
		state.Waiting.Message = p.waitsFor(r.pod)
	}
	status.Phase, status.ContainerStatuses = r.phase, nil
	for _, c := range r.pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, State: *state, Ready: state.Running != nil,
		})
	}
	return status, nil
}

// waitsFor says in which hop each volume waits, and why. It does not wait itself.
func (p *Provider) waitsFor(pod *corev1.Pod) string {
	now, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("not all volumes are mounted"))
	if _, err := p.volumes.WaitMounted(now, pod.UID); err != nil {
		return err.Error()
	}
	return ""
}

// GetPods returns all pods.
func (p *Provider) GetPods(context.Context) ([]*corev1.Pod, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*corev1.Pod, 0, len(p.pods))
	for _, r := range p.pods {
		all = append(all, r.pod)
	}
	return all, nil
}

// A provider with the agent inside: it deletes a pod whose volume could not be mounted, runs
// another one, is restarted while that one runs, and ends it.
func Example() {
	root, err := os.MkdirTemp("", "belay")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(root)
	// In earnest: the node's own kubeconfig, and drivers that register below /var/lib/kubelet.
	config, driver, stop := exampleCluster(root)
	defer stop()
	start := func() (agent *node.Agent, stop func()) {
		// In earnest the statistics are a minute old at most, as with kubelet.
		agent, err := node.New(node.Config{NodeName: "edge-1", Root: root, RESTConfig: config, StatsPeriod: time.Millisecond})
		if err != nil {
			panic(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		stopped := make(chan error)
		go func() { stopped <- agent.Run(ctx) }()
		return agent, func() {
			cancel()
			fmt.Println("agent stopped:", <-stopped)
		}
	}
	ctx, runtime := context.Background(), newPrinting(root)
	check := func(err error) {
		if err != nil {
			fmt.Println("error:", err)
		}
	}

	agent, stopAgent := start()
	provider := NewProvider(ctx, agent, runtime)
	first := examplePod("web-0", "3b1c")
	driver.lose()
	check(provider.CreatePod(ctx, first))
	twice(driver.refused) // the agent tries again, and again
	tellStatus(provider, first)
	check(deletePod(ctx, provider, first))
	driver.find()

	second := examplePod("web-1", "c55e")
	check(provider.CreatePod(ctx, second))
	provider.awaitStart(second)
	tellStatus(provider, second)
	twice(driver.measured)
	for _, volume := range agent.VolumeStats(second.UID) {
		fmt.Printf("%s: %d of %d bytes used\n", volume.Name, *volume.UsedBytes, *volume.CapacityBytes)
	}
	stopAgent() // the pod runs on

	agent, stopAgent = start()
	provider = NewProvider(ctx, agent, runtime, second)
	provider.awaitStart(second)
	check(deletePod(ctx, provider, second))
	stopAgent()
	// Output:
	// web-0 is Pending, ContainerCreating: NodePublishVolume of volume share-1: rpc error: code = Unavailable desc = the server of the share does not answer
	// web-0 never ran
	// web-1 starts; ROOT/pods/c55e/volumes/kubernetes.io~csi/pv-1/mount is at /data in container web
	// web-1 is Running
	// data: 1024 of 4096 bytes used
	// agent stopped: <nil>
	// web-1 runs already; ROOT/pods/c55e/volumes/kubernetes.io~csi/pv-1/mount is at /data in container web
	// web-1 has ended
	// agent stopped: <nil>
}

// awaitStart blocks until the pod's containers were started.
func (p *Provider) awaitStart(pod *corev1.Pod) {
	p.mu.Lock()
	r := p.pods[key(pod)]
	p.mu.Unlock()
	<-r.waited
}

// tellStatus prints what virtual-kubelet would write to the pod's status.
func tellStatus(p *Provider, pod *corev1.Pod) {
	status, _ := p.GetPodStatus(context.Background(), pod.Namespace, pod.Name)
	fmt.Printf("%s is %s", pod.Name, status.Phase)
	if waiting := status.ContainerStatuses[0].State.Waiting; waiting != nil {
		_, failure, _ := strings.Cut(waiting.Message, "last failure: ")
		fmt.Printf(", %s: %s", waiting.Reason, failure)
	}
	fmt.Println()
}

// printing is a runtime that says what a real one would do.
type printing struct {
	root string

	mu          sync.Mutex
	runs, ended map[string]bool // guarded by mu; by pod
}

func newPrinting(root string) *printing {
	return &printing{root: root, runs: map[string]bool{}, ended: map[string]bool{}}
}

func (r *printing) Start(pod *corev1.Pod, binds map[string][]Bind) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	words := "starts"
	if r.runs[pod.Name] {
		words = "runs already"
	}
	r.runs[pod.Name] = true
	for container, list := range binds {
		for _, b := range list {
			fmt.Printf("%s %s; %s is at %s in container %s\n", pod.Name, words, filepath.Join("ROOT", strings.TrimPrefix(b.Host, r.root)), b.Container, container)
		}
	}
	return nil
}

func (r *printing) Stop(pod *corev1.Pod) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended[pod.Name] {
		return nil
	}
	words := "never ran"
	if r.runs[pod.Name] {
		words = "has ended"
	}
	delete(r.runs, pod.Name)
	r.ended[pod.Name] = true
	fmt.Println(pod.Name, words)
	return nil
}

func examplePod(name string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: uid},
		Spec: corev1.PodSpec{
			NodeName:   "edge-1",
			Containers: []corev1.Container{{Name: "web", Image: "nginx", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}},
		},
	}
}
