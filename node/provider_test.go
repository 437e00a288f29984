package node_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/node"
)

// startProvider starts an agent in the example's cluster, and a provider with it.
func startProvider(t *testing.T, runtime Runtime) (*Provider, *node.Agent, *exampleDriver) {
	t.Helper()
	root := t.TempDir()
	config, driver, stop := exampleCluster(root)
	t.Cleanup(stop)
	agent, err := node.New(node.Config{NodeName: "edge-1", Root: root, RESTConfig: config})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- agent.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	return NewProvider(ctx, agent, runtime), agent, driver
}

// recording is a runtime that only says what it runs.
type recording struct {
	refuses error
	runs    []types.UID // read when nothing starts or stops
}

func (r *recording) Start(pod *corev1.Pod, _ map[string][]Bind) error {
	if r.refuses == nil {
		r.runs = append(r.runs, pod.UID)
	}
	return r.refuses
}

func (r *recording) Stop(pod *corev1.Pod) error {
	r.runs = slices.DeleteFunc(r.runs, func(uid types.UID) bool { return uid == pod.UID })
	return nil
}

func phaseOf(t *testing.T, p *Provider, pod *corev1.Pod) corev1.PodPhase {
	t.Helper()
	status, err := p.GetPodStatus(t.Context(), pod.Namespace, pod.Name)
	if err != nil || status == nil {
		t.Fatalf("status of %s: %v, %v", pod.Name, status, err)
	}
	return status.Phase
}

func TestProviderHasTheCurrentPod(t *testing.T) {
	runtime := &recording{}
	p, agent, _ := startProvider(t, runtime)
	pod := examplePod("web-0", "a")
	if err := p.CreatePod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	p.awaitStart(pod)
	edited := pod.DeepCopy()
	edited.Labels = map[string]string{"tier": "front"}
	if err := p.UpdatePod(t.Context(), edited); err != nil {
		t.Fatal(err)
	}
	// If it were the old one, virtual-kubelet would ask for the update forever.
	if got, _ := p.GetPod(t.Context(), pod.Namespace, pod.Name); got.Labels["tier"] != "front" {
		t.Errorf("after an update GetPod returns labels %v", got.Labels)
	}
	if got := phaseOf(t, p, pod); got != corev1.PodRunning {
		t.Errorf("after an update the pod is %s", got)
	}

	// The object was replaced unnoticed: the update is of another pod.
	another := examplePod("web-0", "b")
	if err := updatePod(t.Context(), p, another); err != nil {
		t.Fatal(err)
	}
	p.awaitStart(another)
	if want := []types.UID{"b"}; !slices.Equal(runtime.runs, want) {
		t.Errorf("the runtime has %v, want %v", runtime.runs, want)
	}
	if err := agent.WaitUnmounted(t.Context(), pod.UID); err != nil {
		t.Error(err)
	}
}

func TestPodThatCannotStartReleasesItsVolumes(t *testing.T) {
	p, agent, _ := startProvider(t, &recording{refuses: errors.New("no such image")})
	pod := examplePod("web-0", "a")
	if err := p.CreatePod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	p.awaitStart(pod)
	if got := phaseOf(t, p, pod); got != corev1.PodFailed {
		t.Errorf("the pod is %s", got)
	}
	if err := agent.WaitUnmounted(t.Context(), pod.UID); err != nil {
		t.Error(err)
	}
	if err := p.UpdatePod(t.Context(), pod); err != nil {
		t.Error(err)
	}
	if mounted, err := agent.WaitMounted(t.Context(), pod.UID); err == nil {
		t.Errorf("an update has mounted it again: %v", mounted)
	}
}

// virtual-kubelet has ten workers.
func TestPodsThatCannotBeMountedBlockNoOthers(t *testing.T) {
	runtime := &recording{}
	p, agent, driver := startProvider(t, runtime)
	driver.lose()
	var pods []*corev1.Pod
	for i := range 12 {
		pod := examplePod("web-"+string(rune('a'+i)), types.UID(rune('a'+i)))
		pods = append(pods, pod)
		if err := p.CreatePod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	twice(driver.refused)
	gone := pods[len(pods)-1]
	for range 2 { // it may come again
		if err := deletePod(t.Context(), p, gone); err != nil {
			t.Error(err)
		}
	}
	if got, _ := p.GetPod(t.Context(), gone.Namespace, gone.Name); got != nil {
		t.Errorf("%s is still there", got.Name)
	}
	if err := agent.WaitUnmounted(t.Context(), gone.UID); err != nil {
		t.Error(err)
	}
	if len(runtime.runs) > 0 {
		t.Errorf("the runtime has %v", runtime.runs)
	}
}
