package main

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// asDaemon has the test program be belay-node.
const asDaemon = "BELAY_NODE_TEST_AS_DAEMON"

func TestMain(m *testing.M) {
	if os.Getenv(asDaemon) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

const (
	nodeName, namespace, driverName = "edge-1", "default", "nfs.test.belay.dev"
	patience                        = 2 * time.Minute // also on a machine that is busy with much else
)

// driver publishes a volume as an empty directory and needs neither attach nor stage.
type driver struct {
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer
}

func (driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: driverName, SupportedVersions: []string{"1.0.0"}}, nil
}

func (driver) NotifyRegistrationStatus(context.Context, *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	return &registration.RegistrationStatusResponse{}, nil
}

func (driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: nodeName}, nil
}

func (driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, os.MkdirAll(r.TargetPath, 0o750)
}

func (driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(r.TargetPath)
}

// edge is a node without a kubelet, in a cluster with one claim.
type edge struct {
	*testing.T
	client           kubernetes.Interface
	root, kubeconfig string
	health           string
}

func newEdge(t *testing.T) *edge {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("needs a real API server: set KUBEBUILDER_ASSETS to a folder with kube-apiserver and etcd")
	}
	env := &envtest.Environment{}
	env.ControlPlane.GetAPIServer().Configure().Set("authorization-mode", "Node,RBAC").
		Set("enable-admission-plugins", "NodeRestriction").Set("disable-admission-plugins", "ServiceAccount")
	config, err := env.Start()
	must(t, err)
	t.Cleanup(func() { must(t, env.Stop()) })
	user, err := env.AddUser(envtest.User{Name: "system:node:" + nodeName, Groups: []string{"system:nodes"}}, config)
	must(t, err)
	kubeconfig, err := user.KubeConfig()
	must(t, err)
	root, err := os.MkdirTemp("", "bn") //nolint:usetesting // short: sockets lie below it
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(root)) })
	e := &edge{T: t, root: root, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	must(t, os.WriteFile(e.kubeconfig, kubeconfig, 0o600))
	e.client, err = kubernetes.NewForConfig(config)
	must(t, err)
	e.health = freeAddress()
	e.objects()
	e.serve()
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
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	claims := e.client.CoreV1().PersistentVolumeClaims(namespace)
	claim, err := claims.Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: modes, VolumeName: "pv-1", Resources: corev1.VolumeResourceRequirements{Requests: size}},
	}, o)
	must(e, err)
	_, err = e.client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-1"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: "data", UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "share-1"}},
		},
	}, o)
	must(e, err)
	claim.Status.Phase = corev1.ClaimBound
	_, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	must(e, err)
}

// serve is the driver with its registration.
func (e *edge) serve() {
	e.Helper()
	socket := filepath.Join(e.root, "plugins_registry", driverName+"-reg.sock")
	must(e, os.MkdirAll(filepath.Dir(socket), 0o750))
	listener, err := net.Listen("unix", socket)
	must(e, err)
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, driver{})
	csi.RegisterNodeServer(server, driver{})
	go server.Serve(listener)
	e.Cleanup(server.Stop)
}

// start starts the daemon.
func (e *edge) start() *exec.Cmd {
	e.Helper()
	daemon := exec.CommandContext(e.Context(), os.Args[0], "--kubeconfig="+e.kubeconfig, "--node-name="+nodeName,
		"--root-dir="+e.root, "--health-probe-bind-address="+e.health)
	daemon.Env = append(os.Environ(), asDaemon+"=1")
	daemon.Stderr = e.Output()
	must(e, daemon.Start())
	return daemon
}

func (e *edge) until(what string, is func() bool) {
	e.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.Fatalf("never: %s", what)
		}
	}
}

