package diagnosis

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// GonePlan is what a person's word that a machine is gone would do, and what has to be true before that.
type GonePlan struct {
	metav1.TypeMeta `json:",inline"`

	Subject Ref `json:"subject"`
	// NodeID is that of the machine.
	NodeID string `json:"nodeID"`
	// Attachments are the VolumeAttachments that would be declared.
	Attachments []GoneAttachment `json:"attachments,omitempty"`
	// Preconditions are what was checked.
	Preconditions []Precondition `json:"preconditions,omitempty"`
	// By and Reason are what would be written.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Does says in words what follows, and Risks what may be lost.
	Does  []string `json:"does,omitempty"`
	Risks []string `json:"risks,omitempty"`
	// Refusal is why it is not done.
	Refusal string         `json:"refusal,omitempty"`
	Next    []explain.Step `json:"next,omitempty"`
	Unread  []Unread       `json:"unread,omitempty"`
}

// GoneAttachment is a VolumeAttachment whose machine is declared gone.
type GoneAttachment struct {
	Name string `json:"name"`
	Node string `json:"node"`
	// NodeID is the recorded one.
	NodeID           string `json:"nodeID"`
	Driver           string `json:"driver"`
	PersistentVolume string `json:"persistentVolume,omitempty"`
	Handle           string `json:"handle,omitempty"`
	// UID and ResourceVersion are those that were looked at: the request fails for any other.
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
	// DetachError is what the attacher said last.
	DetachError string     `json:"detachError,omitempty"`
	Deleting    *time.Time `json:"deleting,omitempty"`
}

// GoneRequest is what a person says.
type GoneRequest struct {
	// NodeID is the ID that the person has looked for at the cloud or the storage.
	NodeID, Reason string
}

// Declaration returns what is written on one of the attachments of a plan.
func (p *GonePlan) Declaration(a *GoneAttachment, now time.Time) kube.Declaration {
	return kube.Declaration{UID: types.UID(a.UID), ResourceVersion: a.ResourceVersion, NodeID: a.NodeID, By: p.By, Reason: p.Reason, At: now.UTC().Truncate(time.Second)}
}

// PlanDeclareGone returns what the statement would do that the machine of a VolumeAttachment, or of all VolumeAttachments of a node that have the node
// ID, is gone together with its attachments.
func PlanDeclareGone(s *Snapshot, subject Ref, request GoneRequest, author Author) (GonePlan, error) {
	x := newState(s)
	p := GonePlan{
		TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: "GonePlan"}, Subject: subject, NodeID: request.NodeID,
		By: author.Name, Reason: request.Reason, Unread: s.Unread,
	}
	found, err := x.goneAttachments(subject)
	if err != nil {
		return p, err
	}
	said := precondition("node ID", request.NodeID != "", "--node-id is the ID that you have looked for; recorded: %s", strings.Join(recordedIDs(found), ", "))
	chosen := slices.DeleteFunc(slices.Clone(found), func(va *storagev1.VolumeAttachment) bool {
		return va.Annotations[kube.NodeIDAnnotation] != request.NodeID || subject.Resource == Nodes && !x.awaitsDetach(va)
	})
	said.Met = said.Met && len(chosen) > 0
	for _, va := range chosen {
		p.Attachments = append(p.Attachments, x.goneAttachment(va))
	}
	p.Preconditions = append([]Precondition{said,
		precondition("reason", strings.TrimSpace(request.Reason) != "" && len(request.Reason) <= longestReason, "--reason says how you know that the machine and its attachments are gone, in at most %d bytes", longestReason),
		x.allAwaitDetach(chosen), x.noNodeHas(request.NodeID), x.nodesKnown(chosen), x.noneInUse(chosen),
	}, author.preconditions("patch VolumeAttachments")...)
	p.Risks = []string{"if the machine still has a volume, two machines may write to it, and the file system is corrupted; if the volume is still attached, the driver may refuse to attach it elsewhere"}
	var lacking []string
	for _, c := range p.Preconditions {
		if !c.Met {
			lacking = append(lacking, c.Name)
		}
	}
	if len(lacking) > 0 {
		p.Refusal = "not all that the statement needs is true: " + strings.Join(lacking, ", ")
		if subject.Resource == Attachments {
			p.Next = []explain.Step{{Text: "See what the VolumeAttachment waits for.", Command: "kubectl belay explain va/" + subject.Name}}
		}
		return p, nil
	}
	p.Does = []string{
		fmt.Sprintf("writes the annotation %s on %d VolumeAttachments, which is the record of it", kube.DeclaredGoneAnnotation, len(p.Attachments)),
		"belay-attacher then removes its finalizer without the driver's confirmation, if it still finds no node with this ID; csi-attacher does not know the annotation",
	}
	if others := len(found) - len(chosen); others > 0 {
		p.Does = append(p.Does, fmt.Sprintf("leaves out %d other VolumeAttachments of the node, which have another node ID or are not being deleted", others))
	}
	return p, nil
}

