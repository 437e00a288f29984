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

// Phase is how far a stage or a publish has come. It is kept in a record on
// disk: Absent is the absence of one.
type Phase int

// The phases.
const (
	// Absent: the driver was not called since it last confirmed the way back.
	Absent Phase = iota
	// Uncertain: the driver was called and nobody knows what it did, or what it
	// did may have been undone since (a reboot).
	Uncertain
	// Confirmed: the driver said that it is done.
	Confirmed
)

// String is the phase in a word, as records spell it.
func (p Phase) String() string { return [...]string{"Absent", "Uncertain", "Confirmed"}[p] }

// Demand is what a pod's owner says about the pod.
type Demand int

// The claims.
const (
	// DemandUnknown: the pod is known from a record only and its owner has not spoken.
	DemandUnknown Demand = iota
	// Wanted: the volume shall be mounted for the pod.
	Wanted
	// Released: the pod's containers have ended.
	Released
	// Ending: the pod is over by its object, and its containers may run. They keep what they have.
	Ending
)

// String is the claim in a word.
func (c Demand) String() string { return [...]string{"Unclaimed", "Wanted", "Released", "Ending"}[c] }

// PublishKey names one publish of a volume.
type PublishKey struct {
	PodUID string
	// SpecName is the PersistentVolume's name, or that of an inline volume in
	// pod.spec.volumes. Two PersistentVolumes may share a handle, and so one volume can
	// be published twice for a pod.
	SpecName string
}

// Pod is one publish that somebody wants or that may exist.
type Pod struct {
	Key     PublishKey
	Demand  Demand
	Publish Phase
	// Inherited: see [MountState].
	Inherited bool
	// LastConfirmed is when the driver confirmed the publish, if it is Confirmed.
	LastConfirmed Confirmation
	// Leaving: the pod is being deleted. Its containers may still run, and keep what
	// they have, but nothing is renewed for them.
	Leaving bool
	// Label is the SELinux label that the pod wants the volume mounted with, empty for
	// none. It means nothing while AttachRequired is Unknown.
	Label string
	// PublishedLabel is the one with which it is, or may be, published.
	PublishedLabel string
	// SolePod: the only access mode of the PersistentVolume that the pod uses is ReadWriteOncePod.
	SolePod bool
	// ReadOnly: the pod may not write, and so no file system is expanded for it.
	ReadOnly bool
	Failure  Failure
}

// Confirmation is when this agent last heard the driver confirm a publish. Its
// zero value means that an earlier agent did, at a time that nobody knows.
type Confirmation struct {
	At time.Time
	// Jitter in [0, 1) stretches the time until the publish is renewed by up to a half.
	Jitter float64
}

// Failure is the last one in a row for one pod's work on the volume, or for the unstage.
type Failure struct {
	// Count of failures since the last success. Zero: nothing holds the work back.
	Count int
	// At is when the last one was seen. What the work waited for may have changed
	// since: the caller then clears At, and the work is tried at once.
	At time.Time
	// Jitter in [0, 1) stretches the wait by up to a tenth.
	Jitter float64
	// AtMost bounds the wait, before Jitter; 0 stands for the longest one.
	AtMost time.Duration
}

// Desired is what the pods want of one volume.
type Desired struct {
	// Pods in the order in which they came, those that may have the volume
	// published included. The pod for which the volume was staged is among them
	// until its owner released it, even if nothing is published for it.
	Pods []Pod
}

// Node is what the newest known Node says about the volume.
type Node struct {
	InUse    Knowledge
	Attached Knowledge
	// Changes is another number whenever what may be believed of the volume has changed.
	Changes int
}

// Attachment is the VolumeAttachment as read live since the last call; see [Lookup].
type Attachment struct {
	// Attached is Unknown until it was read, and No if it is deleting.
	Attached Knowledge
	UID      string
	// Metadata is for the driver, which gets it as publish context.
	Metadata map[string]string
}

// Driver is the volume's driver on this node.
type Driver struct {
	Registered bool
	// Stages: the driver has STAGE_UNSTAGE_VOLUME.
	Stages Knowledge
	// RepublishEvery is after how long a publish that stands is repeated, for drivers
	// that ask for it (CSIDriver.spec.requiresRepublish). Zero: never.
	RepublishEvery time.Duration
}

