package explain

import (
	"fmt"
	"time"
)

// A kubelet does not write status.volumesInUse when it changes: the list is a part of its node status, which it computes every
// nodeStatusUpdateFrequency and sends if it has changed (k/k v1.36.3 pkg/kubelet/kubelet.go: JitterUntil(syncNodeStatus), 4 % of jitter;
// pkg/kubelet/kubelet_node_status.go: tryUpdateNodeStatus). No other status is sent in between: fastNodeStatusUpdate works until the node
// is Ready for the first time, and a graceful shutdown of the node sends one (pkg/kubelet/nodeshutdown).

// StatusTick names the setting of the kubelet that a wait for its next status is due to.
const StatusTick = "nodeStatusUpdateFrequency, 10 s by default; this node's own setting was not read"

// Why a step that needs a status of the kubelet may have taken some seconds.
const (
	StatusTickRecorded    = "a kubelet publishes it with its next status, up to nodeStatusUpdateFrequency after the unmount, 10 s by default; belay-node at once"
	StatusTickBeforeMount = "before it mounts a volume, a kubelet lists it in use with its next status, up to nodeStatusUpdateFrequency later, 10 s by default"
)

// DeletedByForce is what a Pod object that is gone does not show. After a graceful delete the kubelet removes the object, once the containers
// have ended and the pod's own mounts are gone (k/k v1.36.3 pkg/kubelet/kubelet.go: SyncTerminatedPod). One that is deleted by force is gone at
// once, and its containers may have the grace period of the spec (pkg/kubelet/pod_workers.go: calculateEffectiveGracePeriod).
const DeletedByForce = "if the pod was deleted by force, its containers may run on for its grace period"

// UnmountHangs is what an unmount does that takes longer than usual.
const UnmountHangs = "the unmount fails or hangs"

// noForce is why a pod whose volumes are not unmounted is not to be deleted by force.
const noForce = "Do not delete the pod with --force: that unmounts nothing."

// HangsAfter is what to conclude where it is not known since when an unmount takes, which usually ends within a time.
func HangsAfter(usual time.Duration) string {
	return fmt.Sprintf("if this lasts for longer than %.0f s, %s", usual.Seconds(), UnmountHangs)
}

// NotCleanedUp describes the wait for a kubelet that has not finished with a pod that was deleted and has ended: it removes the object after it has
// unmounted the volumes of the pod (k/k v1.36.3 pkg/kubelet/kubelet.go: SyncTerminatedPod waits with WaitForUnmount before TerminatePod).
func NotCleanedUp(node, pod string) string {
	return fmt.Sprintf("the kubelet of node %s has not cleaned up after %s yet: it unmounts the volumes of the pod, and then removes the Pod object", node, pod)
}

// AwaitsUnmountStatus describes the wait for a node that still lists a volume which no pod needs there. The API does not show the unmount
// itself.
func AwaitsUnmountStatus(node string) string {
	return fmt.Sprintf("the kubelet of node %s unmounts the volume, and lists it in use until its next status (%s)", node, StatusTick)
}

// AwaitsMountStatus describes the wait for a node that has to list a volume before it mounts it: a kubelet does not even look whether the
// volume is attached before it has seen its own entry in the Node (k/k v1.36.3 pkg/kubelet/volumemanager/reconciler/reconciler_common.go:
// waitForVolumeAttach; kubelet_node_status.go: markVolumesFromNode).
func AwaitsMountStatus(node string) string {
	return fmt.Sprintf("the kubelet of node %s lists the volume in use with its next status, and mounts it only then (%s)", node, StatusTick)
}

// NotListedYet is why a node does not mount a volume that is attached to it; the sentence begins with the node.
const NotListedYet = "has to list it in status.volumesInUse before it mounts it, and has not done that yet"
