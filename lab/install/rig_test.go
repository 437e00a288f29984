package install

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

const (
	namespace = "belay-system"
	release   = "belay"
	// oldVersion and newVersion are the tags of two builds of one commit.
	oldVersion, newVersion = "v0.0.1", "v0.0.2"
	// within bounds a step of an installation on a busy machine.
	within = 3 * time.Minute
)

// rig is a lab in which belay is installed.
type rig struct {
	t     *testing.T
	scene *scenario.Scene
	root  string // the repository
}

// open starts a lab with upstream's controller and attacher and nothing of belay's.
func open(t *testing.T, o cluster.Options) *rig {
	t.Helper()
	labtest.Needs(t)
	if kind, because := cluster.DefaultNodeKind(); kind != cluster.NodeKindKubelet {
		t.Skip("NOT RUN: " + because)
	}
	for _, program := range []string{"helm", "images"} {
		if _, err := os.Stat(filepath.Join(os.Getenv("BELAY_BIN"), program)); err != nil {
			t.Skipf("NOT RUN: %v; `make test` builds it", err)
		}
	}
	root, err := filepath.Abs("../..")
	must(t, err)
	o.NodeKind, o.Plane, o.Drivers = cluster.NodeKindKubelet, cluster.PlaneUpstream, []string{labdisk.DriverDisk}
	return &rig{t: t, scene: labtest.Open(t, o), root: root}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// run runs a program of the repository's bin, or kubectl of the lab's version, as a user of the lab does.
func (r *rig) run(program string, args ...string) (string, error) {
	path := filepath.Join(os.Getenv("BELAY_BIN"), program)
	if program == "kubectl" {
		path = r.scene.Cluster.Kubectl()
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), within+time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, path, args...)
	command.Dir = r.root
	command.Env = append(os.Environ(), "KUBECONFIG="+r.scene.Cluster.Kubeconfig(), "SOURCE_DATE_EPOCH=0")
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	began := time.Now()
	err := command.Run()
	r.t.Logf("%s %s (%.1f s)", program, strings.Join(args, " "), time.Since(began).Seconds())
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, out.String())
	}
	return out.String(), err
}

// do is run where a failure ends the test.
func (r *rig) do(program string, args ...string) string {
	r.t.Helper()
	out, err := r.run(program, args...)
	must(r.t, err)
	return out
}

// loadImages builds images of a version and loads them on the nodes.
func (r *rig) loadImages(version string, images ...string) {
	r.t.Helper()
	dir := r.t.TempDir()
	args := []string{"-version", version, "-platforms", "linux/amd64", "-only", strings.Join(images, ","), "-out", dir, "-archives", dir}
	if rootfs := os.Getenv("BELAY_FENCER_ROOTFS"); rootfs != "" {
		args = append(args, "-fencer-rootfs", rootfs)
	}
	r.do("images", args...)
	for _, image := range images {
		must(r.t, r.scene.Cluster.LoadImage(r.t.Context(), filepath.Join(dir, image+".tar")))
	}
}

// helm installs the chart, or upgrades it, with more values, and waits until its pods are ready.
func (r *rig) helm(version string, more map[string]any) {
	r.t.Helper()
	raw, err := yaml.Marshal(more)
	must(r.t, err)
	file := filepath.Join(r.t.TempDir(), "values.yaml")
	must(r.t, os.WriteFile(file, raw, 0o600))
	out, err := r.run("helm", "upgrade", "--install", release, "charts/belay", "--namespace", namespace, "--values", "lab/install/values.yaml", "--values", file,
		"--set", "imageTag="+version, "--wait", "--timeout", within.String())
	if err != nil {
		r.say()
	}
	must(r.t, err)
	if !strings.Contains(out, "kubectl belay check --wait") && !strings.Contains(out, "Recovery is installed") {
		r.t.Errorf("helm does not name the next step:\n%s", out)
	}
}

