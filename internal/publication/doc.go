// Package publication decides what the attacher does next for one volume.
//
// The controller states where a volume should be by creating and deleting VolumeAttachments. Decide turns a snapshot of them, and
// of what is known about calls to the driver, into steps. Every rule about when the driver may be called, and when a finalizer may
// be removed, is in Decide and nowhere else.
//
// The package is pure: no clock, no context, no goroutine, standard library only.
package publication
