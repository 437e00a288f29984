// Package excuse names what the oracles of the simulations permit although an invariant does not hold, and what the simulations do not
// generate because it would not hold. Each is listed in docs/not-guaranteed.md, with the comment
// "<!-- excuse: NAME -->". TestList compares that list, these names and their uses.
package excuse

// Name is one excuse.
type Name string

// Nodes and machines.
const (
	// HiddenMount: a kubelet cannot unmount, and does not list what it has mounted.
	HiddenMount Name = "hidden-mount"
	// UnrecordedBoot: a Node is deleted before the VolumeAttachment records the boot of its machine.
	UnrecordedBoot Name = "unrecorded-boot"
	// UnknownMachine: another machine comes under a Node's name, and nothing tells the two apart.
	UnknownMachine Name = "unknown-machine"
	// WrittenOff: a person deletes the VolumeAttachment of a machine that was replaced.
	WrittenOff Name = "written-off"
	// TwoMachines: another machine takes over a Node object that still reports a volume to the earlier one.
	TwoMachines Name = "two-machines"
	// BothRemoved: a person removes both the Node and the VolumeAttachment.
	BothRemoved Name = "both-removed"
	// AttachedByHand: a person removes a VolumeAttachment under a mount, and creates one for another node.
	AttachedByHand Name = "attached-by-hand"
)

// Recovery.
const (
	// UnrecordedMachine: a VolumeAttachment does not record its machine, and another one has the name of the node.
	UnrecordedMachine Name = "unrecorded-machine"
	// LyingSwitch: a power switch calls a machine Off that runs.
	LyingSwitch Name = "lying-switch"
	// ResumedMachine: a machine is continued with its old memory after it was off.
	ResumedMachine Name = "resumed-machine"
	// WithdrawnTaint: kube-controller-manager acts on an out-of-service taint that its cache still shows, and the Node has no more.
	WithdrawnTaint Name = "withdrawn-taint"
	// LyingDriver: a driver was declared to cut at unpublish, and does not.
	LyingDriver Name = "lying-driver"
	// SwappedCable: another machine is wired to a switch between the reading of its identity and the command.
	SwappedCable Name = "swapped-cable"
	// RestoredCut: etcd was restored to before this volume was cut off from the boot that still has it mounted.
	RestoredCut Name = "restored-cut"
	// RegisteredAgain: a person deletes the Node of a machine that has a volume mounted from before it was cut off, its kubelet registers the Node again, and the
	// volume is attached to it before recovery has isolated that Node.
	RegisteredAgain Name = "registered-again"
	// Restored: etcd was restored to before a fence.
	Restored Name = "restored"
)

// Fibre Channel and iSCSI.
const ()

// Changes of leader, and other clients.
const (
	// RemovedByHand: a person removes a VolumeAttachment, the report is gone as well, or the Node was recreated, and a new leader leads.
	RemovedByHand Name = "removed-by-hand"
	// LateCreate: a create that an earlier leader has sent is carried out.
	LateCreate Name = "late-create"
	// LateNote: the note of when a detach was requested arrives after its sender has timed out.
	LateNote Name = "late-note"
	// UnseenAttachment: another client creates a VolumeAttachment that the leader has not seen.
	UnseenAttachment Name = "unseen-attachment"
	// UnseenDeletion: another client deletes a VolumeAttachment, and the leader has not seen it.
	UnseenDeletion Name = "unseen-deletion"
)

// Identities of volumes, finalizers and drivers.
const (
	// StaleNodeID: a node gets another CSI node ID while a volume is being attached to it.
	StaleNodeID Name = "stale-node-id"
	// SharedPublication: another VolumeAttachment stands for the same publication.
	SharedPublication Name = "shared-publication"
	// ForcedVolume: a PersistentVolume is deleted by force, without regard to its finalizers.
	ForcedVolume Name = "forced-volume"
	// RestoredBackup: an exclusive volume is published although another node has it, because a backup of etcd knows nothing of that.
	RestoredBackup Name = "restored-backup"
	// AbandonedCall: a driver carries out a call after its caller has abandoned it.
	AbandonedCall Name = "abandoned-call"
	// UnseenReattach: a volume is attached again between the node's read of the VolumeAttachment and the call that follows.
	UnseenReattach Name = "unseen-reattach"
	// AttachRequired: a CSIDriver starts to require that its volumes are attached.
	AttachRequired Name = "attach-required"
	// KeptMount: a pod waits for its own mount, which an earlier agent left.
	KeptMount Name = "kept-mount"
)
