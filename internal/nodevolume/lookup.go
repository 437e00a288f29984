package nodevolume

// Lookup keeps the VolumeAttachment as read from the API server for as long as it is valid: until a call is made, which may take
// hours, or the Node's entries for the volume change. The volume may have been detached by force since, and attached again as
// another device (k/k#119273).
//
// The zero value knows nothing.
type Lookup struct {
	known         Attachment
	read          Reading
	invalidations int
}

// Reading identifies a read that began. Its result is ignored if the lookup was invalidated since.
type Reading struct{ invalidations, changes int }

// Known returns the attachment, Unknown if it has to be read.
func (l *Lookup) Known(node Node) Attachment {
	if l.read != (Reading{l.invalidations, node.Changes}) {
		return Attachment{}
	}
	return l.known
}

// Invalidate notes that the attachment may have been replaced.
func (l *Lookup) Invalidate() { l.invalidations++ }

// Begin starts a read; pass the result to [Lookup.Read].
func (l *Lookup) Begin(node Node) Reading { return Reading{l.invalidations, node.Changes} }

// Read records the result of a read.
func (l *Lookup) Read(begun Reading, found Attachment) { l.read, l.known = begun, found }

// InvalidatesAttachment reports whether a step may take as long as a driver call, so that the attachment must be read again after
// it.
func InvalidatesAttachment(step Step) bool {
	switch step.(type) {
	case ReadAttachment, LookForUsers:
		return false
	default:
		return true
	}
}