// TestTheDaemonsWholeWay: a pod's volume is published, stays so when the daemon is killed, and
// is given back when the pod has gone meanwhile.
func TestTheDaemonsWholeWay(t *testing.T) {
	e := newEdge(t)
	daemon := e.start()
	e.until("the driver is registered", func() bool {
		object, err := e.client.StorageV1().CSINodes().Get(t.Context(), nodeName, metav1.GetOptions{})
		return err == nil && len(object.Spec.Drivers) == 1
	})
	e.until("it is healthy", func() bool {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+e.health+"/healthz", nil)
		must(t, err)
		reply, err := http.DefaultClient.Do(request)
		if err != nil {
			return false
		}
		defer reply.Body.Close()
		return reply.StatusCode == http.StatusOK
	})
	pod, err := e.client.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.PodSpec{
			NodeName:   nodeName,
			Containers: []corev1.Container{{Name: "web", Image: "none", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	target := filepath.Join(e.root, "pods", string(pod.UID), "volumes/kubernetes.io~csi/pv-1/mount")
	there := func() bool { _, err := os.Stat(target); return err == nil }
	e.until("the volume is published", there)
	must(t, daemon.Process.Kill())
	_ = daemon.Wait()
	must(t, e.client.CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	if !there() {
		t.Error("the volume went with the daemon")
	}
	daemon = e.start()
	e.until("the volume is given back", func() bool { return !there() })
	e.until("nothing is recorded", func() bool {
		left, err := os.ReadDir(filepath.Join(e.root, "belay/volumes"))
		return err == nil && len(left) == 0
	})
	must(t, daemon.Process.Signal(syscall.SIGTERM))
	if err := daemon.Wait(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}

// TestWrongValues: each ends the program before it does anything, and the error says what to give.
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
		"an argument":            {[]string{"--node-name=n", "edge-1"}, `belay-node takes no arguments, but was given ["edge-1"]`, 2},
		"no kubeconfig":          {[]string{"--node-name=n"}, "--kubeconfig is required outside a cluster", 1},
		"an empty kubeconfig":    {[]string{"--node-name=n", "--kubeconfig=" + empty}, "it has no cluster; set --kubeconfig to a file", 1},
		"no such kubeconfig":     {[]string{"--node-name=n", "--kubeconfig=" + empty + "2"}, "no such file", 1},
		"no endpoint":            {[]string{"--node-name=n", "--kubeconfig=" + aKubeconfig(t), "--container-runtime-endpoint=crio"}, `--container-runtime-endpoint: container runtime endpoint "crio" is not of the form`, 2},
		"an unknown flag":        {[]string{"--frob"}, "unknown flag: --frob", 2},
		"a flag of a wrong type": {[]string{"--volume-stats-agg-period=often"}, "invalid argument", 2},
	} {
		t.Run(name, func(t *testing.T) {
			daemon := exec.CommandContext(t.Context(), os.Args[0], c.args...)
			daemon.Env = append(os.Environ(), asDaemon+"=1", "KUBERNETES_SERVICE_HOST=")
			out, err := daemon.CombinedOutput()
			if daemon.ProcessState.ExitCode() != c.status || !strings.Contains(string(out), c.says) || strings.Contains(string(out), "KUBERNETES_MASTER") {
				t.Errorf("it says %q (%v), want %q and exit status %d", out, err, c.says, c.status)
			}
		})
	}
}

// aKubeconfig is one of an API server that is not there.
func aKubeconfig(t *testing.T) string {
	t.Helper()
	config := api.NewConfig()
	config.Clusters["c"], config.Contexts["c"] = &api.Cluster{Server: "https://" + freeAddress()}, &api.Context{Cluster: "c"}
	config.CurrentContext = "c"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*config, path))
	return path
}

// TestTheLogHasABeginningAndAnEnd, and between them that the runtime does not answer.
func TestTheLogHasABeginningAndAnEnd(t *testing.T) {
	endpoint := "unix://" + filepath.Join(t.TempDir(), "none.sock")
	daemon := exec.CommandContext(t.Context(), os.Args[0], "--kubeconfig="+aKubeconfig(t), "--node-name="+nodeName,
		"--root-dir="+t.TempDir(), "--container-runtime-endpoint="+endpoint)
	daemon.Env = append(os.Environ(), asDaemon+"=1")
	said, err := daemon.StderrPipe()
	must(t, err)
	must(t, daemon.Start())
	var lines []string
	log := bufio.NewScanner(said)
	for silent, started := false, false; (!silent || !started) && log.Scan(); lines = append(lines, log.Text()) {
		silent = silent || strings.Contains(log.Text(), "Container runtime does not answer")
		started = started || strings.Contains(log.Text(), "Node agent started")
	}
	must(t, daemon.Process.Signal(syscall.SIGTERM))
	for log.Scan() {
		lines = append(lines, log.Text())
	}
	if err := daemon.Wait(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	all := strings.Join(lines, "\n")
	for _, want := range []string{
		`"Starting belay-node" version="unknown" node="edge-1" containerRuntime="` + endpoint, `"Node agent started" node="edge-1" root="`,
		`stay mounted" err=`, `"Node agent stopped" node="edge-1"`,
	} {
		if strings.Count(all, want) != 1 {
			t.Errorf("the log does not have once %q:\n%s", want, all)
		}
	}
}
