package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/nodes"
)

// Kinds of lab nodes.
const (
	// NodeKindKubelet is a real kubelet with containerd and runc.
	NodeKindKubelet = string(nodes.KindKubelet)
	// NodeKindBelay is belay's node agent with a pod's command run as a plain process.
	NodeKindBelay = string(nodes.KindBelay)
)

// Who runs attach and detach.
const (
	// PlaneBelay runs belay-controller and belay-attacher; the controller manager's own
	// attach/detach controller is off.
	PlaneBelay = "belay"
	// PlaneUpstream leaves the controller manager's controller on and runs csi-attacher.
	PlaneUpstream = "upstream"
)

// Options say what kind of lab to start. The zero value is a lab named "lab" with three nodes of
// the best kind that this machine can run, belay's plane, and the labdisk driver alone.
type Options struct {
	// Name of the lab; its folder is labs/<name> in the cache folder. Default "lab".
	Name string `json:"name"`
	// Nodes is how many nodes: node-1, node-2, ... Default 3; none with a negative number.
	Nodes int `json:"nodes"`
	// NodeKind is NodeKindKubelet or NodeKindBelay; default: kubelet where containerd and runc
	// are installed, else belay.
	NodeKind string `json:"nodeKind"`
	// Plane is PlaneBelay (default) or PlaneUpstream.
	Plane string `json:"plane"`
	// Permissive makes a storage that forbids nothing: a second publish succeeds, an unpublish
	// cuts nothing. The proof is then in the record of calls and in the data.
	Permissive bool `json:"permissive"`
	// Drivers to run, of labdisk.Drivers(); default labdisk.DriverDisk alone.
	Drivers []string `json:"drivers"`
	// NodeMonitorGrace is kube-controller-manager's --node-monitor-grace-period, after which a node
	// that is silent becomes NotReady; 0 means upstream's default, 50 s. The demo shortens it for
	// both planes alike: the wait for NotReady is neither plane's work. Keep it above 10 s, the
	// pace at which nodes renew their lease.
	NodeMonitorGrace time.Duration `json:"nodeMonitorGrace,omitempty"`
	// NodeStatusUpdateFrequency is how often a kubelet computes its node status, and with it
	// publishes volumesInUse; 0 means upstream's default, 10 s. Belay's nodes publish at once.
	NodeStatusUpdateFrequency time.Duration `json:"nodeStatusUpdateFrequency,omitempty"`
	// NodeLeaseDuration is a kubelet's nodeLeaseDurationSeconds, on both kinds of node; 0 means upstream's default, 40 s.
	NodeLeaseDuration time.Duration `json:"nodeLeaseDuration,omitempty"`
	// BMC gives each node a BMC that speaks IPMI and switches the node off and on.
	BMC bool `json:"bmc,omitempty"`
	// Recovery is the profile of recovery, "default" or "fast"; empty runs none. It implies BMC. With "fast" the nodes have the settings
	// that the profile assumes.
	Recovery string `json:"recovery,omitempty"`
	// StorageEvidence declares to recovery that labdisk cuts a node off before it confirms an unpublish, which its strict fabric does.
	StorageEvidence bool `json:"storageEvidence,omitempty"`
	// Standbys runs a second belay-controller, and a second attacher of each driver. Either of the two may lead, from the start.
	// kube-controller-manager has none.
	Standbys bool `json:"standbys,omitempty"`
	// Bare starts etcd and the API server alone, with the rights of all components in place, those of belay's only with its plane: no other
	// controller, no scheduler, no storage, no nodes, whatever Nodes says. For numbers: the caller brings objects that
	// play nodes, and starts and stops what it measures (StartController, StartSidecar, StartTool).
	Bare bool `json:"bare,omitempty"`
	// Audit makes the API server write down every request, see Cluster.Requests. It costs it some time.
	Audit bool `json:"audit,omitempty"`
	// ControllerArgs are flags that belay-controller is given besides the lab's own.
	ControllerArgs []string `json:"controllerArgs,omitempty"`
	// RecoveryArgs are flags that each part of recovery is given besides the lab's own.
	RecoveryArgs []string `json:"recoveryArgs,omitempty"`
	// AttacherArgs are flags that the attachers, whichever plane's, are given besides the lab's own.
	AttacherArgs []string `json:"attacherArgs,omitempty"`
	// NodeArgs are flags that each node's agent is given besides the lab's own: kubelet's flags, or on belay's nodes
	// those of nodes.AgentFlags.
	NodeArgs []string `json:"nodeArgs,omitempty"`
	// Verbosity of belay's own components (klog -v).
	Verbosity int `json:"verbosity"`
	// Progress receives the progress, one line at a time; may be nil.
	Progress func(format string, args ...any) `json:"-"`
}

