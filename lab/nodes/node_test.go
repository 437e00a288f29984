package nodes

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func lines(text string) []string {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// writerPod writes records to an emptyDir.
func writerPod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{
			NodeName: node, HostNetwork: true, TerminationGracePeriodSeconds: new(int64(5)),
			AutomountServiceAccountToken: new(false),
			Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Volumes:                      []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
			Containers: []corev1.Container{{
				Name: "writer", Image: Image, Args: []string{"append", "--file", "/data/records", "--interval", "20ms"},
				Env: []corev1.EnvVar{
					{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
					{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
				},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
		},
	}
}

func running(pod *corev1.Pod) bool {
	return pod != nil && pod.Status.Phase == corev1.PodRunning && len(pod.Status.ContainerStatuses) == 1 &&
		pod.Status.ContainerStatuses[0].State.Running != nil && pod.Status.ContainerStatuses[0].Ready
}

func gone(pod *corev1.Pod) bool { return pod == nil }

// logs asks the API server, as kubectl logs does.
func (p *plane) logs(t *testing.T, pod string) ([]string, error) {
	t.Helper()
	stream, err := p.client.CoreV1().Pods("default").GetLogs(pod, &corev1.PodLogOptions{}).Stream(t.Context())
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	all, err := io.ReadAll(stream)
	return lines(string(all)), err
}

func (p *plane) create(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	created, err := p.client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// life is what both kinds of node must do: a pod runs, its log can be read, it
// survives the loss of its agent, it is deleted, and the power can be cut.
func life(t *testing.T, kind Kind) {
	t.Helper()
	machine := sysctls(t)
	p := startPlane(t)
	node := p.startNode(t, kind, "node-1")
	ctx, cancel := context.WithTimeout(t.Context(), 3*testPatience)
	defer cancel()
	began := time.Now()
	if err := AdoptNode(ctx, p.client, "node-1", loopbackIP); err != nil {
		t.Fatal(err)
	}
	t.Logf("registered after %v", time.Since(began))

	began = time.Now()
	p.create(t, writerPod("writer", "node-1"))
	first := p.awaitPod(t, "writer", "running", running)
	t.Logf("running after %v", time.Since(began))
	var log []string
	var err error
	within(testPatience, func() bool { log, err = p.logs(t, "writer"); return err == nil && len(log) > 2 })
	if len(log) == 0 || !strings.HasSuffix(log[0], "continuing as node-1/writer") {
		t.Errorf("log: %q (%v)", log, err)
	}

	if err := node.Kill(ChildAgent); err != nil {
		t.Fatal(err)
	}
	p.create(t, writerPod("second", "node-1"))
	began = time.Now()
	p.awaitPod(t, "second", "running, started by the next agent", running)
	t.Logf("agent killed: next pod running after %v", time.Since(began))
	again := p.awaitPod(t, "writer", "running still", running)
	was, is := first.Status.ContainerStatuses[0], again.Status.ContainerStatuses[0]
	if is.RestartCount != 0 || is.ContainerID != was.ContainerID {
		t.Errorf("container %s was restarted with its agent: now %s, %d restarts", was.ContainerID, is.ContainerID, is.RestartCount)
	}

	began = time.Now()
	if err := p.client.CoreV1().Pods("default").Delete(ctx, "writer", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.awaitPod(t, "writer", "gone", gone)
	t.Logf("deleted after %v", time.Since(began))

	if diff := cmp.Diff(machine, sysctls(t)); diff != "" {
		t.Errorf("the node changed the machine: -before +after\n%s", diff)
	}

	bootID := p.node(t).Status.NodeInfo.BootID
	node.powerOff(t)
	if t.Failed() {
		return
	}
	node.powerOn(t)
	within(testPatience, func() bool { return p.node(t).Status.NodeInfo.BootID != bootID })
	if is := p.node(t).Status.NodeInfo.BootID; is == bootID || is == "" {
		t.Errorf("boot ID after the power cut is %q, before %q", is, bootID)
	}
	restarted := p.awaitPod(t, "second", "restarted after the power cut", func(pod *corev1.Pod) bool {
		return running(pod) && pod.Status.ContainerStatuses[0].RestartCount > 0
	})
	t.Logf("after the power cut: %d restarts", restarted.Status.ContainerStatuses[0].RestartCount)

	began = time.Now()
	if err := node.Shutdown(ctx); err != nil {
		t.Errorf("orderly stop: %v", err)
	}
	if err := node.process.Wait(); err != nil {
		t.Errorf("node-init: %v", err)
	}
	t.Logf("orderly stop took %v", time.Since(began))
	node.awaitNoProcess(t)
}

func sysctls(t *testing.T) map[string]string {
	t.Helper()
	values := map[string]string{}
	for _, name := range kubeletSysctls {
		raw, err := os.ReadFile(filepath.Join(sysctlRoot, name))
		if err != nil {
			t.Fatal(err)
		}
		values[name] = strings.TrimSpace(string(raw))
	}
	return values
}

func (p *plane) node(t *testing.T) *corev1.Node {
	t.Helper()
	node, err := p.client.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return node
}

func TestKubeletNode(t *testing.T) {
	for _, program := range []string{"containerd", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("NOT RUN: %v", err)
		}
	}
	life(t, KindKubelet)
}

func TestBelayNode(t *testing.T) { life(t, KindBelay) }
