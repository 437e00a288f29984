package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
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
// the driver lets go of its devices. It returns when node-init is about to exit.
func (n *Node) Shutdown(ctx context.Context) error { return Shutdown(ctx, n.Config.Dir) }

// Kill sends SIGKILL to one child of the node (ChildAgent, ChildDriver,
// ChildContainerd); node-init starts it again.
func (n *Node) Kill(child string) error { return n.tell("/kill", child) }

// FreezeChild stops one child of the node without ending it, as if it hung; what it started
// goes on. ThawChild lets it go on.
func (n *Node) FreezeChild(child string) error {
	return n.tell("/freeze", child)
}

// ThawChild takes back FreezeChild.
func (n *Node) ThawChild(child string) error { return n.tell("/thaw", child) }

// tellPatience bounds how long node-init may take for one child: a node that is frozen
// never answers.
const tellPatience = 10 * time.Second

func (n *Node) tell(what, child string) error {
	ctx, cancel := context.WithTimeout(context.Background(), tellPatience)
	defer cancel()
	_, err := control(ctx, n.Config.Dir, what+"?child="+url.QueryEscape(child))
	return err
}

// Children asks the node what runs on it.
func (n *Node) Children(ctx context.Context) ([]ChildState, error) {
	answer, err := control(ctx, n.Config.Dir, "/status")
	if err != nil {
		return nil, err
	}
	var states []ChildState
	if err := json.Unmarshal(answer, &states); err != nil {
		return nil, fmt.Errorf("read the status of node %s: %w", n.Config.Name, err)
	}
	return states, nil
}

// Shutdown stops the node whose folder is dir in order.
func Shutdown(ctx context.Context, dir string) error {
	_, err := control(ctx, dir, "/shutdown")
	return err
}

// control posts one request to node-init and waits for its answer.
func control(ctx context.Context, dir, path string) ([]byte, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", controlSocket(dir))
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://node"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask node-init of %s: %w", dir, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask node-init of %s: %w", dir, err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err != nil {
		return nil, fmt.Errorf("ask node-init of %s for %s: %w", dir, path, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("node-init of %s refused %s: %s", dir, path, strings.TrimSpace(string(answer)))
	}
	return answer, nil
}
