package node

import (
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodeagent"
	"belay.dev/belay/internal/nodevolume"
)

// Errors that a caller may have to distinguish. Retrying does not help: [RefusedError], [ErrPodNotWanted],
// [ErrSubPathOutsideVolume]. Not ready yet: [WaitError].
var (
	// ErrPodNotWanted is returned by methods that need a pod which was set and not removed (errors.Is).
	ErrPodNotWanted = nodeagent.ErrPodNotWanted
	// ErrClosed is what [Agent.Run] returns after [Agent.Close] (errors.Is).
	ErrClosed = nodeagent.ErrClosed
	// ErrRootInUse is returned by [New] while another agent holds the root (errors.Is).
	ErrRootInUse = mount.ErrLocked
	// ErrSubPathOutsideVolume is returned by [Agent.MountSubPath] for a path that leads out of its volume, by ".." or by a symbolic
	// link (errors.Is). It may be an attack by a client that can write to the volume.
	ErrSubPathOutsideVolume = mount.ErrOutsideVolume
)

// RefusedError is returned for a pod that can never be mounted by this agent as it is: it asks for something contradictory or
// unsupported (errors.As). Do not wait; fail the pod.
type RefusedError = nodeagent.RefusedError

// WaitError is returned by [Agent.WaitMounted] and [Agent.WaitUnmounted] when their context ends first (errors.As). The agent
// continues; wait again. It wraps the context's cause and each volume's last failure, for errors.Is and errors.As.
type WaitError = nodeagent.WaitError

// VolumeWait is one volume of a [WaitError]: what it waits for and since when.
type VolumeWait = nodeagent.VolumeWait

// Reason is what a volume waits for. docs/adopt-node.md lists who has to act. Later versions may have new reasons.
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
