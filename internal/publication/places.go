package publication

import (
	"slices"
	"time"

	"belay.dev/belay/internal/planted"
)

// A place is a volume at a CSI node ID: what a driver publishes and unpublishes. Several attachments may be for one, as those of two Nodes that
// one ID is registered for (harvester/harvester#6981, hetznercloud/csi-driver#685), or of one Node that was made again. An unpublish for one of
// them takes the volume from all.

// sameMachine is the node ID that is recorded as another form of the recorded one; empty for none. One that is an earlier form of the node's
// present ID is outdated.
func (a Attachment) sameMachine() string {
	if a.NodeID == a.RecordedNodeID {
		return ""
	}
	return a.SameMachine
}

// names are the node IDs by which the driver may know, or have known, the machine of a node ID of the attachment, if same is another form of the
// recorded one.
func (a Attachment) names(nodeID, same string) []string {
	if nodeID == a.RecordedNodeID && same != "" {
		return []string{nodeID, same}
	}
	return []string{nodeID}
}

// standsFor reports whether the volume will be unpublished from the node ID, at which it was published for a, when other ends. What names a machine
// does so for one Node: two Nodes may have one ID and be two machines, each with an ID of its own before. One that is untouched ends without a call.
func (a Attachment) standsFor(other Attachment, nodeID string) bool {
	return a.Finalizer && !a.Untouched && (a.boundNodeID() == nodeID || a.Node == other.Node && a.holds(other.names(nodeID, other.sameMachine()), a.sameMachine()))
}

// holds reports whether the attachment ends only after the volume was unpublished from one of the node IDs, if same is another form of its own.
func (a Attachment) holds(nodeIDs []string, same string) bool {
	return slices.ContainsFunc(nodeIDs, func(id string) bool { return id != "" && (a.boundNodeID() == id || same == id) })
}

// needs reports whether the volume must stay at the node ID for other, although it is to be unpublished there for a: other may be published there.
// One that is being deleted needs nothing: each unpublishes, or two that end at once could rest on each other. Nor does one that has not begun: it is
// published afterwards. What looks outdated counts here: the watches of attachments and nodes are apart, and an ID that was recorded a moment ago looks so too.
func (v *volume) needs(other, a Attachment, nodeID string) bool {
	if other.UID == a.UID || other.Gone || other.Deleting || !other.mayBePublished() || other.mayBeAnothers() || planted.SharedPlace {
		return false
	}
	names, there := a.names(nodeID, a.SameMachine), other.Attached || other.unrecorded()
	knownAs := nodeID != "" && slices.Contains(names, other.NodeID) // the driver may know the node by that ID now
	return other.holds(names, other.SameMachine) || there && (knownAs || a.mayBeOfMachine(other))
}

// mayBeOfMachine reports whether what is gone may have been published to the machine that another attachment is for: which one its node ID names is
// not known, and a driver's upgrade gives the machine of a Node an ID of another form. The driver may call that unknown today and not tomorrow.
func (a Attachment) mayBeOfMachine(other Attachment) bool { return a.Gone && a.Node == other.Node }

// takenOver reports whether all that is left of an attachment that is gone is the record of an earlier process, which may have released it: this one sent
// no publish, and the driver knows no such place. That record went with the object, so nothing says any more that the volume is there.
func (a Attachment) takenOver() bool {
	return a.Released && !slices.ContainsFunc(a.Call.publishedTo(), func(id string) bool { return !a.Call.at(id).OnRecord || !a.Call.unknownAt(id) })
}

// neededAt reports whether another attachment needs the volume at a node ID.
func (v *volume) neededAt(a Attachment, nodeID string) bool {
	return slices.ContainsFunc(v.attachments, func(other Attachment) bool { return v.needs(other, a, nodeID) })
}

// left returns the given node IDs without those at which another attachment needs the volume. It reports whether what is published for a has to be
// remembered all the same, if none is left: until another attachment that unpublishes it has its finalizer, and while a publish may take effect.
func (v *volume) left(a Attachment, nodeIDs []string) (left []string, waits bool) {
	for _, id := range nodeIDs {
		if !v.neededAt(a, id) {
			left = append(left, id)
			continue
		}
		stands := slices.ContainsFunc(v.attachments, func(other Attachment) bool {
			return other.standsFor(a, id) && v.needs(other, a, id)
		})
		waits = waits || !stands || v.mayBeLate(a)
	}
	return left, waits && len(left) == 0
}

// mayBeLate reports whether a publish for the attachment that got no final answer may still take effect.
func (v *volume) mayBeLate(a Attachment) bool {
	doubt := a.Call.latestDoubt()
	return doubt != nil && !doubt.over(v.now)
}

// waitForPlace waits until another attachment stands for what is published for this one.
func (v *volume) waitForPlace(a Attachment) {
	if v.mayBeLate(a) {
		v.wait(a, PublishInDoubt, a.Call.latestDoubt().Until)
		return
	}
	v.wait(a, OtherWriterAttached, time.Time{})
}

// Places are the node IDs at which the volume is or may be for the attachment, or by which the driver may know its node.
func (a Attachment) Places() []string {
	return append(a.publishedTo(), a.NodeID, a.SameMachine)
}
