package explain

import "fmt"

// What an operator can do about another attach/detach controller, or about a detach that may be unsafe.
const (
	DisableForeign    = "only one attach/detach controller may run: if the writer is another one, disable it"
	EndHalt           = "disable one of the two attach/detach controllers, and if belay-controller stays, restart it"
	CheckMachineIsOff = "make sure that the machine is off: its processes may still write to the volume"
	DetachAtStorage   = "if the driver refuses to attach the volume elsewhere, detach it from the node at the storage"
	RecreatePods      = "delete the pods that use the volume on this node: pods created after that mount it again"
)

// ChangedReport is a write that only the leading attach/detach controller may make.
const ChangedReport = "changed status.volumesAttached of the node"

// EmittedEvent is an event that only the leading attach/detach controller may emit.
func EmittedEvent(reason, component, kind, namespace, name string) string {
	return fmt.Sprintf("emitted %s as %s on %s %s/%s", reason, component, kind, namespace, name)
}

// CreatedAttachment is a create that only the leading attach/detach controller may make.
func CreatedAttachment(name string) string { return "created VolumeAttachment " + name }

// ForeignWrite reports a write of another component.
func ForeignWrite(writer, write string) string {
	return fmt.Sprintf("%q %s. Only one attach/detach controller may run: if this was another one, disable it", writer, write)
}

// Halted reports the write that proved that another attach/detach controller is running.
func Halted(writer, write string) string {
	return fmt.Sprintf("%q %s. belay-controller held back its own: another attach/detach controller is running. "+
		"belay-controller has halted; disable one of the two, and if belay stays, restart it", writer, write)
}
