package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/node"
)

// agentsReady is a file that exists once all volumes are published.
const agentsReady = "ready"

// agentsOptions are the command line of `bench agents`.
type agentsOptions struct {
	kubeconfig, root string
	agents, volumes  int
}

// agentsCommand runs many node agents, as a scale test would: through the Go API, each with a root and the rights of its own
// node, with one driver in memory for all.
func agentsCommand() *cobra.Command {
	var o agentsOptions
	command := &cobra.Command{
		Use: "agents", Short: "Run many node agents in this process (for `bench node`)", Hidden: true,
		Args: usage.NoArgs, SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error { return runAgents(command.Context(), o) },
	}
	flags := command.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "credential of an administrator, who plays the nodes")
	flags.StringVar(&o.root, "root", "", "folder for the agents' roots")
	flags.IntVar(&o.agents, "agents", 1, "how many agents")
	flags.IntVar(&o.volumes, "volumes", 0, "how many volumes are published when the file "+agentsReady+" is written")
	return command
}

func runAgents(ctx context.Context, o agentsOptions) error {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	driver := newNodeDriver()
	defer driver.stop()
	group, ctx := errgroup.WithContext(ctx)
	for i := range o.agents {
		agent, err := newAgent(config, filepath.Join(o.root, strconv.Itoa(i)), nodeName(i), driver)
		if err != nil {
			return errors.Join(err, ctx.Err())
		}
		group.Go(func() error { return agent.Run(ctx) })
		group.Go(func() error { return agent.FollowPods(ctx) })
	}
	group.Go(func() error {
		for driver.count() < o.volumes {
			if err := pause(ctx, 100*time.Millisecond); err != nil {
				return nil //nolint:nilerr // the process is being stopped
			}
		}
		if err := os.WriteFile(filepath.Join(o.root, agentsReady), nil, 0o600); err != nil {
			return fmt.Errorf("telling that all is ready: %w", err)
		}
		return nil
	})
	return group.Wait()
}

// newAgent makes one agent, with the driver registered in its root.
func newAgent(admin *restclient.Config, root, name string, driver *nodeDriver) (*node.Agent, error) {
	if err := driver.register(root); err != nil {
		return nil, err
	}
	config := restclient.CopyConfig(admin)
	config.Impersonate.UserName, config.Impersonate.Groups = cluster.NodeUser(name)
	return node.New(node.Config{
		NodeName: name, Root: root, RESTConfig: config, BootID: "bench",
		MountPoints: func() ([]string, error) { return nil, nil },
	})
}
