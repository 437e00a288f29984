package main

import (
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/process"
	"belay.dev/belay/internal/testing/wait"
)

// asDaemon has the test program be belay-node.
const asDaemon = "BELAY_NODE_TEST_AS_DAEMON"

func TestMain(m *testing.M) {
	if os.Getenv(asDaemon) != "" {
		main()
		return
	}
	os.Exit(server.Main(m))
}

var server apiserver.Server

const nodeName, namespace, driverName = "edge-1", "default", "nfs.test.belay.dev"

// edge is a node without a kubelet, in a cluster with one claim.
type edge struct {
	*testing.T
	client           kubernetes.Interface
	root, kubeconfig string
	health           string
}

func newEdge(t *testing.T) *edge {
	t.Helper()
	server.Start(t)
	e := &edge{T: t, root: csidriver.SocketDir(t), kubeconfig: apiserver.Kubeconfig(t, server.Node(t, nodeName)), health: process.FreeAddress()}
	e.client = kubernetes.NewForConfigOrDie(server.Config())
	e.objects()
	driver := csidriver.New(t, driverName)
	driver.Address = filepath.Join(e.root, "plugins_registry", driverName+"-reg.sock")
	driver.Start()
	return e
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func (e *edge) objects() {
	e.Helper()
	ctx, o := e.Context(), metav1.CreateOptions{}
	_, err := e.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, o)
	must(e, err)
	_, err = e.client.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)},
	}, o)
	must(e, err)
	claims := e.client.CoreV1().PersistentVolumeClaims(namespace)
	pv := fixture.PersistentVolume("pv-1", driverName, "share-1", corev1.ReadWriteMany)
	claim, err := claims.Create(ctx, fixture.Claim(namespace, "data", pv), o)
	must(e, err)
	_, err = e.client.CoreV1().PersistentVolumes().Create(ctx, fixture.Bind(pv, claim), o)
	must(e, err)
	claim.Status.Phase = corev1.ClaimBound
	_, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	must(e, err)
}

// start starts the daemon.
func (e *edge) start() *process.Process {
	e.Helper()
	return process.Start(e.T, process.TestBinary(e.T, asDaemon, "1", "--kubeconfig="+e.kubeconfig, "--node-name="+nodeName,
		"--root-dir="+e.root, "--health-probe-bind-address="+e.health))
}

