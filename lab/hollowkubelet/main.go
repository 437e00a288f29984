// Command hollow-kubelets runs many kubelets of k8s.io/kubernetes in one process, as kubemark does: kubelet's own code over a runtime, a
// cAdvisor and a mounter that are fake. It is a program of its own because it links the whole kubelet; `belay-lab bench tick` builds it when it
// is needed.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/socket"
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
	flags.StringVar(&f.dir, "dir", "", "folder for the kubelets' files and the socket state.sock")
	flags.IntVar(&f.nodes, "nodes", 1, "number of kubelets; their nodes are hollow-0000, hollow-0001, ...")
	if err := command.ExecuteContext(context.Background()); err != nil {
		os.Exit(1)
	}
}

// fleet is all kubelets of the process.
type fleet struct {
	kubeconfig, config, dir string
	nodes                   int

	// started kubelets have computed a status. ticks counts the statuses that all of them have computed.
	started, ticks atomic.Int64
}

// State is what GET /state on the socket answers.
type State struct {
	Started int64 `json:"started"`
	Ticks   int64 `json:"ticks"`
}

func (f *fleet) run(ctx context.Context) error {
	// With a real OS interface kubelet removes logs by names that are relative to the working directory.
	empty := filepath.Join(f.dir, "empty")
	if err := os.MkdirAll(empty, 0o755); err != nil {
		return fmt.Errorf("make the kubelets' folder: %w", err)
	}
	if err := os.Chdir(empty); err != nil {
		return fmt.Errorf("enter the kubelets' folder: %w", err)
	}
	go func() {
		for i := range f.nodes {
			if err := f.start(ctx, fmt.Sprintf("hollow-%04d", i)); err != nil {
				klog.Fatalf("starting kubelet %d of %d: %v", i+1, f.nodes, err)
			}
			f.started.Add(1)
		}
	}()
	return f.serve()
}

// serve answers until the process ends.
func (f *fleet) serve() error {
	listener, err := socket.Listen(filepath.Join(f.dir, "state.sock"))
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(State{Started: f.started.Load(), Ticks: f.ticks.Load()}) //nolint:errchkjson // a client that went away needs no answer
	})}
	return server.Serve(listener)
}
