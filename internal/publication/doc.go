// Package publication decides what the attacher does next for one volume.
//
// It is the attacher's half of the plane: the controller says by creating and
// deleting VolumeAttachments where a volume shall be, and Decide turns one
// snapshot of them, and of what is known of calls to the driver, into steps.
// Every rule about when the driver may be called, and when a finalizer may be
// taken off, is in Decide and nowhere else.
//
// The package is pure: no clock, no context, no goroutine, standard library
// only.
package publication