// TestDaemonKeepsVolumesThroughRestart: a pod's volume is published, stays published when the daemon is killed, and is
// unpublished after the restart because the pod was deleted in the meantime.
func TestDaemonKeepsVolumesThroughRestart(t *testing.T) {
	e := newEdge(t)
	daemon := e.start()
	wait.Until(t, "the driver is registered", func() bool {
		object, err := e.client.StorageV1().CSINodes().Get(t.Context(), nodeName, metav1.GetOptions{})
		return err == nil && len(object.Spec.Drivers) == 1
	})
	wait.Until(t, "it is healthy", func() bool {
		status, _ := process.Get(t, e.health, "/healthz")
		return status == http.StatusOK
	})
	pod, err := e.client.CoreV1().Pods(namespace).Create(t.Context(), fixture.Pod(namespace, "web", nodeName, "data"), metav1.CreateOptions{})
	must(t, err)
	target := filepath.Join(e.root, "pods", string(pod.UID), "volumes/kubernetes.io~csi/pv-1/mount")
	there := func() bool { _, err := os.Stat(target); return err == nil }
	wait.Until(t, "the volume is published", there)
	daemon.Kill()
	must(t, e.client.CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	if !there() {
		t.Error("the volume went with the daemon")
	}
	daemon = e.start()
	wait.Until(t, "the volume is unpublished", func() bool { return !there() })
	wait.Until(t, "nothing is recorded", func() bool {
		left, err := os.ReadDir(filepath.Join(e.root, "belay/volumes"))
		return err == nil && len(left) == 0
	})
	if status := daemon.Stop(syscall.SIGTERM); status != 0 {
		t.Errorf("SIGTERM: exit status %d", status)
	}
}

// TestWrongValues: each ends the program before it does anything, and the error names what is wrong.
func TestWrongValues(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(empty, nil, 0o600))
	for name, c := range map[string]struct {
		args   []string
		says   string
		status int
	}{
		"no node name":           {nil, "--node-name is required", 2},
		"not a node's name":      {[]string{"--node-name=Edge_1"}, `--node-name "Edge_1" cannot be the name of a Node: a lowercase RFC 1123 subdomain`, 2},
		"no root":                {[]string{"--node-name=n", "--root-dir="}, `--root-dir "" must be an absolute path other than /, for example /var/lib/kubelet`, 2},
		"a relative root":        {[]string{"--node-name=n", "--root-dir=kubelet"}, `--root-dir "kubelet" must be an absolute path`, 2},
		"all there is":           {[]string{"--node-name=n", "--root-dir=//"}, `--root-dir "//" must be an absolute path other than /`, 2},
		"an argument":            {[]string{"--node-name=n", "edge-1"}, `belay-node accepts no arguments, received "edge-1"`, 2},
		"no kubeconfig":          {[]string{"--node-name=n"}, "--kubeconfig is required outside a cluster", 1},
		"an empty kubeconfig":    {[]string{"--node-name=n", "--kubeconfig=" + empty}, "it has no cluster; set --kubeconfig to a file", 1},
		"no such kubeconfig":     {[]string{"--node-name=n", "--kubeconfig=" + empty + "2"}, "no such file", 1},
		"no endpoint":            {[]string{"--node-name=n", "--container-runtime-endpoint=crio"}, `--container-runtime-endpoint is "crio", but must be of the form unix:///path`, 2},
		"no log level":           {[]string{"--node-name=n", "-v", "-1"}, "--v is -1, but must be a log level: 0 or more", 2},
		"no number":              {[]string{"--node-name=n", "-v", "loud"}, `--v is "loud", but must be a whole number; see belay-node --help`, 2},
		"an unknown flag":        {[]string{"--frob"}, "unknown flag: --frob", 2},
		"a flag of a wrong type": {[]string{"--volume-stats-agg-period=often"}, `--volume-stats-agg-period is "often", but must be a duration such as 90s or 1m30s`, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			daemon := process.Start(t, process.TestBinary(t, asDaemon, "1", c.args...))
			if daemon.WantExit(c.status, c.says); daemon.Logged("KUBERNETES_MASTER") > 0 {
				t.Error("it names a variable that it does not read")
			}
		})
	}
}

// aKubeconfig is one of an API server that is not there.
func aKubeconfig(t *testing.T) string {
	t.Helper()
	return apiserver.Kubeconfig(t, &rest.Config{Host: "https://" + process.FreeAddress()})
}

// TestLogOfStartAndStop, and between them that the runtime does not respond.
func TestLogOfStartAndStop(t *testing.T) {
	endpoint := "unix://" + filepath.Join(t.TempDir(), "none.sock")
	daemon := process.Start(t, process.TestBinary(t, asDaemon, "1", "--kubeconfig="+aKubeconfig(t), "--node-name="+nodeName,
		"--root-dir="+t.TempDir(), "--container-runtime-endpoint="+endpoint))
	daemon.WaitLog("Container runtime does not respond")
	daemon.WaitLog("Node agent started")
	if status := daemon.Stop(syscall.SIGTERM); status != 0 {
		t.Errorf("SIGTERM: exit status %d", status)
	}
	for _, want := range []string{
		`"Starting belay-node" version="unknown" node="edge-1" containerRuntime="` + endpoint, `"Node agent started" node="edge-1" root="`,
		`terminated pods mounted" err=`, `"Node agent stopped" node="edge-1"`,
	} {
		if daemon.Logged(want) != 1 {
			t.Errorf("the log does not have once %q:\n%s", want, daemon.Output())
		}
	}
}
