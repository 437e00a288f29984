package cluster_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

// startWithin bounds a start with all programs built, with room for a loaded machine.
const startWithin = 10 * time.Minute

func start(t *testing.T, o cluster.Options) *cluster.Cluster {
	t.Helper()
	labtest.Needs(t)
	o.Progress = t.Logf
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	began := time.Now()
	lab, err := cluster.Up(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("up after %v", time.Since(began))
	t.Cleanup(func() {
		if err := lab.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return lab
}

func assertNothingLeft(t *testing.T, dir string) {
	t.Helper()
	if left := scenario.LeftOnMachine(dir); len(left) > 0 {
		t.Errorf("left on the machine:\n%s", strings.Join(left, "\n"))
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lab's folder is still there: %v", err)
	}
}

// cleanKilled cleans up after a lab whose holder was killed. A process that the holder had just forked has its lock until it runs its own
// program, and one that it had just started ends by itself, and may write its record into a folder that is being removed.
func cleanKilled(t *testing.T, name, dir string) {
	t.Helper()
	var removed []string
	labtest.Until(t, startWithin, "the lab to be cleaned", func() error {
		more, err := cluster.Clean(t.Context(), name)
		removed = append(removed, more...)
		return err
	})
	t.Logf("removed %v, what did not end with the holder; left are %v", removed, scenario.LeftOnMachine(dir))
	labtest.Until(t, time.Minute, "the last processes of the lab to end", func() error {
		if left := scenario.LeftOnMachine(dir); len(left) > 0 {
			return errors.New(strings.Join(left, "\n"))
		}
		return nil
	})
	assertNothingLeft(t, dir)
}

func TestUpDown(t *testing.T) {
	lab := start(t, cluster.Options{Name: "updown", Nodes: 2, NodeKind: cluster.NodeKindBelay, Drivers: labdisk.Drivers()})
	client, err := kubernetes.NewForConfig(lab.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 2 {
		t.Errorf("there are %d nodes (%v), want 2", len(nodes.Items), err)
	}

	// A second one of the same name is refused in a sentence that says what to do.
	_, err = cluster.Up(t.Context(), cluster.Options{Name: "updown", NodeKind: cluster.NodeKindBelay})
	if !errors.Is(err, cluster.ErrRunning) || !strings.Contains(err.Error(), "belay-lab down --name updown") {
		t.Errorf("a second start gave %v", err)
	}
	if _, err := cluster.Clean(t.Context(), "updown"); !errors.Is(err, cluster.ErrRunning) {
		t.Errorf("cleaning a running lab gave %v", err)
	}

	t.Run("another process can steer it", func(t *testing.T) { steerFromOutside(t, lab) })
	t.Run("a node is cut off", func(t *testing.T) { partition(t, lab, client) })
	t.Run("a component is cut off", func(t *testing.T) { partitionComponent(t, lab) })
	t.Run("a killed component comes back", func(t *testing.T) { killAndAwait(t, lab, client) })

	if err := lab.Down(t.Context()); err != nil {
		t.Error(err)
	}
	assertNothingLeft(t, lab.Dir())
	removed, err := cluster.Clean(t.Context(), "updown")
	if err != nil || len(removed) > 0 {
		t.Errorf("after the end there was something to clean: %v (%v)", removed, err)
	}
	if _, err := os.Stat(filepath.Join(lab.LogDir(), "components", "kube-apiserver.log")); err != nil {
		t.Errorf("the logs are not kept: %v", err)
	}
}

func steerFromOutside(t *testing.T, lab *cluster.Cluster) {
	t.Helper()
	remote, err := cluster.Find("updown")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.PowerOff(t.Context(), "node-2"); err != nil {
		t.Fatal(err)
	}
	status, err := remote.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(status.Off) != 1 || status.Off[0] != "node-2" || lab.IsOn("node-2") {
		t.Errorf("off are %v, want node-2", status.Off)
	}
	left := scenario.LeftOnMachine(filepath.Join(lab.Dir(), "nodes", "node-2"))
	if len(left) > 0 {
		t.Errorf("a node without power still has:\n%s", strings.Join(left, "\n"))
	}
	if err := remote.PowerOn(t.Context(), "node-2"); err != nil {
		t.Fatal(err)
	}
	if err := remote.Kill(t.Context(), "no-such-component"); err == nil || !strings.Contains(err.Error(), "it has fabric, etcd") {
		t.Errorf("killing what is not there gave %v", err)
	}
}

// partition cuts a node off in each direction, and asks in both: the API server with the node's credential, and the kubelet's port.
func partition(t *testing.T, lab *cluster.Cluster, client kubernetes.Interface) {
	t.Helper()
	remote, err := cluster.Find("updown")
	if err != nil {
		t.Fatal(err)
	}
	const name = "node-1"
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(lab.Dir(), "pki", name+".kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	asNode, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	node, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kubelet := fmt.Sprintf("https://%s:%d/healthz", node.Status.Addresses[0].Address, node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	anybody := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	check := func(direction string, toAPI, fromAPI bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), answerWithin(toAPI))
		defer cancel()
		if _, err := asNode.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); (err == nil) != toAPI {
			t.Errorf("%s: the node asks the API server: %v", direction, err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), answerWithin(fromAPI))
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, kubelet, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := anybody.Do(request)
		if (err == nil) != fromAPI || !fromAPI && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: the kubelet is asked: %v", direction, err)
		}
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s: the kubelet answers %s without a certificate", direction, answer.Status)
			}
		}
	}
	check("before", true, true)
	for direction, passes := range map[cluster.Direction][2]bool{
		cluster.Both: {}, cluster.ToAPI: {false, true}, cluster.FromAPI: {true, false},
	} {
		if err := remote.Partition(t.Context(), name, direction); err != nil {
			t.Fatal(err)
		}
		status, err := remote.Status(t.Context())
		if err != nil || status.Partitioned[name] != direction || len(status.Partitioned) != 1 {
			t.Errorf("partitioned are %v (%v), want %s %s", status.Partitioned, err, name, direction)
		}
		check(string(direction), passes[0], passes[1])
	}
	if err := remote.Heal(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	check("healed", true, true)
}

// partitionComponent cuts the attacher off, asks the API server in its place, and refuses what has no such link.
func partitionComponent(t *testing.T, lab *cluster.Cluster) {
	t.Helper()
	remote, err := cluster.Find("updown")
	if err != nil {
		t.Fatal(err)
	}
	const name = "attacher"
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(lab.Dir(), "pki", name+"-linked.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	asAttacher, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string, want cluster.Direction) {
		t.Helper()
		status, err := remote.Status(t.Context())
		if err != nil || status.Partitioned[name] != want {
			t.Errorf("%s: partitioned are %v (%v), want %s %q", when, status.Partitioned, err, name, want)
		}
		ctx, cancel := context.WithTimeout(t.Context(), answerWithin(want == ""))
		defer cancel()
		if _, err := asAttacher.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{}); (err == nil) != (want == "") {
			t.Errorf("%s: the attacher asks the API server: %v", when, err)
		}
	}
	check("before", "")
	if err := remote.PartitionComponent(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	check("cut off", cluster.ToAPI)
	if err := remote.HealComponent(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	check("healed", "")
	for other, says := range map[string]string{
		"etcd": "etcd is not a client of the API server", "node-1": "node-1 is a node: see `belay-lab node partition --help`", "none": "it has fabric, etcd",
	} {
		if err := remote.PartitionComponent(t.Context(), other); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("cutting %s off gave %v, want %q", other, err, says)
		}
	}
	if err := remote.Partition(t.Context(), name, cluster.Both); err == nil || !strings.Contains(err.Error(), "no node") {
		t.Errorf("cutting the attacher off as a node gave %v", err)
	}
}

// answerWithin is how long to wait for an answer; not long where none is expected, because the wait then takes all of it.
func answerWithin(answers bool) time.Duration {
	if answers {
		return time.Minute
	}
	return 3 * time.Second
}

func killAndAwait(t *testing.T, lab *cluster.Cluster, client kubernetes.Interface) {
	t.Helper()
	if err := lab.Kill("kube-apiserver"); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(startWithin)
	for {
		_, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the API server does not come back: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// The process that holds a lab is killed with -9, at several moments; clean finds everything.
func TestCleanAfterKilledSupervisor(t *testing.T) {
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN with -short: three starts that are killed")
	}
	labs, err := cluster.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(labs, "labs", "killed")
	for name, after := range map[string]time.Duration{
		"while etcd starts": 300 * time.Millisecond, "while the API server starts": 2 * time.Second, "while nodes start": 8 * time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			holder := exec.Command(filepath.Join(os.Getenv("BELAY_BIN"), "belay-lab"), "supervise",
				"--options", `{"name":"killed","nodes":1,"nodeKind":"belay"}`)
			null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = null.Close() }()
			holder.ExtraFiles = []*os.File{null}
			if err := holder.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(after)
			if err := holder.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = holder.Wait()
			cleanKilled(t, "killed", dir)
		})
	}
}
