package explain

import (
	"cmp"
	"fmt"
	"time"
)

// UnmountByHand is what a person does before a volume may count as unmounted that the agent has no record of.
const UnmountByHand = "if no pod uses it any more: end every process that still has it mounted (search /proc/*/mountinfo, a container has mounts of its own), unmount what is left"

// Reasons of the events on the node side, as kubelet names them.
const (
	FailedMount           = "FailedMount"
	FailedMapVolume       = "FailedMapVolume"
	FailedUnmount         = "FailedUnmount"
	SuccessfulMountVolume = "SuccessfulMountVolume"

	VolumeResizeFailed         = "VolumeResizeFailed"
	FileSystemResizeFailed     = "FileSystemResizeFailed"
	FileSystemResizeSuccessful = "FileSystemResizeSuccessful"

	VolumeConditionAbnormal = "VolumeConditionAbnormal"
)

// The steps of a volume on a node, by the names that kubelet's events give them; operators match on these.
const (
	StepWaitForAttach = "WaitForAttach"
	StepMountDevice   = "MountDevice"
	StepSetUp         = "SetUp"
	StepUnpublish     = "TearDown"
	StepUnstage       = "UnmountDevice"
)

// stepNodeAffinity is what the events call a stage or publish that was not begun, because the
// PersistentVolume may not be used on this node.
const stepNodeAffinity = "NodeAffinity check"

// blockSteps are kubelet's names of the same steps for a block volume.
var blockSteps = map[string]string{StepMountDevice: "SetUpDevice", StepSetUp: "MapPodDevice"}

// undoSteps are the steps of the way back as kubelet's log names them; it sends no events about them.
var undoSteps = map[bool]map[string]string{
	false: {StepUnpublish: "UnmountVolume.TearDown", StepUnstage: "UnmountDevice"},
	true:  {StepUnpublish: "UnmapVolume.UnmapPodDevice", StepUnstage: "UnmapDevice.TearDownDevice"},
}

// calls are the steps by the names of their CSI calls.
var calls = map[string]string{
	StepWaitForAttach: "attach", StepMountDevice: "stage", StepSetUp: "publish", StepUnpublish: "unpublish", StepUnstage: "unstage",
}

// NotEnded is the verb of a step whose call has no answer yet.
const NotEnded = "has not ended"

// NodeStep is a step on a node that does not come about.
type NodeStep struct {
	Step string
	// Block: the volume is used as a device.
	Block  bool
	Volume string
	// Verb is what it does, if not "failed".
	Verb string
	// Since is when it failed first of the times in a row; zero if the cause says it.
	Since time.Time
}

// since is what has been failing, and since when; nothing if the cause says it.
func (s NodeStep) since() string {
	if s.Since.IsZero() {
		return ""
	}
	return fmt.Sprintf(" (%s failing since %s)", calls[s.Step], stamp(s.Since))
}

func (s NodeStep) undoStep() string { return undoSteps[s.Block][s.Step] }

// Failed passes on why a volume could not be mounted, in kubelet's message, followed by the call.
func (s NodeStep) Failed(cause string) (reason, text string) {
	if s.Block {
		return FailedMapVolume, s.failed("MapVolume", cmp.Or(blockSteps[s.Step], s.Step), cause)
	}
	return FailedMount, s.failed("MountVolume", s.Step, cause)
}

// NotHere passes on why the volume may not be used on the node. The reason is one for both kinds of volumes.
func (s NodeStep) NotHere(cause string) (reason, text string) {
	if s.Block {
		return FailedMount, s.failed("MapVolume", stepNodeAffinity, cause)
	}
	return FailedMount, s.failed("MountVolume", stepNodeAffinity, cause)
}

func (s NodeStep) failed(way, step, cause string) string {
	return fmt.Sprintf("%s.%s %s for volume %q : %s%s", way, step, cmp.Or(s.Verb, "failed"), s.Volume, cause, s.since())
}

// StaysInUse says that a step of the way back failed, or does not end.
func (s NodeStep) StaysInUse(node, cause string) string {
	return fmt.Sprintf("%s %s for volume %q : %s%s; the volume stays in use on node %s, and the call is retried",
		s.undoStep(), cmp.Or(s.Verb, "failed"), s.Volume, cause, s.since(), node)
}

// Waits says what a step of the way back waits for.
func (s NodeStep) Waits(wait NodeWait) string {
	return fmt.Sprintf("%s for volume %q has been %s", s.undoStep(), s.Volume, wait.text())
}

// MountsFailed says why a pod as a whole does not get its volumes.
func MountsFailed(cause string) string { return "Unable to attach or mount volumes: " + cause }

// Mapped says that a pod has a block volume as a device; kubelet says nothing of the kind about others.
func Mapped(volume, path string) string {
	return fmt.Sprintf("MapVolume.MapPodDevice succeeded for volume %q volumeMapPath %q", volume, path)
}

// Abnormal passes on what the driver says of a volume, which is named as the pod names it.
func Abnormal(volume, condition string) string {
	return fmt.Sprintf("Volume %s: %s", volume, condition)
}

// Expanded says that a volume has its new size on a node.
func Expanded(volume, node string) string {
	return fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", volume, node)
}

// ExpandReadOnly says that a volume that has grown is not expanded for a pod that may not write to it.
func ExpandReadOnly(volume string) string {
	return fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q requested read-only file system", volume)
}

// ExpandFailed passes on why a volume was not expanded: while it is mounted for a pod, which waits for it, or while
// the pod runs.
func ExpandFailed(volume string, waits, block bool, cause string) (reason, text string) {
	switch {
	case !waits:
		return VolumeResizeFailed, fmt.Sprintf("NodeExpandVolume.NodeExpandVolume failed for volume %q : %s", volume, cause)
	case block:
		return FailedMapVolume, fmt.Sprintf("MapVolume.MarkVolumeAsMounted failed while expanding volume for volume %q : %s", volume, cause)
	default:
		return FailedMount, fmt.Sprintf("MountVolume.Setup failed while expanding volume for volume %q : %s", volume, cause)
	}
}

// AttachLimit says that the storage attaches no more volumes to the node, begun as kubelet begins it.
func AttachLimit(volume, driver, problem string) string {
	return fmt.Sprintf("Node has reached its volume attachment limit: volume %q of driver %s is not attached: %s", volume, driver, problem)
}
