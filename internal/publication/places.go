package publication

import (
	"slices"
	"time"

	"belay.dev/belay/internal/planted"
)

// A place is a volume at a CSI node ID: what a driver publishes and unpublishes. Several attachments may be for one, as those of two Nodes that
// one ID is registered for (harvester/harvester#6981, hetznercloud/csi-driver#685), or of one Node that was made again. An unpublish for one of
// them takes the volume from all.

// names are the node IDs by which the driver may know, or have known, the machine of a node ID of the attachment: the recorded one is of the same
// machine as SameMachine.
func (a Attachment) names(nodeID string) []string {
	if nodeID == a.RecordedNodeID && a.SameMachine != "" {
		return []string{nodeID, a.SameMachine}
	}
	return []string{nodeID}
}

// holds reports whether the attachment ends only after the volume was unpublished from one of the node IDs.
func (a Attachment) holds(nodeIDs []string) bool {
	return slices.ContainsFunc(nodeIDs, func(id string) bool { return id != "" && (a.boundNodeID() == id || a.SameMachine == id) })
}

// unpublishes reports whether it is still to be unpublished from one of them.
func (a Attachment) unpublishes(nodeIDs []string) bool {
	return slices.ContainsFunc(a.publishedTo(), func(id string) bool {
		return slices.ContainsFunc(a.names(id), func(name string) bool { return slices.Contains(nodeIDs, name) })
	})
}

// needs reports whether the volume must stay at the node ID for other, although it is to be unpublished there for a: other may be published
// there, and is not being deleted, or comes later of several that are: the last one of a place unpublishes. One that has not begun needs
// nothing: it is published afterwards.
func (v *volume) needs(other, a Attachment, nodeID string) bool {
	names := a.names(nodeID)
	switch {
	case other.UID == a.UID, other.Gone, !other.mayBePublished(), other.mayBeAnothers(), planted.SharedPlace:
		return false
	case other.Deleting:
		return other.Finalizer && other.DeclaredGone == "" && other.holds(names) && other.unpublishes(names) &&
			(a.Gone || a.Deleting && olderFirst(a, other) < 0)
	}
	return other.holds(names) || other.Attached && nodeID != "" && slices.Contains(names, other.NodeID) // the driver may know the node by that ID now
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
			return other.Finalizer && other.holds(a.names(id)) && v.needs(other, a, id)
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
