package node_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/node"
)

// Provider is a virtual-kubelet style provider: it is told of pods one by one and
// runs them its own way. Its CSI volumes are the agent's business.
type Provider struct {
	volumes *node.Agent
	run     func(pod *corev1.Pod, mounts []node.Mount) error
	kill    func(pod *corev1.Pod) error
}

// CreatePod runs a pod once its volumes are there.
func (p *Provider) CreatePod(ctx context.Context, pod *corev1.Pod) error {
	p.volumes.SetPod(pod)
	mounts, err := p.volumes.WaitMounted(ctx, pod.UID)
	if err != nil {
		return err // says in which hop each volume waits
	}
	return p.run(pod, mounts)
}

// DeletePod ends a pod. Its object may go from the API when this returns.
func (p *Provider) DeletePod(ctx context.Context, pod *corev1.Pod) error {
	if err := p.kill(pod); err != nil {
		return err
	}
	p.volumes.RemovePod(pod.UID)
	return p.volumes.WaitUnmounted(ctx, pod.UID)
}

// Recover tells a new agent which pods are still running after a restart.
// Volumes of all others are unmounted.
func (p *Provider) Recover(running []*corev1.Pod) {
	for _, pod := range running {
		p.volumes.SetPod(pod)
	}
	p.volumes.PodsSynced()
}

// A provider with the agent inside. See Provider for what it does with it.
func Example() {
	root, err := os.MkdirTemp("", "belay")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(root)
	// In earnest: the node's own kubeconfig, and drivers that register below the root.
	config, stop := exampleCluster(root)
	defer stop()

	agent, err := node.New(node.Config{NodeName: "edge-1", Root: root, RESTConfig: config})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- agent.Run(ctx) }()

	provider := &Provider{
		volumes: agent,
		run: func(pod *corev1.Pod, mounts []node.Mount) error {
			for _, m := range mounts {
				path, err := filepath.Rel(root, m.Path)
				if err != nil {
					return err
				}
				fmt.Printf("%s runs; volume %s is at %s\n", pod.Name, m.VolumeName, path)
			}
			return nil
		},
		kill: func(pod *corev1.Pod) error {
			fmt.Printf("%s has ended\n", pod.Name)
			return nil
		},
	}
	provider.Recover(nil)
	pod := examplePod()
	if err := provider.CreatePod(ctx, pod); err != nil {
		fmt.Println(err)
	}
	if err := provider.DeletePod(ctx, pod); err != nil {
		fmt.Println(err)
	}
	cancel()
	fmt.Println("agent:", <-stopped)
	// Output:
	// web runs; volume data is at pods/3b1c/volumes/kubernetes.io~csi/pv-1/mount
	// web has ended
	// agent: <nil>
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
