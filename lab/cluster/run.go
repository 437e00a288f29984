package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/jsonfile"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/nodes"
	"belay.dev/belay/lab/proc"
	"belay.dev/belay/lab/upstream"
)

// Cluster is a running lab whose processes this process supervises. They live until Down; if this
// process dies without it, Clean finds them by their records. Its methods may be called from any
// goroutine.
type Cluster struct {
	options Options
	paths   paths
	chooser portChooser
	ports   ports
	specs   specs
	group   proc.Group
	lock    *os.File
	fabric  *labdisk.Client
	control *controlServer

	mu        sync.Mutex
	processes map[string]*proc.Process
	nodes     map[string]*nodes.Node
	started   []string // names in the order of their start
	plane     string   // of whose controller it is now
	down      bool
	frozen    map[string]bool // by Freeze
	links     map[string]*links
	unfollow  context.CancelFunc // ends follow
}

// Up starts a lab and returns when its nodes are Ready and their drivers are registered. If it
// fails, or ctx ends first, nothing is left behind. A lab of the same name that was killed is
// cleaned first; one that still runs is an error.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	p, err := labPaths(o.Name)
	if err != nil {
		return nil, err
	}
	if err := preflight(p, o); err != nil {
		return nil, err
	}
	lock, err := takeLock(p)
	if err != nil {
		return nil, err
	}
	o.Progress = alsoLog(p.log("lab"), o.Progress)
	c := &Cluster{options: o, paths: p, lock: lock, plane: o.Plane, processes: map[string]*proc.Process{}, nodes: map[string]*nodes.Node{}}
	if err := c.bringUp(ctx); err != nil {
		// The caller's context may be what ended; clearing up needs its own.
		clear, cancel := context.WithTimeout(context.WithoutCancel(ctx), downWithin)
		defer cancel()
		return nil, errors.Join(err, c.Down(clear))
	}
	return c, nil
}

// bringUp finds the programs, building what is not there, and starts the lab.
func (c *Cluster) bringUp(ctx context.Context) error {
	own, err := findSiblings(neededSiblings(c.options))
	if err != nil {
		return err
	}
	programs, err := upstream.Ensure(ctx, upstream.Request{
		Cache: c.paths.cache, Kubelet: c.options.NodeKind == NodeKindKubelet, Progress: c.options.Progress,
	})
	if err != nil {
		return err
	}
	c.group = proc.Group{RunDir: c.paths.run(), Shim: own.path(proc.Program), Env: componentEnvironment(os.Environ())}
	return c.start(ctx, programs, own)
}

// alsoLog appends the progress to a file beside the components' logs: after the start there may be no
// reader. Before the lab's folder is there, there is nothing to keep.
func alsoLog(path string, progress func(string, ...any)) func(string, ...any) {
	return func(format string, args ...any) {
		progress(format, args...)
		file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return
		}
		defer func() { _ = file.Close() }()
		_, _ = fmt.Fprintf(file, "%s %s\n", time.Now().Format(time.RFC3339Nano), fmt.Sprintf(format, args...))
	}
}

func neededSiblings(o Options) []string {
	if o.Plane == PlaneUpstream && o.Recovery == "" {
		return []string{"belay-lab", proc.Program, "ledger"}
	}
	return []string{"belay-lab", proc.Program, "ledger", "belay-controller", "belay-attacher"}
}

// start brings everything up, what can go side by side at the same time.
func (c *Cluster) start(ctx context.Context, programs upstream.Programs, own siblings) error {
	began := time.Now()
	if err := c.cleanPrevious(ctx); err != nil {
		return err
	}
	if err := c.prepare(programs, own); err != nil {
		return err
	}
	if err := c.startStorageAndServer(ctx); err != nil {
		return err
	}
	c.options.Progress("the API server is ready (%s)", since(began))
	if err := c.startRest(ctx); err != nil {
		return err
	}
	if c.options.Bare {
		return nil
	}
	c.options.Progress("%s ready (%s)", counted(c.options.Nodes, "node is", "nodes are"), since(began))
	return nil
}

// cleanPrevious removes what a killed lab of this name left.
func (c *Cluster) cleanPrevious(ctx context.Context) error {
	report, err := cleanLab(ctx, c.paths)
	if err != nil {
		return fmt.Errorf("cleaning up after the last lab of this name: %w", err)
	}
	if len(report) > 0 {
		c.options.Progress("removed what a killed lab had left: %s", strings.Join(report, ", "))
	}
	return nil
}

