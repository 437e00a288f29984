// Package apiserver runs one kube-apiserver with its etcd for all tests of a process, or for one test, and reads what was asked of it.
package apiserver

import (
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"belay.dev/belay/internal/testing/process"
	"belay.dev/belay/internal/testing/wait"
)

// assets is the environment variable that names the folder of kube-apiserver and etcd.
const assets = "KUBEBUILDER_ASSETS"

// patience is how long etcd and kube-apiserver may take to start or stop: the default, 20 s, is not enough on a busy machine.
const patience = 3 * time.Minute

// Server is the API server of a test process. It has the node authorizer and the NodeRestriction admission plugin, so that
// a node has the rights that it has in a real cluster.
type Server struct {
	// Audit are rules of an audit policy, in JSON. They select the requests that Requests returns.
	Audit string
	// Flags are further flags of kube-apiserver, without the dashes.
	Flags map[string]string
	// Prepare, if set, runs once after the start.
	Prepare func(tb testing.TB)
	// Check, if set, runs after the tests if all of them ran and passed.
	Check func() error
	// Client has all rights and no rate limit. It is nil before Start.
	Client client.WithWatch

	once   sync.Once
	users  sync.Mutex
	plane  envtest.ControlPlane
	config *rest.Config
	ready  bool
	dir    string        // of all files, empty before Start
	guard  *os.File      // see startGuard
	done   chan struct{} // closed after the last test
}

// Available reports whether there are the programs to run.
func Available() bool { return os.Getenv(assets) != "" }

// Main runs the tests of a package, stops the server if a test started it, and returns the exit status.
func (s *Server) Main(m *testing.M) int {
	s.done = make(chan struct{})
	status := m.Run()
	some := flag.Lookup("test.run").Value.String() + flag.Lookup("test.skip").Value.String()
	if status == 0 && s.ready && some == "" && s.Check != nil {
		if err := s.Check(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	if err := s.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the API server:", err)
	}
	return status
}

// StartFor starts the server for one test, and stops it after the test. It is for a server that no other test may use, because
// the test leaves Nodes and pods behind.
func (s *Server) StartFor(tb testing.TB) {
	tb.Helper()
	s.done = make(chan struct{})
	tb.Cleanup(func() {
		if err := s.stop(); err != nil {
			tb.Errorf("stop the API server: %v", err)
		}
	})
	s.Start(tb)
}

func (s *Server) stop() error {
	close(s.done) // the API server waits for those that watch
	if s.dir == "" {
		return nil
	}
	err := s.plane.Stop()
	_ = os.RemoveAll(s.dir)
	_ = s.guard.Close()
	return err
}

// Renew stops the server, if it runs: the next Start starts another one, without an object.
func (s *Server) Renew() error {
	err := s.stop()
	s.once, s.plane, s.ready, s.dir, s.guard, s.Client = sync.Once{}, envtest.ControlPlane{}, false, "", nil, nil
	s.done = make(chan struct{})
	return err
}

// Done is closed after the last test, or after that of StartFor, before the server stops.
func (s *Server) Done() <-chan struct{} { return s.done }

// Start starts the server for the first test that needs it. Where there are no programs to run, the test is skipped.
func (s *Server) Start(tb testing.TB) {
	tb.Helper()
	if !Available() {
		tb.Skipf("needs a real API server: set %s to a folder with kube-apiserver and etcd", assets)
	}
	s.once.Do(func() {
		if err := s.start(); err != nil {
			tb.Fatalf("start the API server: %v", err)
		}
		wait.Until(tb, "the API server has made its namespaces", func() bool { // kube-node-lease is the last
			return s.Client.Get(tb.Context(), client.ObjectKey{Name: corev1.NamespaceNodeLease}, &corev1.Namespace{}) == nil
		})
		if s.Prepare != nil {
			s.Prepare(tb)
		}
		s.ready = true
	})
	if !s.ready {
		tb.Fatal("the API server was not prepared: see the first test that failed")
	}
}

func (s *Server) start() error {
	var err error
	if s.dir, err = os.MkdirTemp("", "belay-apiserver-"); err != nil {
		return err
	}
	if err := s.startGuard(); err != nil {
		return err
	}
	// The addresses are of this process alone. A port that is free as envtest chooses it may not be once the program is up.
	s.plane.Etcd = &envtest.Etcd{
		Path: filepath.Join(s.dir, "etcd"), DataDir: filepath.Join(s.dir, "etcd-data"), StartTimeout: patience, StopTimeout: patience,
		URL: &url.URL{Scheme: "http", Host: process.FreeAddress()},
	}
	s.plane.Etcd.Configure().Set("listen-peer-urls", "http://"+process.FreeAddress())
	server := s.plane.GetAPIServer()
	server.Path, server.StartTimeout, server.StopTimeout = filepath.Join(s.dir, "kube-apiserver"), patience, patience
	server.CertDir = filepath.Join(s.dir, "certificates")
	if server.SecureServing.Address, server.SecureServing.Port, err = net.SplitHostPort(process.FreeAddress()); err != nil {
		return err
	}
	if err := os.Mkdir(server.CertDir, 0o700); err != nil {
		return err
	}
	args := server.Configure().Set("authorization-mode", "Node", "RBAC").Set("enable-admission-plugins", "NodeRestriction")
	for name, value := range s.Flags {
		args.Set(name, value)
	}
	if s.Audit != "" {
		policy := `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [` + s.Audit + `, {"level": "None"}]}`
		file := filepath.Join(s.dir, "policy.json")
		if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
			return err
		}
		args.Set("audit-policy-file", file).Set("audit-log-path", s.auditLog()).Set("audit-log-mode", "blocking")
	}
	if err := s.plane.Start(); err != nil {
		return err
	}
	admin, err := s.plane.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return err
	}
	s.config = admin.Config()
	s.config.QPS, s.config.Burst = -1, 0
	s.Client, err = client.NewWithWatch(s.config, client.Options{Scheme: clientscheme.Scheme})
	return err
}

