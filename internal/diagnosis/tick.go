package diagnosis

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// tickExplains is how long a wait for a list of volumes in use may have lasted that the kubelet's status tick still explains. It holds
// several ticks of a kubelet with its defaults.
const tickExplains = 2 * time.Minute

// ticks reports whether a node's list of volumes in use is one that a kubelet publishes with its next status: its kubelet works, and the
// list is not that of belay-node, which writes it at once.
func (x *state) ticks(name string) bool {
	node := x.nodes[name]
	if node == nil || node.Annotations[kube.VolumesRootAnnotation] != "" {
		return false
	}
	n := x.node(name)
	return n.State == NodeReady && !x.silentNode(n)
}

// lastStatus is when the kubelet computed the status that the Node has, by its own clock; zero if that is unknown. The node lifecycle
// controller, which may write the condition too, leaves that time.
func lastStatus(node *corev1.Node) time.Time {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.LastHeartbeatTime.Time
		}
	}
	return time.Time{}
}

// unmountTick says that the list of a holder is that of its kubelet's last status.
func (x *state) unmountTick(h *Holder, w wait) []string {
	if w.reason != attachment.StillInUse || !x.ticks(h.Node.Name) {
		return nil
	}
	return []string{explain.AwaitsUnmountStatus(h.Node.Name)}
}

// mountTick says that the pod's own node has to list the volume first. A wait that has lasted longer has the reason MountFailing.
func (x *state) mountTick(key attachment.VolumeKey, name string, w wait) []string {
	if node := x.nodes[name]; w.reason != explain.Mounting || node == nil || !x.unlisted(node, key) {
		return nil
	}
	return []string{explain.AwaitsMountStatus(name)}
}

// unlisted reports whether a kubelet that works does not list a volume in use that it is to mount.
func (x *state) unlisted(node *corev1.Node, key attachment.VolumeKey) bool {
	return !kube.InUse(node, kube.UniqueVolumeName(key.Driver, key.Handle)) && x.ticks(node.Name)
}
