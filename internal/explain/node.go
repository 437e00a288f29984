package explain

import (
	"cmp"
	"fmt"
	"time"
)

// UnmountByHand is what a person has to do before a volume without a record may count as unmounted.
const UnmountByHand = "if no pod uses it any more: end every process that still has it mounted (search /proc/*/mountinfo, a container has mounts of its own), unmount what is left"

// Reasons of the events on the node side, which are kubelet's.
const (
	FailedMount           = "FailedMount"
	FailedMapVolume       = "FailedMapVolume"
	FailedUnmount         = "FailedUnmount"
	SuccessfulMountVolume = "SuccessfulMountVolume"

	VolumeResizeFailed         = "VolumeResizeFailed"
	FileSystemResizeFailed     = "FileSystemResizeFailed"
	FileSystemResizeSuccessful = "FileSystemResizeSuccessful"

	VolumeConditionAbnormal = "VolumeConditionAbnormal"

	// VolumeAttachmentLimitExceeded is also the reason with which kubelet rejects a pod whose volumes exceed the node's limit (KEP-4876).
	VolumeAttachmentLimitExceeded = "VolumeAttachmentLimitExceeded"
)

// The steps of a volume on a node, as kubelet's events name them; operators match on these.
const (
	StepWaitForAttach = "WaitForAttach"
	StepMountDevice   = "MountDevice"
	StepSetUp         = "SetUp"
	StepUnpublish     = "TearDown"
	StepUnstage       = "UnmountDevice"
)

// stepNodeAffinity is the step of a stage or publish that was not started because the PersistentVolume must not be used on this
// node.
const stepNodeAffinity = "NodeAffinity check"

// blockSteps are kubelet's names of these steps for a block volume.
var blockSteps = map[string]string{StepMountDevice: "SetUpDevice", StepSetUp: "MapPodDevice"}

// undoSteps are the steps of an unmount, by block and step, as kubelet's log names them; it emits no events about them.
var undoSteps = map[bool]map[string]string{
	false: {StepUnpublish: "UnmountVolume.TearDown", StepUnstage: "UnmountDevice"},
	true:  {StepUnpublish: "UnmapVolume.UnmapPodDevice", StepUnstage: "UnmapDevice.TearDownDevice"},
}

// calls are the steps, named after their CSI calls.
var calls = map[string]string{
	StepWaitForAttach: "attach", StepMountDevice: "stage", StepSetUp: "publish", StepUnpublish: "unpublish", StepUnstage: "unstage",
}

// NotEnded is the verb of a step whose call has not been answered yet.
const NotEnded = "has not ended"

// NodeStep is a step on a node that failed or does not end.
type NodeStep struct {
	Step string
	// Block: the volume is used as a device.
	Block  bool
	Volume string
	// Verb is what happens to it, if not "failed".
	Verb string
	// Since is when the first of the failures in a row was; zero if the cause has it.
	Since time.Time
}

// since names the failing call and the time of its first failure; empty if the cause has it.
func (s NodeStep) since() string {
	if s.Since.IsZero() {
		return ""
	}
	return fmt.Sprintf(" (%s failing since %s)", calls[s.Step], stamp(s.Since))
}

func (s NodeStep) undoStep() string { return undoSteps[s.Block][s.Step] }

// Failed reports why a volume could not be mounted, in kubelet's message, followed by the failing call.
func (s NodeStep) Failed(cause string) (reason, text string) {
	if s.Block {
		return FailedMapVolume, s.failed("MapVolume", cmp.Or(blockSteps[s.Step], s.Step), cause)
	}
	return FailedMount, s.failed("MountVolume", s.Step, cause)
}

// NotHere reports why the volume must not be used on the node. The reason is the same for block volumes.
func (s NodeStep) NotHere(cause string) (reason, text string) {
	if s.Block {
		return FailedMount, s.failed("MapVolume", stepNodeAffinity, cause)
	}
	return FailedMount, s.failed("MountVolume", stepNodeAffinity, cause)
}

func (s NodeStep) failed(way, step, cause string) string {
	return fmt.Sprintf("%s.%s %s for volume %q : %s%s", way, step, cmp.Or(s.Verb, "failed"), s.Volume, cause, s.since())
}

// StaysInUse reports that a step of an unmount failed, or does not end.
func (s NodeStep) StaysInUse(node, cause string) string {
	return fmt.Sprintf("%s %s for volume %q : %s%s; the volume stays in use on node %s, and the call is retried",
		s.undoStep(), cmp.Or(s.Verb, "failed"), s.Volume, cause, s.since(), node)
}

// Waits reports what a step of an unmount waits for.
func (s NodeStep) Waits(wait NodeWait) string {
	return fmt.Sprintf("%s for volume %q has been %s", s.undoStep(), s.Volume, wait.text())
}

// MountsFailed reports why a pod does not get its volumes.
func MountsFailed(cause string) string { return "Unable to attach or mount volumes: " + cause }

// Mapped reports that a pod has a block volume as a device; kubelet has no such event for other volumes.
func Mapped(volume, path string) string {
	return fmt.Sprintf("MapVolume.MapPodDevice succeeded for volume %q volumeMapPath %q", volume, path)
}

// Abnormal reports the condition of a volume, which is named as the pod names it.
func Abnormal(volume, condition string) string {
	return fmt.Sprintf("Volume %s: %s", volume, condition)
}

// Expanded reports that a volume has its new size on a node.
func Expanded(volume, node string) string {
	return fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", volume, node)
}

// ExpandReadOnly reports that a volume that has grown is not expanded for a pod that mounts it read-only.
func ExpandReadOnly(volume string) string {
	return fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q requested read-only file system", volume)
}

// ExpandFailed reports why a volume was not expanded. waits: a pod that is starting waits for it.
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

// AttachLimit reports that no more volumes can be attached to the node; it begins with kubelet's text.
func AttachLimit(volume, driver, problem string) string {
	return fmt.Sprintf("Node has reached its volume attachment limit: volume %q of driver %s is not attached: %s", volume, driver, problem)
}

// What an operator can do about what belay-node logs.
const (
	// UnmountUnrecorded is for a mount without a record.
	UnmountUnrecorded = "none while a pod uses the volume: belay-node records the mount when it publishes the volume for the pod. " +
		UnmountByHand + ", then restart belay-node"
	// SeeUnreadable is for a volume whose record cannot be read, which was logged with its remedy.
	SeeUnreadable = "see the line about the record that cannot be read"
	// ShareProcesses is for a PID namespace of its own.
	ShareProcesses = "set hostPID: true for a pod of belay-node; none where the node itself is a container"
	// GrantCapabilities is for an agent that may not see all users of a volume.
	GrantCapabilities = "run belay-node as root with all capabilities: privileged: true for a pod, no CapabilityBoundingSet= in a systemd unit"
	// EndPodsToExpand is for a driver that expands only volumes that are not in use.
	EndPodsToExpand = "delete the pods that use the volume: it is expanded when it is next mounted"
)

// UnmountUnreadable is the remedy for a record that cannot be read.
func UnmountUnreadable(path string) string {
	return UnmountByHand + ", remove " + path + ", then restart belay-node"
}

// ShareMounts is the remedy for a root whose mounts do not propagate.
func ShareMounts(root string) string {
	return fmt.Sprintf("mount --rbind %[1]s %[1]s && mount --make-rshared %[1]s", root)
}