// goneAttachments are the VolumeAttachments that a statement may be about.
func (x *state) goneAttachments(subject Ref) (found []*storagev1.VolumeAttachment, err error) {
	if subject.Resource == Attachments {
		if va := x.attachments[subject.Name]; va != nil {
			return []*storagev1.VolumeAttachment{va}, nil
		}
		return nil, x.missing(subject)
	}
	if !slices.Contains(x.Whole, Attachments) {
		return nil, x.missing(Ref{Resource: Attachments})
	}
	for _, va := range x.Attachments {
		if va.Spec.NodeName == subject.Name {
			found = append(found, va)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("node %s has no VolumeAttachments", subject.Name)
	}
	slices.SortFunc(found, func(a, b *storagev1.VolumeAttachment) int { return cmp.Compare(a.Name, b.Name) })
	return found, nil
}

func recordedIDs(all []*storagev1.VolumeAttachment) (ids []string) {
	for _, va := range all {
		ids = append(ids, cmp.Or(va.Annotations[kube.NodeIDAnnotation], "(none)"))
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func (x *state) goneAttachment(va *storagev1.VolumeAttachment) GoneAttachment {
	a := GoneAttachment{
		Name: va.Name, Node: va.Spec.NodeName, NodeID: va.Annotations[kube.NodeIDAnnotation], Driver: va.Spec.Attacher,
		PersistentVolume: kube.SourceName(va), UID: string(va.UID), ResourceVersion: va.ResourceVersion,
	}
	if key, ok := x.volumeOf(va); ok {
		a.Handle = key.Handle
	}
	if e := va.Status.DetachError; e != nil {
		a.DetachError = x.foreign(kube.ErrorText(e))
	}
	if va.DeletionTimestamp != nil {
		a.Deleting = timePointer(va.DeletionTimestamp.Time)
	}
	return a
}

// awaitsDetach reports whether a VolumeAttachment waits for its attacher's confirmation.
func (x *state) awaitsDetach(va *storagev1.VolumeAttachment) bool {
	return va.DeletionTimestamp != nil && slices.Contains(va.Finalizers, kube.AttacherFinalizer(va.Spec.Attacher))
}

func (x *state) allAwaitDetach(all []*storagev1.VolumeAttachment) Precondition {
	for _, va := range all {
		if !x.awaitsDetach(va) {
			return precondition("detach", false, "VolumeAttachment %s is not being deleted, or not held by its attacher: what is wanted is never declared. Delete it first, with --wait=false", va.Name)
		}
	}
	return precondition("detach", true, "each VolumeAttachment is being deleted and waits for its attacher")
}

// noNodeHas looks for a node with the ID: in the CSINodes, and in what drivers and clouds write on Nodes.
func (x *state) noNodeHas(id string) Precondition {
	if id == "" || !slices.Contains(x.Whole, Nodes) || !slices.Contains(x.Whole, CSINodes) {
		return precondition("machine", false, "whether a node has this ID is unknown: all Nodes and CSINodes have to be read")
	}
	if name := x.registeredAs(id); name != "" {
		return precondition("machine", false, "CSINode %s has this ID: the machine is part of the cluster", name)
	}
	for _, node := range x.Nodes {
		if nodeHasID(node, id) {
			return precondition("machine", false, "Node %s has this ID: the machine is part of the cluster", node.Name)
		}
	}
	return precondition("machine", true, "no Node and no CSINode has this ID")
}

// nodeHasID reports whether a Node carries the ID: as its name, in the annotation of drivers' node IDs, or at the end of its provider ID.
func nodeHasID(node *corev1.Node, id string) bool {
	ids := map[string]string{}
	_ = json.Unmarshal([]byte(node.Annotations[kube.CSINodeIDsAnnotation]), &ids) // what is malformed names no ID
	for _, known := range ids {
		if known == id {
			return true
		}
	}
	return node.Name == id || node.Spec.ProviderID == id || strings.HasSuffix(node.Spec.ProviderID, "/"+id)
}

// nodesKnown: a Node of the name that exists has registered the driver, with another ID. Otherwise its ID is not known yet.
func (x *state) nodesKnown(all []*storagev1.VolumeAttachment) Precondition {
	for _, va := range all {
		if x.nodes[va.Spec.NodeName] != nil && x.onNode(va.Spec.Attacher, va.Spec.NodeName) != decision.Yes {
			return precondition("node", false, "Node %s exists, and driver %s has not registered there: whether it is this machine is unknown", va.Spec.NodeName, va.Spec.Attacher)
		}
	}
	return precondition("node", true, "the Node of the name does not exist, or another machine has registered as it")
}

// noneInUse: the Node of the name lists none of the volumes in use. Other nodes may list one that they wait for.
func (x *state) noneInUse(all []*storagev1.VolumeAttachment) Precondition {
	for _, va := range all {
		node := x.nodes[va.Spec.NodeName]
		if node == nil {
			continue
		}
		key, known := x.volumeOf(va)
		if !known && len(node.Status.VolumesInUse) > 0 || known && kube.InUse(node, kube.UniqueVolumeName(key.Driver, key.Handle)) {
			return precondition("use", false, "Node %s lists the volume of VolumeAttachment %s in use, or may do so", va.Spec.NodeName, va.Name)
		}
	}
	return precondition("use", true, "no Node of the name lists a volume of these in use")
}
