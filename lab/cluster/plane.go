package cluster

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"belay.dev/belay/internal/usage"
)

// Plane says whose attach/detach controller runs now: that of Options, or the one
// that SwitchController was last asked for.
func (c *Cluster) Plane() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.plane
}

// PlaneNone is no attach/detach controller but one that is installed in the cluster.
const PlaneNone = "none"

// SwitchController hands attach and detach over, as an operator does: kube-controller-
// manager is restarted with (PlaneUpstream) or without (PlaneBelay, PlaneNone) its own
// controller, and belay-controller is stopped or started. The attachers stay as they
// are. The old controller has ended when the new one is started.
func (c *Cluster) SwitchController(ctx context.Context, plane string) error {
	if !slices.Contains([]string{PlaneBelay, PlaneUpstream, PlaneNone}, plane) {
		return usage.Errorf("the controller is %s, %s or %s, not %q", PlaneBelay, PlaneUpstream, PlaneNone, plane)
	}
	if err := c.StopController(ctx); err != nil {
		return err
	}
	manager, err := c.process(componentKCM)
	if err != nil {
		return err
	}
	if err := manager.Stop(ctx); err != nil {
		return fmt.Errorf("switching the controller to %s's: %w", plane, err)
	}
	if err := c.launch(c.specs.controllerManager(plane)); err != nil {
		return err
	}
	c.mu.Lock()
	c.plane = plane
	c.mu.Unlock()
	if plane != PlaneBelay {
		return nil
	}
	objects, err := documents(Options{Plane: PlaneBelay})
	if err != nil {
		return err
	}
	if err := applyAll(ctx, c.RESTConfig(), objects); err != nil {
		return err
	}
	return c.RunController(ControllerRun{})
}

// StopController ends belay-controller in order, so that it releases its lease; it
// stays down until RunController. Nothing to do if it does not run.
func (c *Cluster) StopController(ctx context.Context) error {
	for _, name := range slices.Backward(c.options.replicas(componentController)) { // the standby first, so that it does not lead
		process, err := c.process(name)
		if err != nil {
			continue // it never ran
		}
		if err := process.Stop(ctx); err != nil {
			return fmt.Errorf("stopping belay-controller: %w", err)
		}
	}
	return nil
}

// CrashController kills belay-controller with SIGKILL; it stays down until RunController.
// When it returns, nothing of it runs.
func (c *Cluster) CrashController() error {
	process, err := c.process(componentController)
	if err != nil {
		return err
	}
	if err := process.PowerOff(); err != nil {
		return fmt.Errorf("crashing belay-controller: %w", err)
	}
	return nil
}

// ControllerRun says how belay-controller is started; the zero value is as the lab
// starts it by itself.
type ControllerRun struct {
	// Server is spoken to instead of the API server: the URL of a proxy that has the
	// credentials (ControllerConfig), for belay-controller brings none along.
	Server string
	// Args are flags after the lab's own.
	Args []string
}

// RunController starts belay-controller after StopController or CrashController; killed,
// it comes back in the same way.
func (c *Cluster) RunController(run ControllerRun) error {
	kubeconfig := ""
	if run.Server != "" {
		kubeconfig = filepath.Join(c.paths.pki(), "controller-proxied.kubeconfig")
		config := clientcmdapi.NewConfig()
		config.Clusters["lab"] = &clientcmdapi.Cluster{Server: run.Server}
		config.Contexts["lab"] = &clientcmdapi.Context{Cluster: "lab"}
		config.CurrentContext = "lab"
		if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
			return fmt.Errorf("writing the kubeconfig of a proxied belay-controller: %w", err)
		}
	}
	args := run.Args
	if c.options.Recovery != "" {
		args = slices.Concat([]string{"--controllers=attachdetach,recovery"}, c.specs.recoveryArgs("actor"), args)
	}
	for _, name := range c.options.replicas(componentController) {
		spec := c.specs.controller(name, cmp.Or(kubeconfig, c.specs.kubeconfig(name, identityController)), args)
		if err := c.launch(spec); err != nil {
			return err
		}
	}
	return nil
}

// ControllerConfig is belay-controller's own client configuration.
func (c *Cluster) ControllerConfig() (*rest.Config, error) {
	return clientConfig(c.paths.kubeconfig(identityController))
}