// startGuard starts a shell that ends etcd and the API server, and removes their files, when this process was killed: then
// the kernel closes the pipe that the shell reads. "go test" kills a process some time after its timeout. They collect garbage less
// often than by default, as a lab's do: their objects are few, and there is memory.
func (s *Server) startGuard() error {
	const run = "#!/bin/sh\n" + `echo $$ > "$0.pid"; export GOGC=400; exec "$` + assets + `/${0##*/}" "$@"` + "\n"
	for _, program := range []string{"etcd", "kube-apiserver"} {
		if err := os.WriteFile(filepath.Join(s.dir, program), []byte(run), 0o700); err != nil {
			return err
		}
	}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = read.Close() }()
	s.guard = write
	shell := exec.Command("sh", "-c", `read -r line; [ -d "$0" ] || exit; kill -9 $(cat "$0"/*.pid); rm -rf "$0"`, s.dir) //nolint:noctx // outlives this process
	shell.Stdin, shell.SysProcAttr = read, &syscall.SysProcAttr{Setpgid: true}                                            // out of reach of a Ctrl-C
	if err := shell.Start(); err != nil {
		return err
	}
	go func() { _ = shell.Wait() }()
	return nil
}

// Config is a copy of the configuration of a client with all rights and no rate limit.
func (s *Server) Config() *rest.Config { return rest.CopyConfig(s.config) }

// User is the configuration of a client with the name and the groups.
func (s *Server) User(tb testing.TB, name string, groups ...string) *rest.Config {
	tb.Helper()
	s.users.Lock() // the certificates are numbered
	defer s.users.Unlock()
	user, err := s.plane.AddUser(envtest.User{Name: name, Groups: groups}, s.config)
	if err != nil {
		tb.Fatal(err)
	}
	return user.Config()
}

// Node is the configuration of a client with the credential of a node.
func (s *Server) Node(tb testing.TB, name string) *rest.Config {
	tb.Helper()
	return s.User(tb, "system:node:"+name, "system:nodes")
}

// Kubeconfig writes a configuration to a file and returns its path.
func Kubeconfig(tb testing.TB, config *rest.Config) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"test": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"test": {
			ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken,
		}},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "test"}},
		CurrentContext: "test",
	}, path)
	if err != nil {
		tb.Fatal(err)
	}
	return path
}
