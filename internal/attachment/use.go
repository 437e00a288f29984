package attachment

import (
	"time"

	"belay.dev/belay/internal/identity"
	"belay.dev/belay/internal/planted"
)

// Use is how a node uses a volume. Its zero value is the cautious one.
type Use uint8

const (
	// MayUse: the node may have the volume mounted, because its list cannot be trusted or there is no Node object.
	MayUse Use = iota
	// Idle: the node does not have the volume mounted.
	Idle
	// PreMount: kubelet lists a volume before it may mount it, and mounts only what is reported. An entry for a volume that the
	// node was never given means no more than that, true or not: a node can write anything into its own status, and must not be
	// able to block other nodes by it.
	PreMount
	// Using: the node was given the volume and lists it in use.
	Using
)

// String returns the word for logs.
func (u Use) String() string {
	switch u {
	case Idle:
		return "idle"
	case PreMount:
		return "pre-mount"
	case Using:
		return "using"
	case MayUse:
	}
	return "may use"
}

// Run relates the machine that a volume was attached to with the machine behind the present Node object.
type Run uint8

const (
	// MayBeSameRun: another Node object, and nothing proves that the machine was restarted or replaced. A missing identity proves
	// nothing.
	MayBeSameRun Run = iota
	// SameObject: the Node object has not been replaced, so its list is valid.
	SameObject
	// Restarted: the same machine in a later boot. Its mounts are gone.
	Restarted
	// Replaced: another machine under the same name, as its identities say, or the CSI node ID and the boot ID together. It has no
	// information about the earlier one, which may be cut off and still write.
	Replaced
)

// runSince relates the machine recorded with an attachment to the node's present machine.
func (n Node) runSince(a *Attachment) Run {
	was, is := a.Machine, n.Machine
	boot, hardware := n.same(a)
	switch {
	case !boot && is.another(was), !boot && !hardware && n.renamed(a) && differ(was.BootID, is.BootID):
		return Replaced
	case agree(was.NodeUID, is.NodeUID):
		return SameObject
	case was.NodeUID == "" && !n.Created.After(a.Created):
		// Another controller created the attachment and recorded nothing. The creation times, in whole seconds of the API server's
		// clock, have to suffice.
		return SameObject
	case differ(was.BootID, is.BootID) && hardware:
		return Restarted
	}
	return MayBeSameRun
}

// same reports by what the machine recorded with an attachment is known to be the one behind the Node: the boot, the hardware, or neither. An
// identity that another Node carries too says nothing, except about the very Node object that was recorded with it: no other node can take
// that from it.
func (n Node) same(a *Attachment) (boot, hardware bool) {
	was, is, shared := a.Machine, n.Machine, n.Shared
	if planted.Bogus || agree(was.NodeUID, is.NodeUID) {
		shared = Shared{}
	}
	boot = !shared.BootID && identity.Same(was.BootID, is.BootID)
	hardware = !shared.SystemUUID && identity.Same(was.SystemUUID, is.SystemUUID) ||
		!shared.ProviderID && identity.Same(was.ProviderID, is.ProviderID) && !identity.OfName(is.ProviderID, string(a.Node))
	return boot, hardware
}

// SameMachine reports whether the machine recorded with an attachment is known to be the one behind the Node.
func (n Node) SameMachine(a *Attachment) bool {
	boot, hardware := n.same(a)
	return n.Exists == Yes && (boot || hardware && !n.Machine.another(a.Machine))
}

// renamed reports whether the driver has another CSI node ID for the node than the one that was recorded, and than the one that was found to be
// of the same machine.
func (n Node) renamed(a *Attachment) bool {
	return a.NodeID != "" && n.NodeID != "" && a.NodeID != n.NodeID && a.SameMachineAs != n.NodeID
}

// recordsSameMachine records that the node has another CSI node ID and still the machine that the volume was attached to, if that is not
// recorded yet. A record of an ID that the node has no more, from a cache that was behind, is overwritten.
func (p *plan) recordsSameMachine(a *Attachment) bool {
	node := p.seen.Nodes[a.Node]
	outdated := a.SameMachineAs != "" && node.NodeID != "" && a.SameMachineAs != node.NodeID
	if a.Implied || !a.Computed || !node.renamed(a) && !outdated || !node.SameMachine(a) {
		return false
	}
	p.do(RecordSameMachine{Node: a.Node, Attachment: a.Ref, NodeID: node.NodeID})
	return true
}

// Replaces reports whether this is known to be another machine than an earlier one of the same name. An equal boot ID proves the
// same machine, whatever else differs.
func (m Machine) Replaces(was Machine) bool {
	return !identity.Same(was.BootID, m.BootID) && m.another(was)
}

// another reports whether the hardware is known to be another one.
func (m Machine) another(was Machine) bool {
	return differ(was.SystemUUID, m.SystemUUID) || differ(was.ProviderID, m.ProviderID) && !m.unidentified(was)
}

