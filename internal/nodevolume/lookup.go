package nodevolume

// Lookup is the VolumeAttachment as read live, for as long as that may be relied on: until a call was made, which may
// have taken hours, or the Node says something else of the volume. The volume may have been detached by force
// meanwhile, and attached again as another device (k/k#119273).
//
// The zero value knows nothing.
type Lookup struct {
	known         Attachment
	read          Reading
	invalidations int
}

// Reading is a read that began: it counts for nothing if there was a doubt since.
type Reading struct{ invalidations, changes int }

// Known is the attachment, Unknown if it has to be read.
func (l *Lookup) Known(node Node) Attachment {
	if l.read != (Reading{l.invalidations, node.Changes}) {
		return Attachment{}
	}
	return l.known
}

// Invalidate says that the attachment may be another one since.
func (l *Lookup) Invalidate() { l.invalidations++ }

// Begin says that a read begins. What it returns is for [Lookup.Read].
func (l *Lookup) Begin(node Node) Reading { return Reading{l.invalidations, node.Changes} }

// Read takes what a read found.
func (l *Lookup) Read(begun Reading, found Attachment) { l.read, l.known = begun, found }

// InvalidatesAttachment says that a step takes as long as a call may take, and that the attachment is to be read again after it.
func InvalidatesAttachment(step Step) bool {
	switch step.(type) {
	case ReadAttachment, LookForUsers:
		return false
	default:
		return true
	}
}
