// Package drivers has what is known about CSI drivers: what their answers mean, and what becomes of a call that was abandoned.
package drivers

import (
	_ "embed" // facts.yaml
	"fmt"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"belay.dev/belay/internal/decision"
)

//go:embed facts.yaml
var data []byte

// NotRead is the source of a fact that has not been read.
const NotRead = "not read"

// Facts are what is known about one driver. What has not been read is Unknown, or missing.
type Facts struct {
	Driver     string                 `json:"driver"` // the CSI name
	Title      string                 `json:"title"`
	Repository string                 `json:"repository"`
	Version    string                 `json:"version"`
	Commit     string                 `json:"commit,omitempty"` // if Version is no tag
	NodeID     NodeID                 `json:"nodeID"`
	Lists      Lists                  `json:"lists"`
	Answers    map[Situation][]Answer `json:"answers"`
	Late       Late                   `json:"late"`
	// Ask is how to ask the driver's storage where a volume is attached.
	Ask Ask `json:"ask"`
	// Rights are what the storage calls the permissions that calls need.
	Rights Rights `json:"rights"`
}

// Rights are the names of permissions.
type Rights struct {
	For    map[Call]string `json:"for,omitempty"`
	Source string          `json:"source,omitempty"`
}

// Ask is a command of the storage's own client.
type Ask struct {
	Command       string `json:"command,omitempty"` // HANDLE stands for the volume's handle
	Documentation string `json:"documentation,omitempty"`
	Place         string `json:"place,omitempty"` // where people look if there is no command: "in vCenter"
	None          string `json:"none,omitempty"`  // sets a volume to available that is in use, while no machine has it
}

// NodeID is the form of the driver's node IDs.
type NodeID struct {
	Form    string `json:"form,omitempty"`
	Example string `json:"example,omitempty"`
	Source  string `json:"source"`
}

// Lists is what the driver's ListVolumes shows.
type Lists struct {
	Volumes        *bool  `json:"volumes,omitempty"`
	PublishedNodes *bool  `json:"publishedNodes,omitempty"`
	Note           string `json:"note,omitempty"`
	Source         string `json:"source"`
}

// Situation is what a driver's answer may be about.
type Situation string

// The situations.
const (
	AttachedElsewhere Situation = "attachedElsewhere" // the volume is attached to another node
	NodeFull          Situation = "nodeFull"
	UnknownNode       Situation = "unknownNode" // the driver does not know a node of this ID
	VolumeGone        Situation = "volumeGone"
	Busy              Situation = "busy" // another operation is under way; this one was not begun
	RateLimit         Situation = "rateLimit"
	Quota             Situation = "quota"
	Credentials       Situation = "credentials" // the storage refuses the driver's own credentials, or they lack a right
	WrongZone         Situation = "wrongZone"   // the volume cannot be reached from the node's zone
	Damaged           Situation = "damaged"     // a check found errors in the file system that it did not correct
	WrongFileSystem   Situation = "wrongFileSystem"
	ServerFailing     Situation = "serverFailing" // the storage's server does not answer the node, or refuses it
	NotPermitted      Situation = "notPermitted"  // the storage refuses a change of ownership or of permissions
	Unsupported       Situation = "unsupported"   // the driver cannot do what the request asks for, however often it is repeated

	KeyUnusable     Situation = "keyUnusable"   // the storage cannot use the key of an encrypted volume
	Vanished        Situation = "vanished"      // the volume was gone as soon as it was created
	Repeated        Situation = "repeated"      // an earlier attempt to create it had other parameters, or its volume is gone
	PolicyMissing   Situation = "policyMissing" // the storage has no policy of that name
	NoDatastore     Situation = "noDatastore"   // no datastore fits the policy, or is reached from each node
	ExportDenied    Situation = "exportDenied"  // a file server lets the provisioner write nothing
	Unreachable     Situation = "unreachable"   // the driver does not reach the interface of the storage
	Certificate     Situation = "certificate"   // the driver does not trust the certificate of the storage
	DeviceName      Situation = "deviceName"    // the name that the driver chose for the device is taken
	DeviceMissing   Situation = "deviceMissing" // the device of an attached volume does not appear on the node
	DeviceBusy      Situation = "deviceBusy"    // something on the node holds the device
	MountBusy       Situation = "mountBusy"     // a mount on the node is in the way of another one
	ReadOnly        Situation = "readOnly"      // the device is read-only on the node
	StaleMount      Situation = "staleMount"    // what served a mount on the node has ended
	NoSpace         Situation = "noSpace"
	OpenFiles       Situation = "openFiles"       // a limit of open files or of watchers is reached
	NFSVersion      Situation = "nfsVersion"      // the server or the node does not have the version that is asked for
	Blocklisted     Situation = "blocklisted"     // the storage refuses the node's address
	ImageInUse      Situation = "imageInUse"      // another client has the image open, which no list of the driver shows
	SourceMissing   Situation = "sourceMissing"   // an object that the volume refers to, and that the driver reads
	ProviderMissing Situation = "providerMissing" // a program that the driver calls on the node
	ModuleMissing   Situation = "moduleMissing"   // a module of the node's kernel
	DaemonMissing   Situation = "daemonMissing"   // a daemon of the node
	TokenMissing    Situation = "tokenMissing"    // a service account token of the pod
	NoCredentials   Situation = "noCredentials"   // the driver finds no credentials to send
	HostProgram     Situation = "hostProgram"     // a program of the node that the driver runs
	DriverProgram   Situation = "driverProgram"   // a program that the driver's image lacks
	Passphrase      Situation = "passphrase"      // the passphrase of an encrypted volume is missing or wrong
	VolumeError     Situation = "volumeError"     // the storage has the volume in an error state
	NotReady        Situation = "notReady"        // the storage has not made the volume ready for the node
)

