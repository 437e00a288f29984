package node

import (
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodeagent"
	"belay.dev/belay/internal/nodevolume"
)

// Errors that a caller may have to tell apart. "Never": [RefusedError], [ErrPodNotWanted], [ErrSubPathOutsideVolume]. "Not
// yet": [WaitError].
var (
	// ErrPodNotWanted is in the errors of methods that need a pod which was set and not removed (errors.Is).
	ErrPodNotWanted = nodeagent.ErrPodNotWanted
	// ErrClosed is what [Agent.Run] returns after [Agent.Close] (errors.Is).
	ErrClosed = nodeagent.ErrClosed
	// ErrRootInUse is in the error of [New] while another agent has the root (errors.Is).
	ErrRootInUse = mount.ErrLocked
	// ErrSubPathOutsideVolume is in the error of [Agent.MountSubPath] for a path that leads out of its volume, by ".." or by
	// a symbolic link (errors.Is). Somebody who may write to the volume may be trying something.
	ErrSubPathOutsideVolume = mount.ErrOutsideVolume
)

// RefusedError says that a pod, as it is, can never be mounted by this agent: it asks for something that does not
// fit together or that the agent does not do (errors.As). Waiting is of no use; fail the pod.
type RefusedError = nodeagent.RefusedError

// WaitError is what [Agent.WaitMounted] and [Agent.WaitUnmounted] return when their context ends first (errors.As): not
// yet. Nothing is given up, and the agent goes on; wait again. The context's cause and each volume's last failure
// are in it for errors.Is and errors.As.
type WaitError = nodeagent.WaitError

// VolumeWait is one volume of a [WaitError]: which, for what it waits and since when.
type VolumeWait = nodeagent.VolumeWait

// Reason is what a volume waits for. docs/adopt-node.md says of each who has to do something. There may be new ones in
// later versions.
type Reason = nodevolume.Reason

// The reasons for which mounts wait.
const (
	ClaimNotReady            = nodeagent.ClaimNotReady
	AttachabilityUnknown     = nodevolume.AttachabilityUnknown
	NodeUnknown              = nodevolume.NodeUnknown
	NotReportedInUse         = nodevolume.NotReportedInUse
	NotAttached              = nodevolume.NotAttached
	AttachmentNotReady       = nodevolume.AttachmentNotReady
	AttachmentReplaced       = nodevolume.AttachmentReplaced
	DriverNotRegistered      = nodevolume.DriverNotRegistered
	OtherPodMounted          = nodevolume.OtherPodMounted
	OtherSELinuxLabelWanted  = nodevolume.OtherSELinuxLabelWanted
	OtherSELinuxLabelMounted = nodevolume.OtherSELinuxLabelMounted
	UnaccountedMount         = nodevolume.UnaccountedMount
	BackingOff               = nodevolume.BackingOff
)

// The reasons for which unmounts wait, besides [DriverNotRegistered] and [BackingOff].
const (
	ContainersMayRun      = nodevolume.ContainersMayRun
	StillMountedElsewhere = nodevolume.StillMountedElsewhere
)
