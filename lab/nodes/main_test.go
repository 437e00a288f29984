package nodes

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/testing/apiserver"
)

// TestMain lets the test binary be the lab's program: nodes re-execute it.
func TestMain(m *testing.M) {
	commands := Commands()
	named := func(command *cobra.Command) bool { return len(os.Args) > 1 && command.Name() == os.Args[1] }
	if !slices.ContainsFunc(commands, named) {
		os.Exit(m.Run())
	}
	root := &cobra.Command{Use: "belay-lab", SilenceUsage: true}
	root.AddCommand(commands...)
	if err := root.ExecuteContext(context.Background()); err != nil {
		os.Exit(1)
	}
}

// plane is a real API server with the credentials that a node needs.
type plane struct {
	server apiserver.Server
	client kubernetes.Interface
	dir    string
	ca     authority
}

// startPlane starts etcd and a kube-apiserver that may ask kubelets for logs.
func startPlane(t *testing.T) *plane {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a lab node needs root: run this test as root")
	}
	dir := t.TempDir()
	p := &plane{dir: dir, ca: newAuthority(t, dir)}
	log.SetLogger(logr.Discard()) // envtest's own; without one it complains
	cert, key := p.ca.issue(t, "apiserver-kubelet-client", "system:masters")
	p.server.Flags = map[string]string{
		"kubelet-client-certificate": cert, "kubelet-client-key": key,
		"kubelet-certificate-authority": p.ca.certFile, "kubelet-preferred-address-types": "InternalIP",
	}
	p.server.StartFor(t)
	p.client = kubernetes.NewForConfigOrDie(p.server.Config())
	return p
}

// authority is a CA whose certificates lie in dir.
type authority struct {
	dir, certFile string
	cert          *x509.Certificate
	key           *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, dir string) authority {
	t.Helper()
	a := authority{dir: dir, certFile: filepath.Join(dir, "ca.crt")}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "lab"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert, a.key = template, newKey(t)
	a.write(t, a.certFile, template, a.key)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a authority) write(t *testing.T, file string, template *x509.Certificate, key *ecdsa.PrivateKey) {
	t.Helper()
	raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (a authority) issue(t *testing.T, name string, groups ...string) (certFile, keyFile string) {
	t.Helper()
	key := newKey(t)
	certFile, keyFile = filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key")
	a.write(t, certFile, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name, Organization: groups},
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, key)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return certFile, keyFile
}

// testPatience is how long a test waits for what must happen, also on a machine that is busy with much else.
const testPatience = 3 * time.Minute

// runningNode is a node whose power can be cut.
type runningNode struct {
	*Node
	process    *exec.Cmd
	configFile string
}

func (p *plane) startNode(t *testing.T, kind Kind, name string) *runningNode {
	t.Helper()
	dir := filepath.Join(p.dir, name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	config := Config{
		Lab: fmt.Sprintf("test%d", os.Getpid()), Name: name, Kind: kind, Dir: dir, LabDir: p.dir,
		Kubeconfig: apiserver.Kubeconfig(t, p.server.Node(t, name)), ClientCAFile: p.ca.certFile, KubeletPort: freePort(t),
		Programs: Programs{
			Ledger: ledgerProgram(t, p.dir), Kubelet: filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubelet"),
		},
		NodeStatusUpdateFrequency: metav1.Duration{Duration: time.Second},
	}
	config.ServingCertFile, config.ServingKeyFile = p.ca.issue(t, "serving-"+name)
	node := &runningNode{Node: &Node{Config: config}, configFile: filepath.Join(dir, "config.json")}
	if err := WriteConfig(node.configFile, config); err != nil {
		t.Fatal(err)
	}
	node.powerOn(t)
	t.Cleanup(func() {
		node.powerOff(t)
		if t.Failed() || os.Getenv("BELAY_TEST_LOGS") != "" {
			node.showLogs(t)
		}
		if err := node.RemoveCgroup(); err != nil {
			t.Error(err)
		}
	})
	return node
}

func (n *runningNode) powerOn(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	arguments := InitCommand(self, n.configFile)
	n.process = exec.Command(arguments[0], arguments[1:]...)
	output, err := os.OpenFile(filepath.Join(n.Config.Dir, "init.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = output.Close() }()
	n.process.Stdout, n.process.Stderr = output, output
	if err := n.process.Start(); err != nil {
		t.Fatal(err)
	}
}

// powerOff is the power cut. Every process of the node holds the freezer's cgroup or is
// a child of it: when that is empty, they are gone.
func (n *runningNode) powerOff(t *testing.T) {
	t.Helper()
	if n.process.ProcessState != nil {
		return
	}
	_ = n.process.Process.Kill()
	_ = n.process.Wait()
	n.awaitNoProcess(t)
}

func (n *runningNode) awaitNoProcess(t *testing.T) {
	t.Helper()
	within(testPatience, func() bool { return len(n.processes(t)) == 0 })
	if left := n.processes(t); len(left) > 0 {
		t.Errorf("node %s left processes behind: %v", n.Config.Name, left)
	}
}

// awaitFrozen waits until the kernel has stopped every process of the node: one that is in a system call ends that first.
func (n *runningNode) awaitFrozen(t *testing.T) {
	t.Helper()
	file, want := filepath.Join(cgroupMount, "freezer", n.Config.Cgroup(), "freezer.state"), "FROZEN"
	if isCgroup2() {
		file, want = filepath.Join(cgroupMount, n.Config.Cgroup(), "cgroup.events"), "frozen 1"
	}
	var state []byte
	var err error
	within(testPatience, func() bool {
		state, err = os.ReadFile(file)
		return strings.Contains(string(state), want)
	})
	if !strings.Contains(string(state), want) {
		t.Fatalf("node %s is not frozen: %s, %v", n.Config.Name, state, err)
	}
}

// processes lists, from the outside, what runs in the node's cgroup.
func (n *runningNode) processes(t *testing.T) []string {
	t.Helper()
	var all []string
	root := freezerGroup(n.Config.Cgroup())
	_ = filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.Name() == "cgroup.procs" {
			raw, _ := os.ReadFile(path)
			all = append(all, lines(string(raw))...)
		}
		return nil
	})
	return all
}

func (n *runningNode) showLogs(t *testing.T) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(n.Config.LogDir(), "*.log"))
	for _, file := range append(files, filepath.Join(n.Config.Dir, "init.log")) {
		raw, _ := os.ReadFile(file)
		t.Logf("%s:\n%s", file, raw[max(0, len(raw)-6000):])
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port
}

// ledgerProgram builds the program that pods run.
func ledgerProgram(t *testing.T, dir string) string {
	t.Helper()
	file := filepath.Join(dir, "ledger")
	if _, err := os.Stat(file); err == nil {
		return file
	}
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", file, "../cmd/ledger")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build ledger: %v\n%s", err, out)
	}
	return file
}

// awaitPod waits, by a watch, until a pod is as wanted. It fails the test after testPatience.
func (p *plane) awaitPod(t *testing.T, name, what string, done func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	var last *corev1.Pod
	for ctx.Err() == nil {
		pod, err := p.client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			last = pod
		} else {
			pod = nil
		}
		if done(pod) {
			return pod
		}
		time.Sleep(5 * time.Millisecond)
	}
	if last != nil {
		t.Fatalf("pod %s did not become %s; last status: %+v", name, what, last.Status)
	}
	t.Fatalf("pod %s did not become %s", name, what)
	return nil
}
