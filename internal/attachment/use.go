package attachment

import (
	"time"

	"belay.dev/belay/internal/planted"
)

// Use is what a node does with a volume. Its zero value is the cautious one.
type Use uint8

const (
	// MayUse: the node may have the volume mounted. Either what it lists cannot be
	// believed, or there is no Node object to ask.
	MayUse Use = iota
	// Idle: the node has nothing mounted of this volume.
	Idle
	// PreMount: kubelet lists a volume before it may mount it, and mounts only what is
	// reported to it. An entry for a volume that the node was never given says no more
	// than that, whether it is true or not: a node can write what it likes into its own
	// status, and must not be able to keep a volume from other nodes by it.
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

// Run relates the machine that a volume was attached to with the one that stands
// behind the Node object now.
type Run uint8

const (
	// MayBeSameRun: another Node object, and nothing shows that the machine was
	// restarted or replaced. An identity that is missing shows nothing.
	MayBeSameRun Run = iota
	// SameObject: the Node object has not been replaced, so it knows what it says.
	SameObject
	// Restarted: the same machine in a later boot. Whatever was mounted is gone.
	Restarted
	// Replaced: another machine under the same name. It can say nothing about the one
	// before, which may be cut off and still write.
	Replaced
)

// runSince relates the machine recorded with an attachment to the node's present one.
func (n Node) runSince(a *Attachment) Run {
	was, is := a.Machine, n.Machine
	switch {
	case is.Replaces(was):
		return Replaced
	case agree(was.NodeUID, is.NodeUID):
		return SameObject
	case was.NodeUID == "" && !n.Created.After(a.Created):
		// Another controller made the attachment and recorded nothing. Creation times, in
		// whole seconds and by the clock of the API server, have to do.
		return SameObject
	case differ(was.BootID, is.BootID) && (agree(was.SystemUUID, is.SystemUUID) || agree(was.ProviderID, is.ProviderID)):
		return Restarted
	}
	return MayBeSameRun
}

// Replaces reports whether this is known to be another machine than that one, which had its
// name. The same boot shows the same machine, whatever else differs.
func (m Machine) Replaces(was Machine) bool {
	return !agree(was.BootID, m.BootID) &&
		(differ(was.SystemUUID, m.SystemUUID) || differ(was.ProviderID, m.ProviderID) && !m.unidentified(was))
}

// unidentified reports whether the Node does not say which machine stands behind it, although one
// before did. Kubelet says so with its first status; somebody else made the Node.
func (m Machine) unidentified(was Machine) bool {
	return m.BootID == "" && m.SystemUUID == "" && (was.BootID != "" || was.SystemUUID != "")
}

// agree reports whether two identities are known and the same.
func agree(was, is string) bool { return was != "" && was == is }

// differ reports whether two identities are known and not the same.
func differ(was, is string) bool { return was != is && (planted.Identity || was != "" && is != "") }

// vouched reports whether something shows that the attachment's machine stands behind the
// Node, or nothing was recorded that could.
func (n Node) vouched(a *Attachment) bool {
	was, is := a.Machine, n.Machine
	switch {
	case n.runSince(a) == SameObject:
		return true
	case is.unidentified(was):
		return false
	case was.BootID == "" && was.SystemUUID == "" && was.ProviderID == "":
		return true
	}
	return agree(was.BootID, is.BootID) || agree(was.SystemUUID, is.SystemUUID) || agree(was.ProviderID, is.ProviderID)
}

// use is the only place that says what an entry in a node's in-use list means, or that
// there is none. The attachment is the one of the volume to this node, nil if the node
// was never given the volume. Wanted is set when pods of the node need it.
//
// The rules rest on what kubelet does: it lists a volume before it mounts it, mounts
// only what is reported, and takes the volume off the list after the unmount. A kubelet
// that restarts lists, of what it finds mounted, only what is reported.
func (n Node) use(a *Attachment, wanted bool) Use {
	if a == nil && n.InUse == Yes {
		return PreMount
	} else if a == nil {
		return Idle
	}
	run := n.runSince(a)
	// A Node object that was there before knows what it lists. A later one does for what it
	// was seen to let go, or once its list is complete, and if it says whose list that is.
	knows := run != MayBeSameRun || (n.ReleasedVolume || n.Exists == Yes && n.ListSynced) && !n.Machine.unidentified(a.Machine)
	switch {
	case n.Exists == Unknown || run == Replaced:
	case n.InUse == Yes && n.Exists == Yes:
		return n.listed(a, run, wanted)
	case n.InUse == No && knows:
		return Idle
	}
	return MayUse // without a Node, its last version had to do
}

// listed is use of a node that was given the volume and lists it. What was never confirmed
// was never reported either.
func (n Node) listed(a *Attachment, run Run, wanted bool) Use {
	never := a.Confirmed != Yes && !a.Recreated
	if wanted && !n.Reported && !a.Implied && (planted.PreMount || never || run != MayBeSameRun) {
		return PreMount
	}
	return Using
}

// SyncWindow is how long a kubelet must be Ready, and renew its lease, until its list of
// volumes in use is believed although it never held the volume. A kubelet sends the list
// with its status, every 10 s by default (nodeStatusUpdateFrequency), once it has
// rebuilt from disk what is mounted and read its Node (k/k pkg/kubelet/volumemanager
// reconciler.StatesHasBeenSynced, pkg/kubelet/nodestatus.VolumesInUse). It unmounts what
// no pod wants in the same loop, every 100 ms.
const SyncWindow = 40 * time.Second
