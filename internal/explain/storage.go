package explain

import "fmt"

// FenceVolumes is the event, and the condition, of a fence by which volumes may be detached one by one.
func FenceVolumes(n int) string {
	return fmt.Sprintf("Nothing proves that the machine is off. Volumes attached to it whose drivers cut it off at the detach: %d. They are detached once no pod on the node uses them", n)
}

// FenceVolumesAdvice is added to the advice of such a fence while it waits.
func FenceVolumesAdvice(n int) string {
	return fmt.Sprintf(" %d of its volumes can be moved without that: delete the pods that use them with kubectl delete pod --force, and they are detached.", n)
}