// Stage is the record of the volume's stage.
type Stage struct {
	Phase Phase
	// AttachmentUID is that of the VolumeAttachment with which it was staged; empty
	// if none was needed or the record was lost.
	AttachmentUID string
	// Label is the SELinux label with which it was staged, empty for none.
	Label string
}

// Observed is what is known of one volume at one moment.
type Observed struct {
	// Inline: the volume is one pod's own (pod.spec.volumes[].csi, KEP-596). The driver
	// makes it at NodePublishVolume and destroys it at NodeUnpublishVolume; it is never
	// attached, never listed in use and never staged, whatever else is observed.
	Inline bool
	Node   Node
	// AttachRequired is Yes when the driver's CSIDriver says so or does not exist,
	// Unknown while the CSIDrivers have not been listed.
	AttachRequired Knowledge
	// RecordedInUse: a record of this volume was made under the in-use handshake.
	// Whatever CSIDriver says now, it stays listed until that record is gone.
	RecordedInUse bool
	// Unaccounted: the volume may be mounted here in a way that no record tells of. One cannot be
	// read, or a kubelet was here before.
	Unaccounted bool
	Attachment  Attachment
	Driver      Driver
	Stage       Stage
	// Unstage is the failure that holds back the unstage.
	Unstage Failure
	Users   Users
	Growth  Growth
}

// Users says whether anything on this machine but the agent's own mounts has the volume: a container that runs on, or
// whoever copied the mounts.
type Users struct {
	// Found is Unknown until somebody looked since the last step, and Yes also where nobody could tell.
	Found Knowledge
	// Search counts the looks in a row that found some.
	Search Failure
}

// Step is something to do. The set is sealed.
type Step interface{ step() }

// The steps. Each ends with a reply, and what comes after depends on it.
type (
	// ReadCapabilities asks the driver what it can do, for the pod.
	ReadCapabilities struct{ For PublishKey }
	// ReadAttachment reads the VolumeAttachment live, for the pod.
	ReadAttachment struct{ For PublishKey }
	// StageVolume records and calls NodeStageVolume, with what the pod wants and the
	// SELinux label, if there is one.
	StageVolume struct {
		For   PublishKey
		Label string
	}
	// Publish records and calls NodePublishVolume, with the same label.
	Publish struct {
		Key   PublishKey
		Label string
	}
	// Republish calls NodePublishVolume again for a publish that stands, with what is
	// to be said now. The record stays as it is, whatever the driver answers.
	Republish struct{ Key PublishKey }
	// Unpublish calls NodeUnpublishVolume and drops the record.
	Unpublish struct{ Key PublishKey }
	// Unstage calls NodeUnstageVolume and drops the record.
	Unstage struct{}
	// LookForUsers looks who has what the next call would take away: the unpublish for the pod, or the unstage if
	// Key is zero.
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

// Wait says why nothing is done for a pod now.
type Wait struct {
	// Key of the pod, or its zero value for the volume's unstage.
	Key    PublishKey
	Reason Reason
}

// Decision is what Decide says.
type Decision struct {
	// InUse is what node.status.volumesInUse shall say of the volume: Yes, No, or
	// Unknown for whatever it says. It is a wish and not a step: the list has one writer for
	// all volumes, and what came of it is seen in Observed.Node. It must reach the InUseList
	// before that can be asked for another write: a write that follows an older wish
	// could take out what this decision believes to be listed.
	InUse Knowledge
	// Next is the step to do now; nil if there is none.
	Next Step
	// Waits, in the order of the pods. While there is a Next they are incomplete.
	Waits []Wait
	// RecheckAt is when a back-off ends or a publish is to be renewed. Zero: only a
	// change can lead on.
	RecheckAt time.Time
	// Forget: nothing is left of the volume here and nobody wants it.
	Forget bool
	// Dropped are the pods that the life of the volume has dropped.
	Dropped []PublishKey
}

// Reason is why the volume waits for a pod.
type Reason = decision.Reason

// The reasons, in the order in which a mount meets them, then those of the way back.
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

// exits says of each reason what ends the wait.
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

// Reasons are all reasons to wait.
func Reasons() []Reason { return exits.Reasons() }
