package node_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"belay.dev/belay/node"
)

func TestCloseReleasesTheRoot(t *testing.T) {
	config := node.Config{NodeName: "edge-1", Root: t.TempDir(), RESTConfig: &rest.Config{Host: "http://127.0.0.1:1"}}
	agent, err := node.New(config)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := node.New(config); !errors.Is(err, node.ErrRootInUse) {
		t.Errorf("a second agent on the root: %v, %v, want %v", second, err, node.ErrRootInUse)
	}
	for range 2 {
		if err := agent.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := agent.Run(t.Context()); !errors.Is(err, node.ErrClosed) {
		t.Errorf("run after close: %v, want %v", err, node.ErrClosed)
	}
	if agent, err = node.New(config); err != nil {
		t.Fatal("after close: ", err)
	}
	if err := agent.Close(); err != nil {
		t.Error(err)
	}
}

func TestCloseEndsRun(t *testing.T) {
	_, agent, _ := startProvider(t, &recording{})
	pod := examplePod("web-0", "a")
	agent.SetPod(pod)
	if _, err := agent.WaitMounted(t.Context(), pod.UID); err != nil { // it runs
		t.Fatal(err)
	}
	for range 2 {
		if err := agent.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The caller's pod may change as soon as SetPod has returned.
func TestSetPodCopies(t *testing.T) {
	_, agent, driver := startProvider(t, &recording{})
	driver.lose()
	pod := examplePod("web-0", "a")
	agent.SetPod(pod)
	pod.Namespace, pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "changed", "changed"
	pod.Spec.Containers[0].VolumeMounts = nil
	driver.find()
	if mounts, err := agent.WaitMounted(t.Context(), "a"); err != nil || len(mounts) != 1 {
		t.Errorf("mounts %v, %v, want the volume that the pod had when it was set", mounts, err)
	}
}

func TestErrorsDistinguishNeverFromNotYet(t *testing.T) {
	_, agent, driver := startProvider(t, &recording{})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := agent.WaitMounted(over, "nobody"); !errors.Is(err, node.ErrPodNotWanted) {
		t.Errorf("a pod that was not set: %v", err)
	}

	never := examplePod("never", "n")
	c := &never.Spec.Containers[0]
	c.VolumeMounts, c.VolumeDevices = nil, []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}
	agent.SetPod(never)
	_, err := agent.WaitMounted(t.Context(), never.UID)
	if _, refused := errors.AsType[*node.RefusedError](err); !refused || errors.As(err, new(*node.WaitError)) {
		t.Errorf("a pod that asks for the impossible: %v", err)
	}

	driver.lose()
	later := examplePod("later", "l")
	agent.SetPod(later)
	twice(driver.refused)
	_, err = agent.WaitMounted(over, later.UID)
	wait, ok := errors.AsType[*node.WaitError](err)
	if !ok || !errors.Is(err, context.Canceled) || errors.As(err, new(*node.RefusedError)) {
		t.Fatalf("a pod whose driver does not answer: %v", err)
	}
	if len(wait.Volumes) != 1 || wait.Volumes[0].Volume != "data" || wait.Volumes[0].Err == nil || wait.Pod != later.UID {
		t.Errorf("it waits for %+v", wait.Volumes)
	}
	if _, err := agent.MountSubPath(later.UID, node.SubPath{Volume: "data", Container: "web", Path: "x"}); !errors.As(err, new(*node.WaitError)) {
		t.Errorf("a subPath of what is not mounted: %v", err)
	}
}

// binding is a runtime that keeps what it was to bind.
type binding struct{ binds []Bind }

func (r *binding) Start(_ *corev1.Pod, binds map[string][]Bind) error {
	for _, list := range binds {
		r.binds = append(r.binds, list...)
	}
	return nil
}

func (r *binding) Stop(*corev1.Pod) error { return nil }

func TestProviderBindsSubPaths(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	runtime := &binding{}
	p, agent, _ := startProvider(t, runtime)
	part := t.TempDir() // the driver's volume is the directory of all temporary ones
	path, err := filepath.Rel(os.TempDir(), part)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(part, "file"), []byte("here"), 0o600); err != nil {
		t.Fatal(err)
	}
	pod := examplePod("web-0", "a")
	pod.Spec.Containers[0].VolumeMounts[0].SubPath = path
	if err := p.CreatePod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	p.awaitStart(pod)
	if len(runtime.binds) != 1 {
		t.Fatalf("bound %v, phase %s", runtime.binds, phaseOf(t, p, pod))
	}
	host := runtime.binds[0].Host
	if content, err := os.ReadFile(filepath.Join(host, "file")); string(content) != "here" {
		t.Errorf("at %s: %q, %v", host, content, err)
	}
	if _, err := agent.MountSubPath(pod.UID, node.SubPath{Volume: "data", Container: "web", Path: "../etc"}); !errors.Is(err, node.ErrSubPathOutsideVolume) {
		t.Errorf("a subPath that leads out: %v", err)
	}
	if err := deletePod(t.Context(), p, pod); err != nil {
		t.Error(err)
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(table), host) {
		t.Errorf("%s is still mounted (%v)", host, err)
	}
	if _, err := agent.MountSubPath(pod.UID, node.SubPath{Volume: "data", Container: "web", Path: "x"}); !errors.Is(err, node.ErrPodNotWanted) {
		t.Errorf("a subPath for a pod that is gone: %v", err)
	}
}

func TestMountForMicroVMs(t *testing.T) {
	_, agent, _ := startProvider(t, &recording{})
	pod := examplePod("web-0", "a")
	agent.SetPod(pod)
	mounts, err := agent.WaitMounted(t.Context(), pod.UID)
	if err != nil {
		t.Fatal(err)
	}
	m := mounts[0]
	if m.Driver != "nfs.example.com" || m.VolumeHandle != "share-1" || m.FSType != "nfs" || m.VolumeContext["server"] != "10.0.0.1" ||
		len(m.MountOptions) != 1 || m.PublishContext != nil {
		t.Errorf("%+v", m)
	}
	m.VolumeContext["server"] = "changed"
	if again, err := agent.WaitMounted(t.Context(), pod.UID); err != nil || again[0].VolumeContext["server"] != "10.0.0.1" {
		t.Errorf("a caller's change reached the agent: %v, %v", again, err)
	}
	if _, err := m.Source(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the source of what is a link: %v", err)
	}
	source, err := node.Mount{Path: "/proc"}.Source()
	if err != nil || source.FSType != "proc" || source.Device != "" {
		t.Errorf("the source of /proc: %+v, %v", source, err)
	}
}