// say logs what became of belay's pods.
func (r *rig) say() {
	for _, args := range [][]string{
		{"get", "pods", "-o", "wide"}, {"describe", "pods"}, {"logs", "-l", "app.kubernetes.io/part-of=belay", "--prefix", "--tail=20"}, {"get", "events"}, {"get", "fencesources,nodefences", "-o", "yaml"}, {"describe", "nodes"},
	} {
		out, err := r.run("kubectl", append([]string{"-n", namespace}, args...)...)
		r.t.Logf("%s (%v)", out, err)
	}
}

// uninstall removes the release and waits until its pods have gone.
func (r *rig) uninstall() {
	r.t.Helper()
	if _, err := r.run("helm", "uninstall", release, "--namespace", namespace, "--wait", "--timeout", within.String()); err != nil {
		r.say() // also why the Job of the hook refuses
		r.t.Fatal(err)
	}
	r.until("belay's pods to go", func(ctx context.Context) (bool, error) {
		pods, err := r.scene.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=belay"})
		return err == nil && len(pods.Items) == 0, err
	})
}

func (r *rig) until(what string, is func(context.Context) (bool, error)) {
	r.t.Helper()
	if err := wait.PollUntilContextTimeout(r.t.Context(), 200*time.Millisecond, within, true, is); err != nil {
		r.say()
		r.t.Fatalf("wait for %s: %v", what, err)
	}
}

// leader is the pod of a part of belay that leads, as its metrics say: in the network of the host, the lease names the host alone.
func (r *rig) leader(part string) *corev1.Pod {
	r.t.Helper()
	var holder *corev1.Pod
	r.until("a pod to lead "+part, func(ctx context.Context) (bool, error) {
		pods, err := r.scene.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + part})
		if err != nil {
			return false, err
		}
		for i := range pods.Items {
			if p := &pods.Items[i]; strings.Contains(metrics(ctx, p), "leader_election_master_status{name=\""+part+"\"} 1") {
				holder = p
			}
		}
		return holder != nil, nil
	})
	return holder
}

// metrics are those of a pod, empty if it does not answer.
func metrics(ctx context.Context, p *corev1.Pod) string {
	port := p.Spec.Containers[0].Ports[0].ContainerPort
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/metrics", net.JoinHostPort(p.Status.PodIP, fmt.Sprint(port))), nil)
	if err != nil {
		return err.Error()
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return ""
	}
	return string(body)
}

// move moves the writer to another node. What is left behind is looked for at the end: others may have volumes meanwhile.
func (r *rig) move(title string) time.Duration {
	r.t.Helper()
	began := time.Now()
	move, err := r.scene.DeleteAndCordon(r.t.Context(), title)
	if err != nil {
		r.say()
		r.t.Fatal(err)
	}
	took := time.Since(began)
	r.t.Logf("%s: %s -> %s in %.1f s", title, move.From, move.To, took.Seconds())
	return took
}

// finish checks that the moves left nothing behind, and reads every record back.
func (r *rig) finish() {
	r.t.Helper()
	node, err := r.scene.WriterNode()
	must(r.t, err)
	must(r.t, r.scene.AwaitSettled(r.t.Context(), node))
	verified, err := r.scene.Verify(r.t.Context())
	must(r.t, err)
	found, err := r.scene.Violations(r.t.Context())
	if err != nil || len(found) != 0 {
		r.t.Errorf("the storage counted forbidden writes: %+v (%v)", found, err)
	}
	r.t.Logf("verified: %+v", *verified)
	must(r.t, r.scene.RemoveWriter(r.t.Context()))
}

// preflight runs `belay-controller preflight`, with a person's word for what it cannot read: the lab's kube-controller-manager is no pod.
func (r *rig) preflight(disabled bool) error {
	args := []string{"preflight", "--observe=1s"}
	if disabled {
		args = append(args, "--confirm-upstream-disabled")
	}
	out, err := r.run("belay-controller", args...)
	r.t.Log(out)
	return err
}
