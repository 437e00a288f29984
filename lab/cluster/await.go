package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/lab/nodes"
	"belay.dev/belay/lab/proc"
)

// Bounds of the start; a loaded machine takes a multiple of the usual three seconds.
const (
	startWithin = 3 * time.Minute
	nodesWithin = 4 * time.Minute
	downWithin  = 2 * time.Minute
	lookAgain   = 50 * time.Millisecond
	// A component that ended so often in a row, each time soon after its start, will not come up.
	hopelessRestarts = 6
)

// await polls until ready succeeds. It returns early when a component keeps
// ending, and then returns the end of that component's log.
func (c *Cluster) await(ctx context.Context, what string, within time.Duration, ready func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, lookAgain, within, true, func(ctx context.Context) (bool, error) {
		if last = ready(ctx); last == nil {
			return true, nil
		}
		return false, c.restarted(func(s proc.State) bool { return s.RestartsInARow >= hopelessRestarts })
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
	case wait.Interrupted(err):
		return fmt.Errorf("%s is not ready after %v: %w", what, within, errors.Join(last, c.restarted(ever)))
	default:
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
}

// ever reports whether a component was restarted at all.
func ever(s proc.State) bool { return s.Restarts > 0 }

// restarted is an error for the first component that was restarted as often as that.
func (c *Cluster) restarted(often func(proc.State) bool) error {
	for _, s := range c.states() {
		if often(s) {
			return fmt.Errorf("%s was restarted %d times (%s); the end of its log:\n%s", s.Name, s.Restarts, s.LastError, tail(c.paths.log(s.Name), 12))
		}
	}
	return nil
}

// tail is the last lines of a file.
func tail(path string, lines int) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Sprintf("  (no log: %v)", err)
	}
	all := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	all = all[max(0, len(all)-lines):]
	return "  " + strings.Join(all, "\n  ")
}

func dial(ctx context.Context, port int) error {
	connection, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address(port))
	if err != nil {
		return err
	}
	return connection.Close()
}

// awaitServer waits until the API server is ready, its default RBAC rules included.
func (c *Cluster) awaitServer(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	return c.await(ctx, componentAPIServer, startWithin, func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// awaitNode waits until a node is Ready, takes pods and has its drivers registered.
func (c *Cluster) awaitNode(ctx context.Context, client kubernetes.Interface, name string) error {
	if c.options.NodeKind == NodeKindKubelet {
		adopt, cancel := context.WithTimeoutCause(ctx, nodesWithin, fmt.Errorf("the kubelet of %s has not registered after %v", name, nodesWithin))
		defer cancel()
		if err := nodes.AdoptNode(adopt, client, name, c.ports.nodeAddress(name)); err != nil {
			return errors.Join(err, c.restarted(ever))
		}
	}
	return c.await(ctx, name, nodesWithin, func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading node %s: %w", name, err)
		}
		if reason := notReady(node); reason != "" {
			return fmt.Errorf("node %s: %s", name, reason)
		}
		return c.driversRegistered(ctx, client, name)
	})
}

// notReady returns why a node accepts no pods yet.
func notReady(node *corev1.Node) string {
	ready := slices.IndexFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady
	})
	if ready < 0 {
		return "has reported no condition"
	}
	if condition := node.Status.Conditions[ready]; condition.Status != corev1.ConditionTrue {
		return "is not Ready: " + condition.Message
	}
	for _, taint := range node.Spec.Taints {
		if taint.Effect != corev1.TaintEffectPreferNoSchedule {
			return "has the taint " + taint.Key
		}
	}
	return ""
}

func (c *Cluster) driversRegistered(ctx context.Context, client kubernetes.Interface, name string) error {
	csiNode, err := client.StorageV1().CSINodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading CSINode %s: %w", name, err)
	}
	registered := map[string]bool{}
	for _, driver := range csiNode.Spec.Drivers {
		registered[driver.Name] = true
	}
	for _, driver := range c.options.Drivers {
		if !registered[driver] {
			return fmt.Errorf("driver %s is not registered on node %s", driver, name)
		}
	}
	return nil
}

// awaitServiceAccount waits for the account without which no pod of the default namespace can be
// made: kube-controller-manager's work.
func (c *Cluster) awaitServiceAccount(ctx context.Context, client kubernetes.Interface) error {
	return c.await(ctx, componentKCM, startWithin, func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading the default service account: %w", err)
		}
		return nil
	})
}