// prepare makes folders, certificates and the record of the lab.
func (c *Cluster) prepare(programs upstream.Programs, own siblings) error {
	for _, dir := range []string{c.paths.run(), c.paths.logs(), c.paths.csiDir(), c.paths.nodes()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("making the lab's folders: %w", err)
		}
	}
	for _, node := range c.options.nodeNames() {
		if err := os.MkdirAll(c.paths.node(node), 0o755); err != nil {
			return fmt.Errorf("making the folder of %s: %w", node, err)
		}
	}
	holder, err := proc.Self("holder", os.Args[0])
	if err != nil {
		return err
	}
	if c.ports, err = c.chooser.choosePorts(c.options); err != nil {
		return err
	}
	s := state{Options: c.options, Ports: c.ports, Holder: holder, Upstream: programs.Dir}
	if err := jsonfile.Write(c.paths.state(), s); err != nil {
		return fmt.Errorf("writing the lab's state: %w", err)
	}
	if err := writePKI(c.paths, c.ports, c.options.nodeNames()); err != nil {
		return err
	}
	if err := writeAuditPolicy(c.paths, c.options); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	c.specs = specs{options: c.options, paths: c.paths, ports: c.ports, upstream: programs, own: own}
	c.control, err = serveControl(c)
	return err
}

// startStorageAndServer returns when fabric and API server answer.
func (c *Cluster) startStorageAndServer(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	if !c.options.Bare {
		if err := c.launch(c.specs.fabric()); err != nil {
			return err
		}
		group.Go(func() error { return c.awaitFabric(groupCtx) })
	}
	if err := c.launch(c.specs.etcd()); err != nil {
		return errors.Join(err, group.Wait())
	}
	group.Go(func() error {
		if err := c.await(groupCtx, "etcd", startWithin, func(ctx context.Context) error { return dial(ctx, c.ports.Etcd) }); err != nil {
			return err
		}
		if err := c.launch(c.specs.apiServer()); err != nil {
			return err
		}
		return c.awaitServer(groupCtx)
	})
	return group.Wait()
}

// awaitFabric connects to the storage once it answers.
func (c *Cluster) awaitFabric(ctx context.Context) error {
	return c.await(ctx, "the fabric", startWithin, func(context.Context) error {
		client, err := labdisk.Dial(c.paths.fabricSocket())
		if err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.fabric = client
		return nil
	})
}

// startRest starts what needs the API server and returns when the lab can run pods.
func (c *Cluster) startRest(ctx context.Context) error {
	objects, err := documents(c.options)
	if err != nil {
		return err
	}
	if c.options.Bare {
		return applyAll(ctx, c.RESTConfig(), objects)
	}
	for _, spec := range []proc.Spec{c.specs.controllerManager(c.options.Plane), c.specs.scheduler()} {
		if err := c.launch(spec); err != nil {
			return err
		}
	}
	if err := applyAll(ctx, c.RESTConfig(), objects); err != nil {
		return err
	}
	if err := c.startBMCs(); err != nil {
		return err
	}
	if err := c.applyFenceSources(ctx); err != nil {
		return err
	}
	for _, spec := range slices.Concat(c.specs.provisioners(), c.specs.attachPlane(), c.specs.recoveryParts()) {
		if err := c.launch(spec); err != nil {
			return err
		}
	}
	for _, name := range c.options.nodeNames() {
		if err := c.startNode(name); err != nil {
			return err
		}
	}
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, name := range c.options.nodeNames() {
		group.Go(func() error { return c.awaitNode(groupCtx, client, name) })
	}
	group.Go(func() error { return c.awaitServiceAccount(groupCtx, client) })
	return group.Wait()
}

// launch starts a component and remembers it.
func (c *Cluster) launch(spec proc.Spec) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down {
		return errDown
	}
	process, err := c.group.Start(spec)
	if err != nil {
		return err
	}
	if _, again := c.processes[spec.Name]; !again {
		c.started = append(c.started, spec.Name)
	}
	c.processes[spec.Name] = process
	return nil
}

var errDown = errors.New("the lab is being shut down")

// Kubeconfig is the path of the admin's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.paths.kubeconfig(identityAdmin) }

