package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// leaseDuration is kubelet's default.
	leaseDuration = 40 * time.Second
	// statusRefresh is how often an unchanged status is written anyway, as kubelet does.
	statusRefresh = 5 * time.Minute
	// maxPods is kubelet's default.
	maxPods = 110
	// agentVersion is what kubectl get nodes shows.
	agentVersion = "v1.36.3-belay"
)

// registration keeps the Node object of a belay node.
type registration struct {
	config Config
	client kubernetes.Interface
	status corev1.NodeStatus
}

func newRegistration(config Config, client kubernetes.Interface) (*registration, error) {
	bootID, err := readMachineFile(config, "boot_id")
	if err != nil {
		return nil, err
	}
	machine, err := readMachineFile(config, "product_uuid")
	if err != nil {
		return nil, err
	}
	memory, err := totalMemory()
	if err != nil {
		return nil, err
	}
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
		corev1.ResourcePods:   *resource.NewQuantity(maxPods, resource.DecimalSI),
	}
	return &registration{config: config, client: client, status: corev1.NodeStatus{
		Capacity: capacity, Allocatable: capacity.DeepCopy(),
		Addresses:       addresses(config.Name, config.Address),
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(config.KubeletPort)}},
		NodeInfo: corev1.NodeSystemInfo{
			BootID: bootID, SystemUUID: machine, MachineID: strings.ReplaceAll(machine, "-", ""),
			KernelVersion: kernelVersion(), OSImage: "belay lab", OperatingSystem: "linux", Architecture: runtime.GOARCH,
			ContainerRuntimeVersion: "belay://processes", KubeletVersion: agentVersion,
		},
	}}, nil
}

func kernelVersion() string {
	raw, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(raw))
}

// totalMemory is the machine's memory in bytes.
func totalMemory() (int64, error) {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read size of memory: %w", err)
	}
	var kibibytes int64
	if _, err := fmt.Sscanf(string(raw), "MemTotal: %d kB", &kibibytes); err != nil {
		return 0, fmt.Errorf("read size of memory: %w", err)
	}
	return kibibytes << 10, nil
}

// register makes the Node, or takes over the one that is there.
func (r *registration) register(ctx context.Context) (*corev1.Node, error) {
	labels := map[string]string{
		corev1.LabelHostname: r.config.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: runtime.GOARCH,
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: r.config.Name, Labels: labels}, Status: r.status,
	}
	node.Status.Conditions = r.conditions(nil, time.Now())
	created, err := r.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err == nil {
		return created, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("register node %s: %w", r.config.Name, err)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return nil, fmt.Errorf("encode labels of node %s: %w", r.config.Name, err)
	}
	found, err := r.client.CoreV1().Nodes().Patch(ctx, r.config.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("take over node %s: %w", r.config.Name, err)
	}
	return found, r.writeStatus(ctx, found)
}

// conditions are all well; the times of transition of those that were so are kept.
func (r *registration) conditions(had []corev1.NodeCondition, now time.Time) []corev1.NodeCondition {
	transition := func(want corev1.NodeCondition) corev1.NodeCondition {
		want.LastHeartbeatTime, want.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
		for _, condition := range had {
			if condition.Type == want.Type && condition.Status == want.Status {
				want.LastTransitionTime = condition.LastTransitionTime
			}
		}
		return want
	}
	no := corev1.ConditionFalse
	return []corev1.NodeCondition{
		transition(corev1.NodeCondition{Type: corev1.NodeMemoryPressure, Status: no, Reason: "NoPressure", Message: "the lab does not measure it"}),
		transition(corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: no, Reason: "NoPressure", Message: "the lab does not measure it"}),
		transition(corev1.NodeCondition{Type: corev1.NodePIDPressure, Status: no, Reason: "NoPressure", Message: "the lab does not measure it"}),
		transition(corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "AgentReady", Message: "the node agent runs"}),
	}
}

// writeStatus patches what is ours in the status. volumesInUse and volumesAttached
// are others' and not named.
func (r *registration) writeStatus(ctx context.Context, node *corev1.Node) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"status": map[string]any{
			"capacity": r.status.Capacity, "allocatable": r.status.Allocatable,
			"addresses": r.status.Addresses, "daemonEndpoints": r.status.DaemonEndpoints,
			"nodeInfo": r.status.NodeInfo, "conditions": r.conditions(node.Status.Conditions, time.Now()),
		},
	})
	if err != nil {
		return fmt.Errorf("encode status of node %s: %w", r.config.Name, err)
	}
	_, err = r.client.CoreV1().Nodes().Patch(ctx, r.config.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("write status of node %s: %w", r.config.Name, err)
	}
	return nil
}

// renewLease keeps the node's Lease until ctx ends. The Lease belongs to the Node and
// goes with it.
func (r *registration) renewLease(ctx context.Context, node *corev1.Node) {
	owned := func(l *coordinationv1.Lease) error {
		if len(l.OwnerReferences) == 0 {
			l.OwnerReferences = []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
			}
		}
		return nil
	}
	controller := lease.NewController(clock.RealClock{}, r.client, node.Name, int32(r.config.NodeLeaseDuration.Seconds()), nil,
		r.config.NodeLeaseDuration.Duration/4, node.Name, corev1.NamespaceNodeLease, owned)
	controller.Run(ctx)
}

// stayReady writes the status again when it is old, and at once when another controller,
// such as the node life cycle controller after a pause of ours, has called the node not ready.
func (r *registration) stayReady(ctx context.Context) {
	watcher := cache.NewListWatchFromClient(r.client.CoreV1().RESTClient(), "nodes", "", nameSelector(r.config.Name))
	changed := make(chan *corev1.Node, 1)
	newest := func(object any) {
		node, ok := object.(*corev1.Node)
		if !ok || isReady(node) {
			return
		}
		select {
		case changed <- node:
		default: // one is being dealt with; its write comes back by the watch
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: watcher, ObjectType: &corev1.Node{},
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: newest, UpdateFunc: func(_, object any) { newest(object) }},
	})
	go informer.RunWithContext(ctx)
	refresh := time.NewTicker(statusRefresh)
	defer refresh.Stop()
	for {
		var node *corev1.Node
		var err error
		select {
		case <-ctx.Done():
			return
		case node = <-changed:
		case <-refresh.C:
			node, err = r.client.CoreV1().Nodes().Get(ctx, r.config.Name, metav1.GetOptions{})
		}
		if err == nil {
			err = r.writeStatus(ctx, node)
		}
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "node status was not refreshed")
		}
	}
}

func isReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