// MaxNodes bounds a lab: each node takes ports, loop devices and, with kubelets, 170 MB.
const MaxNodes = 20

var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// Validate returns a [usage.Error] if no lab can be started with these options.
func (o Options) Validate() error {
	_, err := o.withDefaults()
	return err
}

// withDefaults fills in what was left out and refuses what cannot be.
func (o Options) withDefaults() (Options, error) {
	if o.Name == "" {
		o.Name = "lab"
	}
	if o.Nodes == 0 {
		o.Nodes = 3
	}
	if o.Bare {
		o.Nodes, o.NodeKind, o.Drivers = 0, NodeKindBelay, nil
	}
	o.Nodes = max(o.Nodes, 0)
	if o.Plane == "" {
		o.Plane = PlaneBelay
	}
	if len(o.Drivers) == 0 && !o.Bare {
		o.Drivers = []string{labdisk.DriverDisk}
	}
	if o.NodeKind == "" {
		o.NodeKind, _ = DefaultNodeKind()
	}
	o.BMC = o.BMC || o.Recovery != ""
	if o.Recovery == fencing.Fast.Name {
		o.NodeLeaseDuration = cmp.Or(o.NodeLeaseDuration, fencing.Fast.LeaseDuration)
		o.NodeStatusUpdateFrequency = cmp.Or(o.NodeStatusUpdateFrequency, fencing.Fast.RequestTimeout)
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	if err := o.validate(); err != nil {
		return o, usage.Wrap(err)
	}
	return o, nil
}

// CheckName returns a [usage.Error] unless the value of --name can be the name of a lab: of its folder, its cgroups and
// its processes' records.
func CheckName(name string) error {
	if !validName.MatchString(name) {
		return usage.Errorf("--name is %q, but must be 1 to 32 lower-case letters, digits and dashes, with a letter or digit at both ends", name)
	}
	return nil
}

func (o Options) validate() error {
	if err := CheckName(o.Name); err != nil {
		return err
	}
	if o.Nodes > MaxNodes {
		return fmt.Errorf("%d nodes are too many for one machine: at most %d", o.Nodes, MaxNodes)
	}
	if o.NodeKind != NodeKindKubelet && o.NodeKind != NodeKindBelay {
		return fmt.Errorf("--nodes must be %s or %s, not %q", NodeKindKubelet, NodeKindBelay, o.NodeKind)
	}
	if err := o.validateRecovery(); err != nil {
		return err
	}
	if o.Plane != PlaneBelay && o.Plane != PlaneUpstream {
		return fmt.Errorf("the plane is %s or %s, not %q", PlaneBelay, PlaneUpstream, o.Plane)
	}
	for _, driver := range o.Drivers {
		if !slices.Contains(labdisk.Drivers(), driver) {
			return fmt.Errorf("--drivers must be of %s, not %q", strings.Join(labdisk.Drivers(), ", "), driver)
		}
	}
	if o.Plane == PlaneUpstream && len(o.ControllerArgs) > 0 {
		return errors.New("--controller-arg: flags for belay-controller have no effect with upstream's plane: it does not run there")
	}
	if err := usage.CheckVerbosity("verbosity", o.Verbosity); err != nil {
		return err
	}
	if o.NodeKind == NodeKindBelay {
		return nodes.CheckAgentArgs(o.NodeArgs)
	}
	return nil
}

func (o Options) validateRecovery() error {
	if !slices.Contains([]string{"", fencing.Default.Name, fencing.Fast.Name}, o.Recovery) {
		return fmt.Errorf("--recovery must be %s or %s, not %q", fencing.Default.Name, fencing.Fast.Name, o.Recovery)
	}
	if o.StorageEvidence && (o.Recovery == "" || o.Permissive || o.Plane != PlaneBelay) {
		return errors.New("--storage-evidence needs --recovery, and belay's plane on a storage that is not --permissive: that one cuts nothing")
	}
	return nil
}

// DefaultNodeKind is the kind of node that this machine runs best, and, if that is not a real
// kubelet, a sentence that says why.
func DefaultNodeKind() (kind, because string) {
	if missing := missingOf(PartKubelets); len(missing) > 0 {
		return NodeKindBelay, missing[0] + " is not installed, so the nodes run belay's node agent and plain processes instead of kubelets and containers"
	}
	return NodeKindKubelet, ""
}

// nodeName is the name of the i-th node, counted from 1.
func nodeName(i int) string { return nodePrefix + strconv.Itoa(i) }

const nodePrefix = "node-"

func (o Options) nodeNames() []string {
	names := make([]string, 0, o.Nodes)
	for i := range o.Nodes {
		names = append(names, nodeName(i+1))
	}
	return names
}
