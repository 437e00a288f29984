package nodevolume

import (
	"time"

	"belay.dev/belay/internal/decision"
)

// Knowledge is [decision.Knowledge].
type Knowledge = decision.Knowledge

// The values of Knowledge.
const (
	Unknown = decision.Unknown
	No      = decision.No
	Yes     = decision.Yes
)

// Phase is the state of a stage or a publish. It is kept in a record on disk; without a record it is Absent.
type Phase int

const (
	// Absent: the driver has not been called since it last confirmed the unpublish or unstage.
	Absent Phase = iota
	// Uncertain: the driver was called and the result is unknown, or it may have been undone since by a reboot.
	Uncertain
	// Confirmed: the driver confirmed the call.
	Confirmed
)

// String returns the name used in records.
func (p Phase) String() string { return [...]string{"Absent", "Uncertain", "Confirmed"}[p] }

// Demand is what a pod needs from the volume, according to its owner.
type Demand int

const (
	// DemandUnknown: the pod is known only from a record, and its owner has not reported it yet.
	DemandUnknown Demand = iota
	// Wanted: the volume should be mounted for the pod.
	Wanted
	// Released: the pod's containers have ended.
	Released
	// Ending: the pod's object is gone or has a final phase, but its containers may still run and keep what they have.
	Ending
)

// String returns the name used in logs.
func (c Demand) String() string { return [...]string{"Unclaimed", "Wanted", "Released", "Ending"}[c] }

// PublishKey identifies one publish of a volume.
type PublishKey struct {
	PodUID string
	// SpecName is the name of the PersistentVolume, or of an inline volume in pod.spec.volumes. Two PersistentVolumes may share a
	// handle, so a volume can be published twice for one pod.
	SpecName string
}

// Pod is a publish that is wanted or may exist.
type Pod struct {
	Key     PublishKey
	Demand  Demand
	Publish Phase
	// Inherited: see [MountState].
	Inherited bool
	// LastConfirmed is when the driver confirmed the publish, if Publish is Confirmed.
	LastConfirmed Confirmation
	// Leaving: the pod is being deleted. Its containers may still run and keep what they have, but nothing is renewed.
	Leaving bool
	// Label is the SELinux label that the pod wants the volume mounted with, empty for none. It is not valid while AttachRequired
	// is Unknown.
	Label string
	// PublishedLabel is the label with which the volume is, or may be, published.
	PublishedLabel string
	// SolePod: the PersistentVolume has only the access mode ReadWriteOncePod.
	SolePod bool
	// ReadOnly: the pod may not write, so no file system is expanded for it.
	ReadOnly bool
	Failure  Failure
}

// Confirmation is when this agent saw the driver confirm a publish. The zero value means that an earlier agent did, at an unknown
// time.
type Confirmation struct {
	At time.Time
	// Jitter in [0, 1) delays the renewal of the publish by up to half the period.
	Jitter float64
}

// Failure counts the failures in a row of the work for one pod, or of the unstage.
type Failure struct {
	// Count is the number of failures since the last success. With zero there is no back-off.
	Count int
	// At is when the last failure was seen. The caller clears it when something changes that the work may have been waiting for;
	// the work is then retried at once.
	At time.Time
	// Jitter in [0, 1) extends the back-off by up to a tenth.
	Jitter float64
	// AtMost limits the back-off before Jitter; 0 means the default.
	AtMost time.Duration
}

// Desired is what the pods want from one volume.
type Desired struct {
	// Pods in the order of their arrival, including those that may have the volume published. The pod for which the volume was
	// staged is among them until its owner releases it, even if nothing is published for it.
	Pods []Pod
}

// Node is what the newest known Node says about the volume.
type Node struct {
	InUse    Knowledge
	Attached Knowledge
	// Changes has another value whenever what is known about the volume on the Node has changed.
	Changes int
}

// Attachment is the VolumeAttachment as read from the API server since the last call; see [Lookup].
type Attachment struct {
	// Attached is Unknown until it is read, and No if it is being deleted.
	Attached Knowledge
	UID      string
	// Metadata is passed to the driver as publish context.
	Metadata map[string]string
}

// Driver is the volume's driver on this node.
type Driver struct {
	Registered bool
	// Stages: the driver has the capability STAGE_UNSTAGE_VOLUME.
	Stages Knowledge
	// RepublishEvery is the period after which a confirmed publish is repeated, for drivers that ask for it
	// (CSIDriver.spec.requiresRepublish); zero for never.
	RepublishEvery time.Duration
}

// Stage is the record of the volume's stage.
type Stage struct {
	Phase Phase
	// AttachmentUID is the UID of the VolumeAttachment with which the volume was staged; empty if none was needed or the record was
	// lost.
	AttachmentUID string
	// Label is the SELinux label with which the volume was staged, empty for none.
	Label string
}

// Observed is a snapshot of what is known about one volume.
type Observed struct {
	// Inline: the volume is one pod's own (pod.spec.volumes[].csi, KEP-596). The driver creates it in NodePublishVolume and
	// destroys it in NodeUnpublishVolume. It is never attached, listed in use or staged.
	Inline bool
	Node   Node
	// AttachRequired is Yes when the driver's CSIDriver says so or does not exist, Unknown until the CSIDrivers have been listed.
	AttachRequired Knowledge
	// RecordedInUse: a record of the volume was made under the volumesInUse handshake. The volume stays listed until that record is
	// gone, whatever the CSIDriver says now.
	RecordedInUse bool
	// Unaccounted: the volume may be mounted here without a record, because a record cannot be read or a kubelet ran here before.
	Unaccounted bool
	Attachment  Attachment
	Driver      Driver
	Stage       Stage
	// Unstage is the failure that delays the unstage.
	Unstage Failure
	Users   Users
	Growth  Growth
}

