package diagnosis

import (
	"slices"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// standing is what the lists of a node mean for a volume that has no VolumeAttachment there.
type standing uint8

const (
	// notListed: there is a VolumeAttachment, or the node does not list the volume, or too little was read to tell.
	notListed standing = iota
	// awaited: a pod of the node waits for the volume. A kubelet lists a volume before it is attached.
	awaited
	// switchedOff: the node is declared out of service and does not answer. Its lists are of the past.
	switchedOff
	// takenByFence: recovery has taken the volume from the boot that the node shows.
	takenByFence
	// takenAlive: recovery has taken the volume from the boot that the node shows, and this boot gave a sign of life since.
	takenAlive
	// reportedOnly: the node reports the volume as attached and does not use it.
	reportedOnly
	// usedWithout: the node uses the volume, so a VolumeAttachment was removed under it.
	usedWithout
)

// without returns what a node's lists mean for a volume that has no VolumeAttachment there.
func (x *state) without(key attachment.VolumeKey, name string) standing {
	node := x.nodes[name]
	if _, has := x.attachmentOn(key, name); has || node == nil || !slices.Contains(x.Whole, Attachments) {
		return notListed
	}
	unique := kube.UniqueVolumeName(key.Driver, key.Handle)
	reported, inUse := kube.Reported(node, unique), kube.InUse(node, unique)
	if !reported && !inUse {
		return notListed
	}
	switch n, f := x.node(name), x.fenceOf(name); {
	case f != nil && f.reason == fencing.Contradicted && f.Proven() && x.beingFenced(name):
		return takenAlive // whatever the node says of itself, and though it may be silent again
	case x.shutDown(n):
		return switchedOff
	case x.takes(f, key.Driver):
		return takenByFence
	case !inUse:
		return reportedOnly
	}
	return x.listedInUse(key, name, reported)
}

// listedInUse is without for a volume that a node, which may run, lists in use.
func (x *state) listedInUse(key attachment.VolumeKey, name string, reported bool) standing {
	users := x.usersOn(key, name)
	switch {
	case reported, slices.ContainsFunc(users, mounted):
		return usedWithout
	case len(users) > 0:
		return awaited
	case !x.podsKnown(key, name) || len(x.byKey[key]) == 0 && !slices.Contains(x.Whole, Volumes):
		return notListed // which pods use it is unknown
	}
	return usedWithout
}

// mayHave reports whether a node has a volume, or may have it: what only waits for it does not.
func (x *state) mayHave(key attachment.VolumeKey, name string) bool {
	s := x.without(key, name)
	return s != awaited && s != switchedOff && s != takenByFence
}

// lostUnder reports whether a node that works uses a volume whose VolumeAttachment was removed.
func (x *state) lostUnder(key attachment.VolumeKey, h *Holder) bool {
	return x.without(key, h.Node.Name) == usedWithout && (h.Node.State == NodeReady || h.Node.State == NodeUnknown) && !x.silentNode(h.Node)
}
