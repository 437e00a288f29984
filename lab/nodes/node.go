package nodes

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"belay.dev/belay/lab/socket"
)

// cgroupPrefix begins the name of every lab node's cgroup.
const cgroupPrefix = "kubenode-"

// Node is one lab node as seen from the outside.
type Node struct {
	Config Config
}

// InitCommand is the command line that starts the node: it makes the namespaces
// and runs node-init as their process 1. SIGKILL to this process is the power
// cut. It ignores SIGTERM (util-linux's unshare does): use Shutdown for an orderly stop.
func InitCommand(belayLab, configFile string) []string {
	return []string{
		"unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "--mount-proc",
		belayLab, "node-init", "--config", configFile,
	}
}

// Shutdown stops the node in order: pods' processes end, everything is unmounted,
// the driver releases its devices. It returns when node-init is about to exit.
func (n *Node) Shutdown(ctx context.Context) error { return n.ask(ctx, "/shutdown", nil) }

// Kill sends SIGKILL to one child of the node (ChildAgent, ChildDriver,
// ChildContainerd); node-init starts it again.
func (n *Node) Kill(child string) error { return n.tell("/kill", child) }

// LoadImage gives the node's container runtime the images of an archive (an OCI image layout or `docker save`, as a tar). They last as
// long as the node's disk.
func (n *Node) LoadImage(ctx context.Context, archive string) error {
	return n.ask(ctx, "/image?archive="+url.QueryEscape(archive), nil)
}

// FreezeChild stops one child of the node without ending it, as if it hung; what it started
// continues. ThawChild undoes it.
func (n *Node) FreezeChild(child string) error {
	return n.tell("/freeze", child)
}

// ThawChild undoes FreezeChild.
func (n *Node) ThawChild(child string) error { return n.tell("/thaw", child) }

// StopChild ends one child of the node, as systemctl stop ends a unit: it is not started again until StartChild, or until the node boots.
func (n *Node) StopChild(child string) error { return n.tell("/stop", child) }

// StartChild starts a child again that was stopped.
func (n *Node) StartChild(child string) error { return n.tell("/start", child) }

// tellPatience bounds how long node-init may take for one child: a node that is frozen
// never answers.
const tellPatience = 10 * time.Second

func (n *Node) tell(what, child string) error {
	ctx, cancel := context.WithTimeout(context.Background(), tellPatience)
	defer cancel()
	return n.ask(ctx, what+"?child="+url.QueryEscape(child), nil)
}

// Children asks the node what runs on it.
func (n *Node) Children(ctx context.Context) (states []ChildState, err error) {
	return states, n.ask(ctx, "/status", &states)
}

// ask posts one request to node-init and waits for its answer.
func (n *Node) ask(ctx context.Context, path string, answer any) error {
	client := socket.NewClient(n.Config.ControlSocket())
	defer client.CloseIdleConnections()
	if err := socket.Ask(ctx, client, http.MethodPost, path, nil, answer); err != nil {
		return fmt.Errorf("ask node-init of %s for %s: %w", n.Config.Name, path, err)
	}
	return nil
}