// Dir is the lab's folder, labs/<name> in the cache folder.
func (c *Cluster) Dir() string { return c.paths.dir() }

// LogDir is where the logs of the last run lie after Down.
func (c *Cluster) LogDir() string { return c.paths.lastLogs() }

// Kubectl is the path of the kubectl that was built with the control plane.
func (c *Cluster) Kubectl() string { return c.specs.upstream.Path("kubectl") }

// Etcd is a client of the lab's etcd with the API server's rights, for the caller to close.
func (c *Cluster) Etcd() (*clientv3.Client, error) {
	config, err := transport.TLSConfigFor(&transport.Config{TLS: transport.TLSConfig{
		CAFile: c.paths.cert("etcd-ca.crt"), CertFile: c.paths.cert("apiserver-etcd-client.crt"), KeyFile: c.paths.cert("apiserver-etcd-client.key"),
	}})
	if err != nil {
		return nil, fmt.Errorf("reading the certificates of etcd's clients: %w", err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + address(c.ports.Etcd)}, TLS: config})
	if err != nil {
		return nil, fmt.Errorf("making a client of etcd: %w", err)
	}
	return client, nil
}

// Options are those of Up, with what was left out filled in.
func (c *Cluster) Options() Options { return c.options }

// RESTConfig is the admin's client configuration, without client-side throttling. A new copy.
func (c *Cluster) RESTConfig() *rest.Config {
	config, err := clientConfig(c.Kubeconfig())
	if err != nil {
		// Written by this very process a moment ago; a server that cannot be reached says more
		// to a caller than a nil would.
		return &rest.Config{Host: c.ports.server(), QPS: -1}
	}
	return config
}

// clientConfig is what a kubeconfig file says, without client-side throttling.
func clientConfig(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig %s: %w", kubeconfig, err)
	}
	config.QPS = -1
	return kube.WithProtobuf(config), nil
}

// Fabric is a client of the storage.
func (c *Cluster) Fabric() *labdisk.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fabric
}

// Node is a node's handle, nil if there is none of that name.
func (c *Cluster) Node(name string) *nodes.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[name]
}

// Components are the names of all components, in the order of their start.
func (c *Cluster) Components() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.started)
}

func (c *Cluster) process(name string) (*proc.Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	process, ok := c.processes[name]
	if !ok {
		return nil, fmt.Errorf("the lab has no component %q: it has %s", name, strings.Join(c.started, ", "))
	}
	return process, nil
}

// Kill kills a component with SIGKILL; the supervisor starts it again. Names: etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler, csi-provisioner, attach-controller, attacher, fabric,
// node-1, node-1/agent, node-1/driver and so on. With upstream's plane attach-controller is
// kube-controller-manager. It returns when the process is gone.
func (c *Cluster) Kill(name string) error {
	if node, child, inside := strings.Cut(name, "/"); inside {
		if n := c.Node(node); n != nil {
			return n.Kill(child)
		}
		return fmt.Errorf("the lab has no node %q", node)
	}
	process, err := c.process(c.alias(name))
	if err != nil {
		return err
	}
	return process.Kill()
}

// alias is the component that has the attach/detach controller, for attach-controller; other names are their own.
func (c *Cluster) alias(component string) string {
	if component == componentController && c.Plane() == PlaneUpstream {
		return componentKCM
	}
	return component
}

// takeLock makes this process the one that holds the lab. The kernel frees the lock when the
// process ends, however it ends.
func takeLock(p paths) (*os.File, error) {
	file, err := openLock(p)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lab %s: %w%s", p.name, ErrRunning, heldBy(p))
		}
		return nil, fmt.Errorf("locking lab %s: %w", p.name, err)
	}
	return file, nil
}

// ErrRunning says that a lab runs already.
var ErrRunning = errors.New("it runs already")

func heldBy(p paths) string {
	s, err := readState(p.state())
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (held by process %d); see `belay-lab status`, or end it with `belay-lab down --name %s`", s.Holder.PID, p.name)
}

func openLock(p paths) (*os.File, error) {
	if err := os.MkdirAll(p.cache+"/labs", 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of labs: %w", err)
	}
	file, err := os.OpenFile(p.lock(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock of lab %s: %w", p.name, err)
	}
	return file, nil
}

func since(began time.Time) string {
	return fmt.Sprintf("%.1f s", time.Since(began).Seconds())
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