// Users reports whether something besides the agent's own mounts uses the volume on this machine: a container that still runs, or a
// process that copied the mounts.
type Users struct {
	// Found is Unknown until a search since the last step, and Yes also if the search failed.
	Found Knowledge
	// Search counts the searches in a row that found users.
	Search Failure
}

// Step is something to do. The set is sealed.
type Step interface{ step() }

// The steps. The next decision depends on the reply to each.
type (
	// ReadCapabilities reads the driver's capabilities, for the pod.
	ReadCapabilities struct{ For PublishKey }
	// ReadAttachment reads the VolumeAttachment from the API server, for the pod.
	ReadAttachment struct{ For PublishKey }
	// StageVolume writes a record and calls NodeStageVolume, with the pod's options and the SELinux label, if any.
	StageVolume struct {
		For   PublishKey
		Label string
	}
	// Publish writes a record and calls NodePublishVolume, with the same label.
	Publish struct {
		Key   PublishKey
		Label string
	}
	// Republish calls NodePublishVolume again for a confirmed publish, with up-to-date pod information. The record does not change,
	// whatever the driver replies.
	Republish struct{ Key PublishKey }
	// Unpublish calls NodeUnpublishVolume and removes the record.
	Unpublish struct{ Key PublishKey }
	// Unstage calls NodeUnstageVolume and removes the record.
	Unstage struct{}
	// LookForUsers searches for users of what the next call would take away: the publish of a pod, or the stage if Key is zero.
	LookForUsers struct{ Key PublishKey }
)

func (ReadCapabilities) step() {}
func (ReadAttachment) step()   {}
func (StageVolume) step()      {}
func (Publish) step()          {}
func (Republish) step()        {}
func (Unpublish) step()        {}
func (Unstage) step()          {}
func (LookForUsers) step()     {}

// Wait is the reason why nothing is done for a pod now.
type Wait struct {
	// Key identifies the pod; the zero value stands for the unstage.
	Key    PublishKey
	Reason Reason
}

// Decision is the result of [Decide].
type Decision struct {
	// InUse is whether node.status.volumesInUse should list the volume: Yes, No, or Unknown to leave it as it is. It is a wish and
	// not a step, because the list has one writer for all volumes; the result is seen in Observed.Node. Pass it to the InUseList
	// before asking that for another write: a write based on an older wish could remove an entry that this decision relies on.
	InUse Knowledge
	// Next is the next step; nil if there is none.
	Next Step
	// Waits are in the order of the pods. With a Next they are incomplete.
	Waits []Wait
	// RecheckAt is when a back-off ends or a publish has to be renewed. If zero, only a change can lead to another decision.
	RecheckAt time.Time
	// Forget: nothing of the volume is left here and no pod wants it.
	Forget bool
	// Dropped are the pods that [VolumeState.Decide] has dropped.
	Dropped []PublishKey
}

// Reason is why the volume waits for a pod.
type Reason = decision.Reason

// The reasons, in the order in which a mount meets them, then those of an unmount.
const (
	AttachabilityUnknown     Reason = "AttachabilityUnknown"
	NodeUnknown              Reason = "NodeUnknown"
	NotReportedInUse         Reason = "NotReportedInUse"
	NotAttached              Reason = "NotAttached"
	DriverNotRegistered      Reason = "DriverNotRegistered"
	OtherSELinuxLabelWanted  Reason = "OtherSELinuxLabelWanted"
	OtherSELinuxLabelMounted Reason = "OtherSELinuxLabelMounted"
	OtherPodMounted          Reason = "OtherPodMounted"
	UnaccountedMount         Reason = "UnaccountedMount"
	BackingOff               Reason = "BackingOff"
	AttachmentNotReady       Reason = "AttachmentNotReady"
	AttachmentReplaced       Reason = "AttachmentReplaced"
	OwnerSilent              Reason = "OwnerSilent"
	ContainersMayRun         Reason = "ContainersMayRun"
	StillMountedElsewhere    Reason = "StillMountedElsewhere"
	InUseNotCleared          Reason = "InUseNotCleared"
)

// exits names what ends each wait.
var exits = decision.Exits{
	AttachabilityUnknown:     {By: "the CSIDrivers are listed"},
	NodeUnknown:              {By: "the Node is read"},
	NotReportedInUse:         {By: "the Node lists the volume in status.volumesInUse"},
	NotAttached:              {By: "the Node lists the volume in status.volumesAttached"},
	DriverNotRegistered:      {By: "the driver registers"},
	OtherSELinuxLabelWanted:  {By: "the pod with the other label releases the volume"},
	OtherSELinuxLabelMounted: {By: "the volume is unmounted"},
	OtherPodMounted:          {By: "the other pod releases the volume"},
	UnaccountedMount:         {By: "the agent restarts after the mount or the record was removed, or records the mount for a pod that wants it"},
	BackingOff:               {By: "the back-off ends, or what the volume may have waited for changes", Timed: true},
	AttachmentNotReady:       {By: "the VolumeAttachment is read again", Timed: true},
	AttachmentReplaced:       {By: "the pods on the earlier attachment release the volume"},
	OwnerSilent:              {By: "the pod is set or removed"},
	ContainersMayRun:         {By: "the container runtime or its lock reports that the containers have ended"},
	StillMountedElsewhere:    {By: "the process ends, or the mount tables are read again", Timed: true},
	InUseNotCleared:          {By: "the Node does not list the volume in status.volumesInUse any more"},
}

// Reasons lists all reasons, in alphabetical order.
func Reasons() []Reason { return exits.Reasons() }
