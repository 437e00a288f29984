package node_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// Runtime runs containers in the provider's own way.
type Runtime interface {
	// Start begins with the containers of a pod; binds are by container name.
	Start(pod *corev1.Pod, binds map[string][]Bind) error
	// Stop ends them. When it returns, none of them uses a volume any more.
	Stop(pod *corev1.Pod) error
}

// Provider runs the pods of a virtual node. Their CSI volumes are the agent's business.
type Provider struct {
	volumes *node.Agent
	runtime Runtime

	mu   sync.Mutex
	pods map[string]*corev1.Pod // under mu; by namespace and name
}

// NewProvider makes a provider whose runtime runs these pods, from before a restart perhaps.
// Their volumes stay mounted; those of all other pods are unmounted from here on.
func NewProvider(volumes *node.Agent, runtime Runtime, running ...*corev1.Pod) *Provider {
	p := &Provider{volumes: volumes, runtime: runtime, pods: map[string]*corev1.Pod{}}
	for _, pod := range running {
		volumes.SetPod(pod)
		p.pods[key(pod.Namespace, pod.Name)] = pod
	}
	volumes.PodsSynced()
	return p
}

func key(namespace, name string) string { return namespace + "/" + name }

// CreatePod runs a pod once its volumes are there. Asked again after an error it goes on
// where it was: the agent has not stopped working on the volumes meanwhile. Who
// gives a pod up calls DeletePod.
func (p *Provider) CreatePod(ctx context.Context, pod *corev1.Pod) error {
	p.mu.Lock()
	p.pods[key(pod.Namespace, pod.Name)] = pod
	p.mu.Unlock()
	p.volumes.SetPod(pod)
	mounts, err := p.volumes.WaitMounted(ctx, pod.UID)
	if err != nil {
		return fmt.Errorf("pod %s: %w", pod.Name, err) // says in which hop each volume waits
	}
	return p.runtime.Start(pod, binds(pod, mounts))
}

// binds finds the volumes of each container. Those of other kinds (emptyDir, configMap ...)
// are the provider's own business, and so is subPath.
func binds(pod *corev1.Pod, mounts []node.Mount) map[string][]Bind {
	volumes := map[string]node.Mount{}
	for _, m := range mounts {
		volumes[m.VolumeName] = m
	}
	out := map[string][]Bind{}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, use := range c.VolumeMounts {
			if m, ok := volumes[use.Name]; ok {
				out[c.Name] = append(out[c.Name], Bind{Host: m.Path, Container: use.MountPath, ReadOnly: m.ReadOnly || use.ReadOnly})
			}
		}
		for _, use := range c.VolumeDevices {
			if m, ok := volumes[use.Name]; ok {
				out[c.Name] = append(out[c.Name], Bind{Host: m.Path, Container: use.DevicePath, Device: true, ReadOnly: m.ReadOnly})
			}
		}
	}
	return out
}

// UpdatePod has nothing to do: a pod's volumes cannot change.
func (p *Provider) UpdatePod(context.Context, *corev1.Pod) error { return nil }

// DeletePod ends a pod. The pod may go from the API when this returns, and not before.
func (p *Provider) DeletePod(ctx context.Context, pod *corev1.Pod) error {
	if err := p.runtime.Stop(pod); err != nil {
		return err
	}
	p.volumes.RemovePod(pod.UID)
	if err := p.volumes.WaitUnmounted(ctx, pod.UID); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pods, key(pod.Namespace, pod.Name))
	return nil
}

// GetPod returns a pod that was created and not deleted, or nil.
func (p *Provider) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pods[key(namespace, name)], nil
}

// GetPodStatus returns a pod's status, or nil.
func (p *Provider) GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error) {
	pod, err := p.GetPod(ctx, namespace, name)
	if pod == nil {
		return nil, err
	}
	return &pod.Status, nil
}

// GetPods returns all pods.
func (p *Provider) GetPods(context.Context) ([]*corev1.Pod, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*corev1.Pod, 0, len(p.pods))
	for _, pod := range p.pods {
		all = append(all, pod)
	}
	return all, nil
}

// A provider with the agent inside: it runs a pod, is restarted while the pod runs, and ends it.
func Example() {
	root, err := os.MkdirTemp("", "belay")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(root)
	// In earnest: the node's own kubeconfig, and drivers that register below /var/lib/kubelet.
	config, stop := exampleCluster(root)
	defer stop()
	start := func() (agent *node.Agent, stop func()) {
		agent, err := node.New(node.Config{NodeName: "edge-1", Root: root, RESTConfig: config})
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

	ctx, pod := context.Background(), examplePod()
	agent, stopAgent := start()
	provider := NewProvider(agent, printing{root})
	if err := provider.CreatePod(ctx, pod); err != nil {
		fmt.Println(err)
	}
	stopAgent() // the pod runs on

	agent, stopAgent = start()
	provider = NewProvider(agent, printing{root}, pod)
	if mounts, err := agent.WaitMounted(ctx, pod.UID); err == nil {
		fmt.Println("ready:", mounts[0].VolumeName)
	}
	if err := provider.DeletePod(ctx, pod); err != nil {
		fmt.Println(err)
	}
	stopAgent()
	// Output:
	// web runs; ROOT/pods/3b1c/volumes/kubernetes.io~csi/pv-1/mount is at /data in container web
	// agent stopped: <nil>
	// ready: data
	// web has ended
	// agent stopped: <nil>
}

// printing is a runtime that says what a real one would do.
type printing struct{ root string }

func (r printing) Start(pod *corev1.Pod, binds map[string][]Bind) error {
	for container, list := range binds {
		for _, b := range list {
			fmt.Printf("%s runs; %s is at %s in container %s\n", pod.Name, filepath.Join("ROOT", strings.TrimPrefix(b.Host, r.root)), b.Container, container)
		}
	}
	return nil
}

func (r printing) Stop(pod *corev1.Pod) error {
	fmt.Printf("%s has ended\n", pod.Name)
	return nil
}

func examplePod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "3b1c"},
		Spec: corev1.PodSpec{
			NodeName:   "edge-1",
			Containers: []corev1.Container{{Name: "web", Image: "nginx", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}},
		},
	}
}
