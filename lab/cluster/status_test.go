package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"belay.dev/belay/lab/nodes"
	"belay.dev/belay/lab/proc"
)

func TestStatusNamesAllLogsAndMetrics(t *testing.T) {
	p := paths{cache: "/c", name: "lab"}
	numbers := ports{APIServer: 20443, Etcd: 1, ControllerMetrics: 2, Kubelets: map[string]int{"node-1": 3}, Sidecars: map[string]int{"attacher": 4, "attacher-labshare": 5}}
	s := Status{
		Components: []proc.State{{Name: "etcd"}, {Name: "attach-controller"}, {Name: "attacher"}, {Name: "fabric"}, {Name: "node-1"}},
		Children:   map[string][]Child{"node-1": {{Name: "node-1/agent"}, {Name: "node-1/driver"}}},
	}
	logs := map[string]string{
		"lab": "/c/labs/lab/logs/lab.log", "etcd": "/c/labs/lab/logs/etcd.log", "attach-controller": "/c/labs/lab/logs/attach-controller.log",
		"attacher": "/c/labs/lab/logs/attacher.log", "fabric": "/c/labs/lab/logs/fabric.log", "node-1": "/c/labs/lab/logs/node-1.log",
		"node-1/agent": p.node("node-1") + "/log/agent.log", "node-1/driver": p.node("node-1") + "/log/driver.log",
	}
	if diff := cmp.Diff(logs, logsOf(p, s)); diff != "" {
		t.Errorf("logs (-want +got):\n%s", diff)
	}
	metrics := map[string]string{
		"etcd": "https://127.0.0.1:1/metrics", "attach-controller": "http://127.0.0.1:2/metrics",
		"attacher": "http://127.0.0.1:4/metrics", "node-1/agent": "https://127.79.219.1:3/metrics",
	}
	if diff := cmp.Diff(metrics, metricsOf(numbers, s)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

func TestChildrenOfANode(t *testing.T) {
	config := nodes.Config{Name: "node-1", Kind: nodes.KindKubelet, FabricSocket: "/f"}
	got := childrenOf(config, []nodes.ChildState{{Name: "agent", PID: 7, Stopped: true, Starts: 3}, {Name: "containerd", PID: 8, Starts: 1}}, ChildDown)
	want := []Child{
		{Name: "node-1/agent", State: ChildStopped, Restarts: 2}, {Name: "node-1/containerd", State: ChildRunning}, {Name: "node-1/driver", State: ChildDown},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("children (-want +got):\n%s", diff)
	}
}
