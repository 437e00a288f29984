package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"belay.dev/belay/lab/socket"
)

// runInit is process 1 of a node: it sets the machine up, keeps the children
// running, reaps, and takes everything down in order when it is asked to.
func runInit(command *cobra.Command, config Config) error {
	if os.Getpid() != 1 {
		return errors.New("node-init must be process 1 of a pid namespace: start it with the command line of nodes.InitCommand")
	}
	// Children die with process 1 whatever happens; a closed terminal is no reason.
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	if err := setUpMachine(config); err != nil {
		return fmt.Errorf("set up node %s: %w", config.Name, err)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("node", config.Name)
	kept := newChildren(config.LogDir(), log)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGCHLD)
	go kept.reap(signals)

	ctx, cancel := context.WithCancel(command.Context())
	defer cancel()
	down := make(chan struct{})
	server, err := serveControl(config, kept, func() { cancel(); <-down })
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	for _, start := range starters(config) {
		running.Go(func() {
			if err := start(ctx, kept); err != nil && ctx.Err() == nil {
				log.Error("node stays incomplete", "err", err)
			}
		})
	}
	<-ctx.Done()
	err = takeDown(config, kept, log, running.Wait)
	close(down)
	return errors.Join(err, server.Shutdown(context.WithoutCancel(ctx)))
}

// starters are what a node of this kind runs, side by side.
func starters(config Config) []func(context.Context, *children) error {
	var all []func(context.Context, *children) error
	if config.FabricSocket != "" {
		all = append(all, func(ctx context.Context, kept *children) error {
			kept.keep(ctx, driverChild(config))
			return nil
		})
	}
	if config.Kind == KindKubelet {
		return append(all,
			func(ctx context.Context, kept *children) error { return runContainerd(ctx, config, kept) },
			func(ctx context.Context, kept *children) error { return runKubelet(ctx, config, kept) })
	}
	return append(all, func(ctx context.Context, kept *children) error {
		kept.keep(ctx, child{
			name: ChildAgent, path: config.Programs.BelayLab,
			args: append([]string{agentVerb, "--config", configFile(config)}, config.AgentArgs...),
		})
		return nil
	})
}

func driverChild(config Config) child {
	args := []string{
		"labdisk", "node", "--fabric", config.FabricSocket, "--node-id", config.Name,
		"--root-dir", config.RootDir(), "--fuse-dir", config.FUSEDir(), "--drivers", strings.Join(config.Drivers, ","),
	}
	return child{name: ChildDriver, path: config.Programs.BelayLab, args: args}
}

// configFile is a copy of the configuration, its defaults filled in, for the agent.
func configFile(config Config) string { return filepath.Join(config.Dir, "agent.json") }

// controlTimeout bounds how long a request to the control socket may take to arrive.
const controlTimeout = 10 * time.Second

// serveControl listens on the node's control socket: kill, shutdown and status. stop
// returns when the node has been taken down.
func serveControl(config Config, kept *children, stop func()) (*http.Server, error) {
	if err := WriteConfig(configFile(config), config); err != nil {
		return nil, err
	}
	listener, err := socket.Listen(config.ControlSocket())
	if err != nil {
		return nil, fmt.Errorf("serve control socket of node %s: %w", config.Name, err)
	}
	mux := http.NewServeMux()
	// No function value is called with what a request says: the linter takes that for a call of all functions of its type.
	mux.HandleFunc("POST /stop", func(w http.ResponseWriter, r *http.Request) {
		if err := kept.stop(r.FormValue("child")); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	})
	mux.HandleFunc("POST /start", func(w http.ResponseWriter, r *http.Request) {
		if err := kept.startAgain(r.FormValue("child")); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	})
	for path, signal := range map[string]unix.Signal{"/kill": unix.SIGKILL, "/freeze": unix.SIGSTOP, "/thaw": unix.SIGCONT} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			if err := kept.signal(r.FormValue("child"), signal); err != nil {
				http.Error(w, err.Error(), http.StatusConflict)
			}
		})
	}
	mux.HandleFunc("POST /image", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), loadPatience)
		defer cancel()
		if err := importImage(ctx, config, kept, r.FormValue("archive")); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	})
	mux.HandleFunc("POST /shutdown", func(_ http.ResponseWriter, _ *http.Request) { stop() })
	mux.HandleFunc("POST /status", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(kept.states()) // a client that has gone needs no answer
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: controlTimeout}
	go func() { _ = server.Serve(listener) }() // ends with Shutdown
	return server, nil
}
