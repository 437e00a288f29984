package node

import (
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodeagent"
	"belay.dev/belay/internal/nodevolume"
)

// Errors to distinguish. Permanent: [RefusedError], [ErrPodNotWanted], [ErrSubPathOutsideVolume]. Temporary: [WaitError].
var (
	// ErrPodNotWanted is in the error of a method that needs a pod which was set and not removed (errors.Is).
	ErrPodNotWanted = nodeagent.ErrPodNotWanted
	// ErrClosed is what [Agent.Run] returns after [Agent.Close], and is in the [WaitError] of a wait that either has ended (errors.Is).
	ErrClosed = nodeagent.ErrClosed
	// ErrRootInUse is in the error of [New] while another agent holds the lock on the root (errors.Is).
	ErrRootInUse = mount.ErrLocked
	// ErrSubPathOutsideVolume is in the error of [Agent.MountSubPath] for a path that leads outside its volume, through ".." or a symbolic
	// link (errors.Is). It may indicate an attack by a writer of the volume.
	ErrSubPathOutsideVolume = mount.ErrOutsideVolume
)

// RefusedError reports that the agent can never mount the volumes of a pod, because its spec is inconsistent or needs something that the
// agent does not support (errors.As). Do not retry; fail the pod.
type RefusedError = nodeagent.RefusedError

// WaitError is returned by [Agent.WaitMounted] and [Agent.WaitUnmounted] if their context ends first (errors.As). The agent continues its
// work; call again. It wraps the context's cause and each volume's last failure. If the agent ends first it wraps [ErrClosed].
type WaitError = nodeagent.WaitError

// VolumeWait is one volume of a [WaitError]: what it waits for, and since when.
type VolumeWait = nodeagent.VolumeWait

// Reason is what a volume waits for. docs/adopt-node.md lists who has to act. Later versions may add reasons.
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
