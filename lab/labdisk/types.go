package labdisk

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// The names of the drivers, one per personality.
const (
	// DriverDisk is a block device with exclusive attach: ext4, xfs or raw block.
	DriverDisk = "labdisk.belay.dev"
	// DriverShare is a directory that many nodes may write, each of which must be attached.
	DriverShare = "labshare.belay.dev"
	// DriverLocal is a directory that every node may write without attach (CSIDriver attachRequired=false), and without
	// NodeStageVolume.
	DriverLocal = "lablocal.belay.dev"
)

// Drivers lists every personality.
func Drivers() []string { return []string{DriverDisk, DriverShare, DriverLocal} }

// TopologyKey is the topology segment that every node and every volume carries. Its value is the fabric's zone
// (DefaultZone unless the node driver is given another): a volume reaches all nodes of its zone.
const TopologyKey = "topology.labdisk.belay.dev/zone"

// DefaultZone is the zone of a node whose driver was given none.
const DefaultZone = "lab"

// EpochKey is the key of publish_context that carries the epoch of the attachment, in decimal.
const EpochKey = "labdisk.belay.dev/epoch"

// Attachment says that a node holds a volume.
type Attachment struct {
	Driver string `json:"driver"`
	Volume string `json:"volume"` // volume handle
	Name   string `json:"name"`   // the name the volume was created under: pvc-...
	Node   string `json:"node"`
	// Epoch is unique over all attachments that the fabric ever made, and rising.
	Epoch    uint64 `json:"epoch"`
	ReadOnly bool   `json:"readOnly"`
	// Shared is true when the volume was published with an access mode of several nodes.
	Shared bool      `json:"shared"`
	Since  time.Time `json:"since"`
}

// Volume is one volume of the fabric.
type Volume struct {
	Driver      string       `json:"driver"`
	Handle      string       `json:"handle"`
	Name        string       `json:"name"`
	Bytes       int64        `json:"bytes"`
	Zone        string       `json:"zone"`
	Sequence    uint64       `json:"sequence"` // order of creation
	Created     time.Time    `json:"created"`
	Attachments []Attachment `json:"attachments,omitempty"`
}

// Node is a node as the fabric knows it.
type Node struct {
	Name string `json:"name"`
	Zone string `json:"zone"`
	// MaxVolumes bounds the volumes of one driver attached to the node at a time. 0, the default, is no bound.
	MaxVolumes int64 `json:"maxVolumes"`
	// Incarnation names one run of the node's host adapter; a node that was switched off and on has a new one.
	Incarnation string `json:"incarnation"`
	// Cut is true while all I/O of the node is refused: from Cut until a new incarnation registers.
	Cut bool `json:"cut"`
}

// Call is the record of one CSI call, of a controller or of a node.
type Call struct {
	Sequence uint64 `json:"sequence"`
	Method   string `json:"method"` // the RPC's name without its service: ControllerPublishVolume
	Driver   string `json:"driver"`
	// Controller is true for a call of the Identity or Controller service of the fabric, false for one of a node.
	Controller bool      `json:"controller"`
	Volume     string    `json:"volume,omitempty"` // volume handle; for CreateVolume the name asked for
	Node       string    `json:"node,omitempty"`
	Target     string    `json:"target,omitempty"` // staging or target path of a node's call
	Start      time.Time `json:"start"`
	End        time.Time `json:"end"`  // zero while the call is in flight
	Code       string    `json:"code"` // gRPC code by name, "OK"; empty while the call is in flight
	Message    string    `json:"message,omitempty"`
	Fault      string    `json:"fault,omitempty"` // id of the fault that was injected
	// Beside is the sequence of a ControllerPublishVolume or ControllerUnpublishVolume about the volume that was in flight when this call, another
	// one of them, began. A call that its caller has abandoned does not count. Calls of two nodes about a shared volume may be beside each other.
	Beside uint64 `json:"beside,omitempty"`
}

// attaches reports whether it is a call of which one at a time may be in flight for an exclusive volume.
func (c Call) attaches() bool {
	return c.Method == "ControllerPublishVolume" || c.Method == "ControllerUnpublishVolume"
}