// unidentified reports whether the Node does not identify its machine, although an earlier one did. Kubelet does so with its first
// status; another client created the Node.
func (m Machine) unidentified(was Machine) bool {
	return m.BootID == "" && m.SystemUUID == "" && (was.BootID != "" || was.SystemUUID != "")
}

// agree reports whether two UIDs of Nodes are known and the same.
func agree(was, is string) bool { return was != "" && was == is }

// differ reports whether two identities are known and not the same.
func differ(was, is string) bool { return was != is && (planted.Identity || identity.Another(was, is)) }

// vouched reports whether something proves that the attachment's machine is behind the Node, or nothing was recorded that could.
func (n Node) vouched(a *Attachment) bool {
	was := a.Machine
	switch {
	case n.runSince(a) == SameObject:
		return true
	case n.Machine.unidentified(was):
		return false
	case identity.Of(was.BootID) == "" && identity.Of(was.SystemUUID) == "" && identity.Of(was.ProviderID) == "":
		return true
	}
	boot, hardware := n.same(a)
	return boot || hardware
}

// Another reports whether the Node counts as that of another machine than the attachment's. So does a later Node object of another boot, of
// which nothing says that it is the same machine: its list says nothing about the earlier one, and nothing else would ever end the wait.
func (n Node) Another(a *Attachment) bool {
	run := n.runSince(a)
	_, hardware := n.same(a)
	return run == Replaced || run == MayBeSameRun && !hardware && differ(a.Machine.BootID, n.Machine.BootID)
}

// mayBeLater reports whether the Node may be a later object than the one under which the machine mounted the volume. What a machine had mounted is
// gone with its boot.
func (n Node) mayBeLater(a *Attachment) bool {
	run := n.runSince(a)
	return run == MayBeSameRun || run == SameObject && a.InDoubt && !differ(a.Machine.BootID, n.Machine.BootID)
}

// use is the only place that interprets an entry in a node's in-use list, or its absence. The attachment is the volume's attachment
// to this node, nil if the node was never given the volume. wanted is set when pods of the node need it.
//
// The rules rest on what kubelet does: it lists a volume before it mounts it, mounts only what is reported, and removes the volume
// from the list after the unmount. A kubelet that restarts is the exception: what it finds mounted and not reported it takes for a volume
// that needs no attach, and lists it only as long as a pod wants it (see SyncWindow). Each Node object begins without reports. So the empty
// list of a later Node object than the one that was recorded proves nothing, whatever that object has listed before.
func (n Node) use(a *Attachment, wanted bool) Use {
	if a == nil && n.InUse == Yes {
		return PreMount
	} else if a == nil {
		return Idle
	}
	run := n.runSince(a)
	knows := !n.mayBeLater(a) || n.listSynced(a) && !n.Machine.unidentified(a.Machine)
	switch {
	case n.Exists == Unknown || n.Another(a):
	case n.InUse == Yes && n.Exists == Yes:
		return n.listed(a, run, wanted)
	case n.InUse == No && knows:
		return Idle
	}
	return MayUse // without a Node, the last known version decides
}

// listed is use for a node that was given the volume and lists it. What was never confirmed was never reported either, and a mount does
// not outlive its boot.
func (n Node) listed(a *Attachment, run Run, wanted bool) Use {
	never, laterBoot := a.Confirmed != Yes && !a.Recreated, differ(a.Machine.BootID, n.Machine.BootID)
	if wanted && !n.Reported && !a.Implied && (planted.PreMount || never || laterBoot || run != MayBeSameRun) {
		return PreMount
	}
	return Using
}

// SyncWindow is how long a kubelet must be Ready, renew its lease, and not list the volume after the pods have left, until it has unmounted
// what it may have mounted and left off its list.
//
// A kubelet that starts rebuilds from disk what is mounted. If its Node does not report such a volume at that moment, it sets the volume's
// attachability to false, and never back while it is mounted (k8s.io/kubernetes v1.36.3,
// pkg/kubelet/volumemanager/reconciler/reconstruct.go:192 updateReconstructedFromNodeStatus, cache/actual_state_of_world.go:588
// UpdateReconstructedVolumeAttachability, :710 addVolume). It lists what pods want, and what is mounted and attachable
// (volume_manager.go:359 GetVolumesInUse): such a volume leaves the list with its last pod, before it is unmounted. The kubelet sends the list
// with its status, every 10 s by default (nodeStatusUpdateFrequency), and unmounts what no pod wants in a loop of 100 ms
// (reconciler/reconciler.go:33).
const SyncWindow = 40 * time.Second

// syncDue is when the node will have been quiet for SyncWindow since the pods left; zero if that has not begun.
func (n Node) syncDue(a *Attachment) time.Time {
	begin := a.DetachRequested
	if begin.IsZero() || n.QuietSince.IsZero() {
		return time.Time{}
	}
	if n.QuietSince.After(begin) {
		begin = n.QuietSince
	}
	return begin.Add(SyncWindow)
}

// listSynced reports whether it has been.
func (n Node) listSynced(a *Attachment) bool {
	due := n.syncDue(a)
	return n.Exists == Yes && !due.IsZero() && !n.QuietUntil.Before(due)
}
