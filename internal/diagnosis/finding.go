package diagnosis

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
)

// APIVersion is the version of the JSON and YAML output. Fields are added within a version, and neither renamed nor removed.
const APIVersion = "cli.belay.dev/v1alpha1"

// Verdict is what a finding means for the reader.
type Verdict = explain.Verdict

// The verdicts, least severe first.
const (
	Clear      = explain.Clear
	NotVolume  = explain.NotForVolume
	InProgress = explain.InProgress
	Unknown    = explain.Unknown
	Blocked    = explain.Blocked
	Unsafe     = explain.Unsafe
)

// Explanation is the answer about one object.
type Explanation struct {
	metav1.TypeMeta `json:",inline"`

	// Subject is the object that was asked about.
	Subject Ref `json:"subject"`
	// Time is when the objects were read, by the clock of the API server.
	Time time.Time `json:"time"`
	// Verdict is the most severe of the findings.
	Verdict Verdict `json:"verdict"`
	// Reason and Summary are those of the first finding.
	Reason  decision.Reason `json:"reason"`
	Summary string          `json:"summary"`
	// Findings come most severe first.
	Findings []Finding `json:"findings"`
	// Unread lists what could not be read, so that the answer may lack it.
	Unread []Unread `json:"unread,omitempty"`
}

// Finding is one thing that is, or is not, as it should be.
type Finding struct {
	Verdict Verdict `json:"verdict"`
	// Reason is one word, with a section in docs/runbooks.
	Reason decision.Reason `json:"reason"`
	// Why is which of several causes of the reason it is, which differ in the next step; absent for a reason that has one.
	Why explain.Cause `json:"why,omitempty"`
	// Summary is one sentence: what waits, for what, because of whom.
	Summary string `json:"summary"`
	// Quote is what of the summary another component wrote: a narrow page may shorten it.
	Quote string `json:"-"`
	// Subject is what waits: a pod, or a claim, volume, VolumeAttachment or owner of pods that no pod waits for.
	Subject Ref `json:"subject"`
	// Since is when the wait began; absent if that is unknown.
	Since *time.Time `json:"since,omitempty"`
	// Volume is the volume that it is about, if there is one.
	Volume *Volume `json:"volume,omitempty"`
	// Holders are the nodes that have, or may have, the volume.
	Holders []Holder `json:"holders,omitempty"`
	// Facts are what the components did last and what they said.
	Facts []Fact `json:"facts,omitempty"`
	// Clock is what happens without anyone's help, and when.
	Clock []string `json:"clock,omitempty"`
	// Next are the steps that a person can take, in order.
	Next []explain.Step `json:"next,omitempty"`
	// Runbook is the path of the section about Reason in the documentation.
	Runbook string `json:"runbook,omitempty"`
}

// Having returns the holders that have the volume, or may have it. What waits for it has it not: a pod, and the node where a pod waits. A node lists a volume
// in use before it is attached, and another pod may use it there.
func (f *Finding) Having() []Holder {
	var having []Holder
	for _, h := range f.Holders {
		here := f.Volume != nil && f.Volume.WantedOn == h.Node.Name
		if here || !h.has() {
			h.Pods = slices.DeleteFunc(slices.Clone(h.Pods), func(p PodState) bool {
				return p.State == string(corev1.PodPending) || here && p.Namespace == f.Subject.Namespace && p.Name == f.Subject.Name
			})
		}
		if !here || len(h.Pods)+h.HiddenPods > 0 {
			having = append(having, h)
		}
	}
	return having
}

// has reports whether an object shows that the node has the volume.
func (h *Holder) has() bool {
	return h.Attached || h.Deleting != nil || h.InUse == "yes" || h.Reported == "yes"
}

// Cause is what findings have in common that differ only in what waits: the verdict, the reason, and the summary without the names of the pod and its
// volume. A reader has to act once.
func (f *Finding) Cause() string {
	names := []string{f.Subject.Name}
	if v := f.Volume; v != nil {
		names = append(names, v.PersistentVolume, v.Claim, v.Handle)
	}
	slices.SortFunc(names, func(a, b string) int { return len(b) - len(a) }) // a claim has the name of its pod in its own
	text := f.Summary
	for _, name := range names {
		if name != "" {
			text = strings.ReplaceAll(text, name, "*")
		}
	}
	return string(f.Verdict) + " " + string(f.Reason) + " " + text
}