// Situations lists the situations that answers of one driver are known for.
func Situations() []Situation {
	return []Situation{AttachedElsewhere, NodeFull, UnknownNode, VolumeGone, Busy, RateLimit}
}

// AllSituations lists the situations.
func AllSituations() []Situation {
	return append(Situations(), Quota, Credentials, WrongZone, Damaged, WrongFileSystem, ServerFailing, NotPermitted, Unsupported,
		KeyUnusable, Vanished, Repeated, PolicyMissing, NoDatastore, ExportDenied, Unreachable, Certificate, DeviceName, DeviceMissing, DeviceBusy, MountBusy, ReadOnly,
		StaleMount, NoSpace, OpenFiles, NFSVersion, Blocklisted, ImageInUse, SourceMissing, ProviderMissing, ModuleMissing, DaemonMissing, TokenMissing, VolumeError, NotReady, NoCredentials, HostProgram, DriverProgram,
		Passphrase)
}

// Call is the call that was answered.
type Call string

// The calls.
const (
	Create    Call = "create" // CreateVolume; the facts say nothing of it
	Delete    Call = "delete" // DeleteVolume, as Create
	Publish   Call = "publish"
	Unpublish Call = "unpublish"
	Mount     Call = "mount" // NodeStageVolume or NodePublishVolume, or what kubelet does to the mounted volume
)

// AnyCode is the code of an answer that may have each.
const AnyCode = "any"

// Answer is what a driver returns in a situation.
type Answer struct {
	Call    Call     `json:"call,omitempty"`
	Code    string   `json:"code,omitempty"`  // as gRPC prints it, or AnyCode
	Text    []string `json:"text,omitempty"`  // all are part of the message
	Where   string   `json:"where,omitempty"` // an expression whose group is the machine that the message says has the volume
	Example string   `json:"example,omitempty"`
	Note    string   `json:"note,omitempty"`
	Or      string   `json:"or,omitempty"`    // what the message may mean instead, for "in use elsewhere, or OR"
	Never   bool     `json:"never,omitempty"` // the driver has no such answer
	Source  string   `json:"source"`
}

// Late is what becomes of a publish that its caller has abandoned.
type Late struct {
	TooEarly *bool            `json:"okTooEarly,omitempty"`
	Ends     *metav1.Duration `json:"ends,omitempty"`
	Note     string           `json:"note,omitempty"`
	Source   string           `json:"source"`
}

// OKTooEarly is whether the driver answers OK to an unpublish while a publish to the same node, which its caller has abandoned, may
// still take effect.
func (f Facts) OKTooEarly() decision.Knowledge {
	if f.Late.TooEarly == nil {
		return decision.Unknown
	}
	return decision.Known(*f.Late.TooEarly)
}

// EndsAfter is how long after its start an abandoned publish has ended for sure; known is false if no such time is known.
func (f Facts) EndsAfter() (after time.Duration, known bool) {
	if f.Late.Ends == nil {
		return 0, false
	}
	return f.Late.Ends.Duration, true
}

// Known reports whether the file knows what the driver answers to the call in the situation: another answer is not about it.
func (f Facts) Known(call Call, situation Situation) bool {
	for _, a := range f.Answers[situation] {
		if a.Never || a.Call == call {
			return true
		}
	}
	return false
}

func containsAll(message string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(message, part) {
			return false
		}
	}
	return true
}

var load = sync.OnceValue(func() (all contents) {
	if err := yaml.UnmarshalStrict(data, &all); err != nil {
		panic(fmt.Sprintf("facts.yaml, which the program was built with: %v", err))
	}
	return all
})

// contents are those of the file.
type contents struct {
	Drivers []Facts `json:"drivers"`
	Words   []Words `json:"words"`
}

// All returns the facts of all drivers, in the order of the file.
func All() []Facts { return load().Drivers }

// Of returns the facts of the driver with this CSI name; ok is false for one that the file does not know.
func Of(name string) (facts Facts, ok bool) {
	for _, f := range All() {
		if f.Driver == name {
			return f, true
		}
	}
	return Facts{}, false
}
