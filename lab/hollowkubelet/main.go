// Command hollow-kubelets runs many kubelets of k8s.io/kubernetes in one process, as kubemark does: kubelet's own code over a runtime, a
// cAdvisor and a mounter that are fake. It is a program of its own because it links the whole kubelet; `belay-lab bench tick` builds it when it
// is needed.
package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/hollowkubelet/statuses"
)

func main() {
	var f fleet
	command := &cobra.Command{
		Use: "hollow-kubelets", Short: "Run kubelets over fake container runtimes, for `belay-lab bench tick`",
		Args: usage.NoArgs, SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error { return f.run(command.Context()) },
	}
	flags := command.Flags()
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "credential that may impersonate nodes")
	flags.StringVar(&f.config, "config", "", "kubelet's configuration file, of all kubelets")
	flags.StringVar(&f.dir, "dir", "", "folder for the kubelets' files and the socket "+statuses.Socket)
	flags.IntVar(&f.nodes, "nodes", 1, "number of kubelets; their nodes are hollow-0000, hollow-0001, ...")
	if err := command.ExecuteContext(context.Background()); err != nil {
		os.Exit(1)
	}
}