// Writes are the writes of one node to one volume in one attachment that landed. What the fabric refused is no write but a Violation.
type Writes struct {
	Volume string `json:"volume"` // volume handle
	Node   string `json:"node"`
	// Epoch is that of the attachment; 0 without one.
	Epoch uint64 `json:"epoch"`
	Count int64  `json:"count"`
	// First is when the first one began, and Last when the last one so far had ended.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// Reasons why a write is a violation.
const (
	// NotHolder: the node does not hold the volume, or holds it in a newer epoch than the write names.
	NotHolder = "NotHolder"
	// SeveralHolders: more than one node holds an exclusive volume (only in permissive mode).
	SeveralHolders = "SeveralHolders"
	// NodeCut: the node was cut off by Cut.
	NodeCut = "NodeCut"
	// StaleIncarnation: the write comes from a host adapter that a newer one of the same node has replaced.
	StaleIncarnation = "StaleIncarnation"
	// ReadOnlyAttachment: the volume was published to the node read-only.
	ReadOnlyAttachment = "ReadOnlyAttachment"
)

// Violation is a write that the rules forbid. A strict fabric refused it (EIO), a permissive one let it land.
type Violation struct {
	Time    time.Time `json:"time"`
	Reason  string    `json:"reason"`
	Driver  string    `json:"driver"`
	Volume  string    `json:"volume"`
	Node    string    `json:"node"`
	Epoch   uint64    `json:"epoch"`
	Offset  int64     `json:"offset"`
	Length  int       `json:"length"`
	Path    string    `json:"path,omitempty"` // inside a shared directory
	Holders []string  `json:"holders"`        // the nodes that held the volume at that time
	Refused bool      `json:"refused"`
}

// Effects of a Fault.
const (
	// EffectDelay waits for Delay before the call is worked on. Every other effect may have a Delay as well.
	EffectDelay = "delay"
	// EffectError answers Code and Message without doing the work.
	EffectError = "error"
	// EffectHang holds the call before its work until the fault is cleared (the work is then done) or the caller
	// cancels (it is then not done).
	EffectHang = "hang"
	// EffectLostReply does the work and then answers Code, or, without a Code, nothing until the caller times out.
	EffectLostReply = "lost-reply"
	// EffectLimit answers RESOURCE_EXHAUSTED to ControllerPublishVolume for a node that holds Limit volumes already.
	EffectLimit = "limit"
	// EffectLate does the work after Delay, also if the caller has abandoned it by then. Calls for the same volume and node wait for it.
	EffectLate = "late"
	// EffectDisorder is EffectLate, and later calls for the same volume and node overtake it: what no CSI driver may do.
	EffectDisorder = "disorder"
)

// Fault changes what happens to the CSI calls it matches. An empty matcher matches everything.
type Fault struct {
	ID     string `json:"id"` // given by the fabric
	Method string `json:"method,omitempty"`
	Driver string `json:"driver,omitempty"`
	Volume string `json:"volume,omitempty"` // volume handle or the name it was created under
	Node   string `json:"node,omitempty"`

	Effect  string        `json:"effect"`
	Delay   time.Duration `json:"delay,omitempty"`   // nanoseconds on the wire
	Code    string        `json:"code,omitempty"`    // gRPC code by name: Unavailable, Internal, ...
	Message string        `json:"message,omitempty"` // default: names the fault
	Limit   int           `json:"limit,omitempty"`   // for EffectLimit

	// Count is how many calls the fault hits before it clears itself; 0 means until cleared.
	Count int `json:"count,omitempty"`
	Hits  int `json:"hits"`
}

// check returns an error that names the flag of "fault set" if no such fault can be set.
func (f Fault) check() error {
	if !slices.Contains(effects(), f.Effect) {
		return fmt.Errorf("the effect of a fault must be %s, not %q", strings.Join(effects(), ", "), f.Effect)
	}
	if f.Method != "" && !slices.Contains(methods(), f.Method) {
		return fmt.Errorf("--method is %q, but must be one of %s", f.Method, strings.Join(methods(), ", "))
	}
	if f.Driver != "" && !slices.Contains(Drivers(), f.Driver) {
		return fmt.Errorf("--driver is %q, but must be one of %s", f.Driver, strings.Join(Drivers(), ", "))
	}
	if f.Effect == EffectError && f.Code == "" {
		return fmt.Errorf("--code is empty, but the effect %s needs a gRPC code, such as Unavailable", EffectError)
	}
	if f.Code != "" {
		if _, err := parseCode(f.Code); err != nil {
			return err
		}
	}
	if f.Delay == 0 && slices.Contains([]string{EffectDelay, EffectLate, EffectDisorder}, f.Effect) {
		return fmt.Errorf("--delay is 0s, but the effect %s needs a delay above zero", f.Effect)
	}
	switch {
	case f.Delay < 0:
		return fmt.Errorf("--delay is %v, but must not be negative", f.Delay)
	case f.Count < 0:
		return fmt.Errorf("--count is %d, but must not be negative", f.Count)
	case f.Limit < 0:
		return fmt.Errorf("--limit is %d, but must not be negative", f.Limit)
	}
	return nil
}

func effects() []string {
	return []string{EffectDelay, EffectError, EffectHang, EffectLostReply, EffectLimit, EffectLate, EffectDisorder}
}

// methods are the RPCs of the services that the drivers have.
func methods() []string {
	var names []string
	for _, service := range []grpc.ServiceDesc{csi.Identity_ServiceDesc, csi.Controller_ServiceDesc, csi.Node_ServiceDesc} {
		for _, method := range service.Methods {
			names = append(names, method.MethodName)
		}
	}
	return names
}
