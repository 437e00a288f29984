package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"belay.dev/belay/lab/proc"
	"belay.dev/belay/lab/socket"
)

// StopRequested is closed when another process asks this lab over its control socket to stop. The
// owner of the cluster then calls Down.
func (c *Cluster) StopRequested() <-chan struct{} { return c.control.stop }

// controlServer lets other processes of the same user steer the lab: HTTP over a unix socket.
type controlServer struct {
	server *http.Server
	stop   chan struct{}
	done   chan error
}

func serveControl(c *Cluster) (*controlServer, error) {
	listener, err := socket.Listen(c.paths.control())
	if err != nil {
		return nil, err
	}
	s := &controlServer{stop: make(chan struct{}), done: make(chan error, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(c.Status()) //nolint:errchkjson // a client that went away needs no answer
	})
	// The log of the lab shows what was done to it, and when, beside what came of that.
	note := alsoLog(c.paths.log("lab"), func(string, ...any) {})
	act := func(pattern string, do func(string) error) {
		mux.HandleFunc("POST "+pattern, func(w http.ResponseWriter, r *http.Request) {
			name := r.URL.Query().Get("name")
			asked := strings.TrimSpace(strings.TrimPrefix(pattern, "/") + " " + name)
			note("a client asks: %s", asked)
			if err := do(name); err != nil {
				note("%s: %v", asked, err)
				http.Error(w, err.Error(), http.StatusBadRequest)
			}
		})
	}
	act("/kill", c.Kill)
	act("/poweroff", c.PowerOff)
	act("/poweron", c.PowerOn)
	act("/freeze", c.Freeze)
	act("/thaw", c.Thaw)
	act("/agent/stop", c.StopAgent)
	act("/agent/start", c.StartAgent)
	for _, direction := range Directions() {
		act("/partition/"+string(direction), func(node string) error { return c.Partition(node, direction) })
	}
	act("/heal", c.Heal)
	act("/partition/component", c.PartitionComponent)
	act("/heal/component", c.HealComponent)
	act("/image", func(archive string) error { return c.LoadImage(context.Background(), archive) })
	act("/controller", func(plane string) error { return c.SwitchController(context.Background(), plane) })
	act("/attachers/"+AttachersOff, func(string) error { return c.StopAttachers(context.Background()) })
	act("/attachers/"+AttachersOn, func(string) error { return c.RunAttachers() })
	for _, fault := range BMCFaults() {
		act("/bmc/"+string(fault), func(node string) error { return c.FaultBMC(node, fault) })
	}
	stop := sync.OnceFunc(func() { close(s.stop) })
	act("/stop", func(string) error { stop(); return nil })
	s.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { s.done <- s.server.Serve(listener) }()
	return s, nil
}

func (s *controlServer) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := s.server.Shutdown(ctx); err != nil {
		_ = s.server.Close()
	}
	if err := <-s.done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the control socket: %w", err)
	}
	return nil
}

// Remote is a lab that another process holds.
type Remote struct {
	name  string
	paths paths
	http  *http.Client
}

// ErrNotRunning says that no lab of that name runs.
var ErrNotRunning = errors.New("it does not run")

// Find connects to a running lab by its name; ErrNotRunning if none runs.
func Find(name string) (*Remote, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	p, err := labPaths(name)
	if err != nil {
		return nil, err
	}
	r := &Remote{name: name, paths: p, http: socket.NewClient(p.control())}
	connection, err := net.DialTimeout("unix", p.control(), time.Second)
	switch {
	case err == nil:
		_ = connection.Close()
		return r, nil
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("lab %s: %s: %w: it belongs to another user; run belay-lab as that user (a lab needs root, so try sudo)",
			name, p.control(), fs.ErrPermission)
	}
	hint := ""
	if _, err := os.Stat(p.dir()); err == nil {
		hint = fmt.Sprintf(", but something of it is left: `belay-lab clean --name %s` removes it", name)
	} else if os.Geteuid() != 0 {
		hint = fmt.Sprintf(" in %s; a lab needs root, so try sudo", filepath.Join(p.cache, "labs"))
	}
	return nil, fmt.Errorf("lab %s: %w%s", name, ErrNotRunning, hint)
}

// FabricSocket is where the lab's storage listens.
func (r *Remote) FabricSocket() string { return r.paths.fabricSocket() }

// Status asks the lab for its status.
func (r *Remote) Status(ctx context.Context) (s Status, err error) {
	return s, r.ask(ctx, http.MethodGet, "/status", "", &s)
}

// Kill kills a component of the lab, see Cluster.Kill.
func (r *Remote) Kill(ctx context.Context, component string) error {
	return r.ask(ctx, http.MethodPost, "/kill", component, nil)
}

// PowerOff cuts the power of a node, see Cluster.PowerOff.
func (r *Remote) PowerOff(ctx context.Context, node string) error {
	return r.ask(ctx, http.MethodPost, "/poweroff", node, nil)
}

// PowerOn boots a node, see Cluster.PowerOn.
func (r *Remote) PowerOn(ctx context.Context, node string) error {
	return r.ask(ctx, http.MethodPost, "/poweron", node, nil)
}

// SwitchController hands attach and detach over, see Cluster.SwitchController.
func (r *Remote) SwitchController(ctx context.Context, plane string) error {
	return r.ask(ctx, http.MethodPost, "/controller", plane, nil)
}

// What SwitchAttachers takes.
const (
	AttachersOn  = "on"
	AttachersOff = "off"
)

// SwitchAttachers starts (AttachersOn) or stops (AttachersOff) the lab's own attachers, see Cluster.StopAttachers.
func (r *Remote) SwitchAttachers(ctx context.Context, to string) error {
	return r.ask(ctx, http.MethodPost, "/attachers/"+to, "", nil)
}

// Stop asks the lab to go down and waits until it has.
func (r *Remote) Stop(ctx context.Context) error {
	status, err := r.Status(ctx)
	if err != nil {
		return err
	}
	holder, err := proc.Of("holder", status.HolderPID)
	if err != nil {
		return fmt.Errorf("finding the process that holds lab %s: %w", r.name, err)
	}
	if err := r.ask(ctx, http.MethodPost, "/stop", "", nil); err != nil {
		return err
	}
	released := func(context.Context) (bool, error) { return !r.held(), nil }
	if wait.PollUntilContextCancel(ctx, lookAgain, true, released) != nil {
		return fmt.Errorf("lab %s is still held by process %d: %w", r.name, holder.PID, context.Cause(ctx))
	}
	if _, err := os.Stat(r.paths.dir()); err == nil {
		return fmt.Errorf("lab %s has ended, but not all of it could be removed (%s says why): try `belay-lab clean --name %s`",
			r.name, r.paths.log("lab"), r.name)
	}
	return nil
}

// held reports whether some process holds the lab's lock.
func (r *Remote) held() bool {
	lock, err := takeLock(r.paths)
	if err != nil {
		return errors.Is(err, ErrRunning)
	}
	_ = lock.Close()
	return false
}

func (r *Remote) ask(ctx context.Context, method, path, name string, reply any) error {
	if err := socket.Ask(ctx, r.http, method, path+"?name="+url.QueryEscape(name), nil, reply); err != nil {
		return fmt.Errorf("lab %s: %w", r.name, err)
	}
	return nil
}
