package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"belay.dev/belay/lab/proc"
)

// Users of the components at the API server.
const (
	UserController = "system:serviceaccount:" + belayNamespace + ":belay-controller"
	UserAttacher   = "system:serviceaccount:" + belayNamespace + ":belay-attacher"
	// UserUpstreamController writes for kube-controller-manager's attach/detach controller; what it watches
	// all controllers of that process share, as UserUpstreamManager.
	UserUpstreamController = "system:serviceaccount:kube-system:attachdetach-controller"
	UserUpstreamManager    = "system:kube-controller-manager"
)

// Unthrottled are the flags with which nothing throttles the client of a program of Kubernetes.
func Unthrottled() []string { return []string{"--kube-api-qps=10000", "--kube-api-burst=10000"} }

// StartController starts the attach/detach controller of a plane, and no other controller, in a
// bare lab, and returns the component's name. Both are run as shipped, but that nothing throttles upstream's client, and with
// the lab's ControllerArgs for belay's, and the given environment variables (NAME=value), besides. One that exits is not
// started again. The caller makes sure that no two run at the same time.
func (c *Cluster) StartController(plane string, environment ...string) (component string, err error) {
	s := c.specs
	var spec proc.Spec
	switch plane {
	case PlaneBelay:
		spec = s.shippedController(componentController, s.paths.kubeconfig(identityController), s.options.ControllerArgs...)
	case PlaneUpstream:
		spec = s.manager("persistentvolume-attach-detach-controller", Unthrottled()...)
	default:
		return "", fmt.Errorf("the plane is %s or %s, not %q", PlaneBelay, PlaneUpstream, plane)
	}
	spec.Env = append(spec.Env, environment...)
	return spec.Name, c.launchOnce(spec)
}

// StartManager starts kube-controller-manager with some of its controllers, which a comma separates, in a bare lab, and returns the
// component's name. Nothing throttles its client, and it leads without a lease. One that exits is not started again.
func (c *Cluster) StartManager(controllers string) (component string, err error) {
	spec := c.specs.manager(controllers, append(Unthrottled(), "--leader-elect=false")...)
	return spec.Name, c.launchOnce(spec)
}

// StartScheduler starts kube-scheduler in a bare lab and returns the component's name. It is run as shipped,
// but that nothing throttles its client, and that a pod waits no longer than bindTimeout for its volumes to be bound; 0 for upstream's
// ten minutes. The caller's nodes have the taint not-ready, which no controller takes off.
func (c *Cluster) StartScheduler(bindTimeout time.Duration) (component string, err error) {
	spec := c.specs.scheduler()
	if bindTimeout == 0 {
		spec.Args = append(spec.Args, Unthrottled()...)
		return spec.Name, c.launchOnce(spec)
	}
	file := filepath.Join(c.paths.dir(), "scheduler.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, schedulerConfig, c.specs.kubeconfig(componentScheduler, identityScheduler), bindTimeout.Seconds()), 0o600); err != nil {
		return "", fmt.Errorf("writing the configuration of kube-scheduler: %w", err)
	}
	spec.Args = append(spec.Args, "--config="+file)
	return spec.Name, c.launchOnce(spec)
}

// schedulerConfig is what StartScheduler sets that has no flag. With a file, the flags of the client have no effect.
const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q, qps: 10000, burst: 10000}
profiles:
  - schedulerName: default-scheduler
    pluginConfig:
      - name: VolumeBinding
        args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: VolumeBindingArgs, bindTimeoutSeconds: %.0f}
`

// ControllerKubeconfig is the path of the credential of belay-controller, with its rights and its share of the API server.
func (c *Cluster) ControllerKubeconfig() string { return c.paths.kubeconfig(identityController) }

// StartTool starts belay-lab itself with a command of the caller's.
func (c *Cluster) StartTool(component string, args ...string) error {
	return c.launchOnce(c.specs.component(component, c.specs.own.path("belay-lab"), args...))
}

// launchOnce starts a component that is not started again when it exits.
func (c *Cluster) launchOnce(spec proc.Spec) error {
	spec.Restart = false
	return c.launch(spec)
}

// Stop ends a component for good, with a warning and some time to end in order. It may be
// started again.
func (c *Cluster) Stop(ctx context.Context, component string) error {
	process, err := c.process(component)
	if err != nil {
		return err
	}
	return process.Stop(ctx)
}

// RunAttacher starts an attacher of the lab again after Stop; when it is killed, the supervisor starts it again.
func (c *Cluster) RunAttacher(component string) error {
	for _, spec := range c.specs.attachPlane() {
		if spec.Name == component {
			return c.launch(spec)
		}
	}
	return fmt.Errorf("the lab has no attacher %q", component)
}

// StopAttachers ends the lab's own attachers for those that are installed in the cluster. RunAttachers starts them again.
func (c *Cluster) StopAttachers(ctx context.Context) error {
	var errs []error
	for _, name := range c.attachers() {
		errs = append(errs, c.Stop(ctx, name))
	}
	return errors.Join(errs...)
}

// RunAttachers starts the lab's own attachers again after StopAttachers.
func (c *Cluster) RunAttachers() error {
	var errs []error
	for _, name := range c.attachers() {
		errs = append(errs, c.RunAttacher(name))
	}
	return errors.Join(errs...)
}

// CSISocket is where the controller of a driver listens.
func (c *Cluster) CSISocket(driver string) string { return c.paths.csiSocket(driver) }

func (c *Cluster) attachers() []string {
	var names []string
	for i := range c.options.attachDrivers() {
		names = append(names, c.options.replicas(sidecarName(componentAttacher, c.options.attachDrivers(), i))...)
	}
	return names
}

// RunStorage starts the storage again after Stop("fabric").
func (c *Cluster) RunStorage() error { return c.launch(c.specs.fabric()) }

// Component returns the state of a component; PID 0 if it does not run.
func (c *Cluster) Component(name string) (proc.State, error) {
	process, err := c.process(name)
	if err != nil {
		return proc.State{}, err
	}
	return process.State(), nil
}

// LogOf is where a component's log lies while the lab runs.
func (c *Cluster) LogOf(component string) string { return c.paths.log(component) }

// StartNodeAgent starts belay-node as shipped in a bare lab. It brings no node of the lab: it runs in the
// machine's own namespaces, for a driver that mounts nothing. One that exits is not started again.
func (c *Cluster) StartNodeAgent(component string, args ...string) error {
	return c.launchOnce(c.specs.component(component, c.specs.own.path("belay-node"), args...))
}

// NodeKubeconfig writes the credential of a node into a file: the administrator's, who plays system:node:<node>,
// so that the Node authorizer and NodeRestriction apply.
func (c *Cluster) NodeKubeconfig(node, file string) error {
	config, err := clientcmd.LoadFromFile(c.Kubeconfig())
	if err != nil {
		return fmt.Errorf("reading the administrator's credential: %w", err)
	}
	for _, user := range config.AuthInfos {
		user.Impersonate, user.ImpersonateGroups = NodeUser(node)
	}
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return fmt.Errorf("writing the credential of node %s: %w", node, err)
	}
	return nil
}

// NodeUser is the user of a node's agent at the API server.
func NodeUser(node string) (name string, groups []string) {
	return "system:node:" + node, []string{"system:nodes", "system:authenticated"}
}