// Volume is a volume of a pod: a PersistentVolume with its claim, or one without a claim.
type Volume struct {
	// Name is that in the spec of the pod that waits, and Kind the field of its source, or of its PersistentVolume's: "configMap", "csi".
	Name             string `json:"name,omitempty"`
	Kind             string `json:"kind,omitempty"`
	PersistentVolume string `json:"persistentVolume,omitempty"`
	// Namespace and Claim are empty if the reader may not read the namespace.
	Namespace string `json:"namespace,omitempty"`
	Claim     string `json:"claim,omitempty"`
	Driver    string `json:"driver,omitempty"`
	// InTree is set for a volume of an in-tree plugin, for which the CSI driver works.
	InTree      bool     `json:"inTree,omitempty"`
	Handle      string   `json:"handle,omitempty"`
	AccessModes []string `json:"accessModes,omitempty"`
	// WantedOn is the node of the pod that waits.
	WantedOn string `json:"wantedOn,omitempty"`
}

// Holder is a node that has a volume, or may have it.
type Holder struct {
	Node NodeState `json:"node"`
	// Attachment is the name of the VolumeAttachment, empty if there is none.
	Attachment string `json:"attachment,omitempty"`
	// Attached is status.attached; Deleting is set when the VolumeAttachment is being deleted.
	Attached bool       `json:"attached,omitempty"`
	Since    *time.Time `json:"since,omitempty"`
	Deleting *time.Time `json:"deleting,omitempty"`
	// InUse and Reported are the node's lists: status.volumesInUse and status.volumesAttached.
	InUse    string `json:"inUse"`
	Reported string `json:"reported"`
	// Pods are those that use the volume on the node, and may be named.
	Pods []PodState `json:"pods,omitempty"`
	// HiddenPods counts those in namespaces that the reader may not read.
	HiddenPods int `json:"hiddenPods,omitempty"`
	// PodsUnknown is set when the pods that use the volume there could not all be read.
	PodsUnknown bool `json:"podsUnknown,omitempty"`
}

// NodeState is a node and whether it is alive.
type NodeState struct {
	Name string `json:"name"`
	// State is "Ready", "NotReady" (its kubelet says so), "Unreachable" (its kubelet is silent), "Deleted" or "Unknown".
	State string `json:"state"`
	// Since is when the state began.
	Since *time.Time `json:"since,omitempty"`
	// LastHeartbeat is the last renewal of the node's lease.
	LastHeartbeat *time.Time `json:"lastHeartbeat,omitempty"`
	OutOfService  bool       `json:"outOfService,omitempty"`
}

// lostSince is since when a node does not work that is not Ready, or is silent: since it was heard last, however late it was found not Ready.
func (n NodeState) lostSince() time.Time {
	first := n.LastHeartbeat
	if n.State == NodeNotReady || n.State == NodeUnreachable {
		first = earlier(first, n.Since)
	}
	if first == nil {
		return time.Time{}
	}
	return *first
}

// is says the state in words. subject is "the node", or "node" with its name.
func (n NodeState) is(subject string) string {
	if n.State == NodeDeleted {
		return "its Node was deleted"
	}
	return subject + " is " + n.State
}

// The states of a node.
const (
	NodeReady       = "Ready"
	NodeNotReady    = "NotReady"
	NodeUnreachable = "Unreachable"
	NodeDeleted     = "Deleted"
	NodeUnknown     = "Unknown"
)

// PodState is a pod that uses a volume.
type PodState struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Owner is "StatefulSet/db", empty for a pod without a controller.
	Owner string `json:"owner,omitempty"`
	// State is the phase, or "Terminating".
	State string     `json:"state"`
	Since *time.Time `json:"since,omitempty"`
}

// Fact is what one component did or said last.
type Fact struct {
	// Component is "scheduler", "attach/detach controller", "attacher", "driver", "kubelet", "recovery" or "node".
	Component string     `json:"component"`
	Message   string     `json:"message"`
	At        *time.Time `json:"at,omitempty"`
}
