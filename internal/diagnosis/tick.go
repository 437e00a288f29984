package diagnosis

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// ticks reports whether a node's list of volumes in use is one that a kubelet publishes with its next status: its kubelet works, and the
// list is not that of belay-node, which writes it at once.
func (x *state) ticks(name string) bool {
	node := x.nodes[name]
	if node == nil || node.Annotations[kube.VolumesRootAnnotation] != "" {
		return false
	}
	n := x.node(name)
	return n.State == NodeReady && !x.silentNode(n) && !x.beingFenced(name)
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
func (x *state) unmountTick(key attachment.VolumeKey, h *Holder, w wait) []string {
	if w.reason != attachment.StillInUse || !x.ticks(h.Node.Name) {
		return nil
	}
	if pod := x.uncleaned(key, h.Node.Name); pod != nil {
		return []string{explain.NotCleanedUp(h.Node.Name, x.named(pod))}
	}
	lines := []string{explain.AwaitsUnmountStatus(h.Node.Name)}
	if !slices.ContainsFunc(x.uses[key], func(u use) bool { return u.pod.Spec.NodeName == h.Node.Name && ended(u) }) {
		lines = append(lines, explain.DeletedByForce)
	}
	return lines
}

// uncleaned is a pod that was deleted and has ended, and whose object the kubelet of the node has not removed: its volumes may still be mounted. The
// object of a pod with finalizers outlives that.
func (x *state) uncleaned(key attachment.VolumeKey, node string) *corev1.Pod {
	if !x.ticks(node) {
		return nil
	}
	i := slices.IndexFunc(x.uses[key], func(u use) bool {
		return u.pod.Spec.NodeName == node && u.pod.DeletionTimestamp != nil && ended(u) && len(u.pod.Finalizers) == 0
	})
	if i < 0 {
		return nil
	}
	return x.uses[key][i].pod
}

// stillListed is why a node lists a volume whose pod has ended: another pod uses it, or the kubelet has not unmounted it, or has not said so yet.
func (m *mover) stillListed(node *corev1.Node, ended *Hop) string {
	if users := m.usersOn(m.key, m.from); len(users) > 0 {
		return ", and " + m.named(users[0]) + " uses it there"
	}
	if !m.podsKnown(m.key, m.from) {
		return ", and a pod there that you may not read may use it"
	}
	if !m.ticks(m.from) {
		return ""
	}
	since, force := m.leftSince(), "; "+explain.DeletedByForce
	if m.old != nil {
		force = ""
	}
	left, hangs := m.uncleaned(m.key, m.from), !since.IsZero() && m.Now.Sub(since) > unmountUsual
	switch {
	case left != nil && hangs:
		return ", and " + explain.UnmountHangs + ": " + explain.NotCleanedUp(m.from, m.named(left))
	case left != nil:
		return "; " + explain.NotCleanedUp(m.from, m.named(left))
	case since.IsZero():
		return "; " + explain.AwaitsUnmountStatus(m.from) + "; " + explain.HangsAfter(unmountUsual) + force
	case hangs:
		return ", for longer than a status of its kubelet explains: " + explain.UnmountHangs + force
	}
	return "; " + explain.AwaitsUnmountStatus(m.from) + force + statusSince(node, ended)
}

// leftSince is since when no pod needs the volume on the node that it leaves.
func (m *mover) leftSince() time.Time {
	var waits time.Time
	if m.pod != nil {
		waits = scheduled(m.pod)
	}
	if m.oldVA != nil {
		waits = sinceRequest(m.oldVA, waits)
	}
	return m.unneededSince(m.key, m.from, waits)
}

// statusSince says whether the status that the Node shows is from before or after the end of the containers, if the API shows it.
func statusSince(node *corev1.Node, ended *Hop) string {
	switch status := lastStatus(node).Truncate(second); {
	case ended.At == nil || status.IsZero() || status.Equal(ended.At.Truncate(second)):
		return ""
	case status.Before(*ended.At):
		return "; the status that the Node shows is from before the containers ended"
	default:
		return "; its status of " + status.UTC().Format(time.TimeOnly) + ", after the containers ended, lists it too"
	}
}

// named is a pod by its name, if the caller may read it.
func (x *state) named(pod *corev1.Pod) string {
	if !x.mayName(pod.Namespace) {
		return "a pod in a namespace that you may not read"
	}
	return "pod " + join(pod.Namespace, pod.Name)
}

// mountTick says that the pod's own node has to list the volume first. A wait that has lasted longer has the reason MountFailing.
func mountTick(name string, w wait) []string {
	if w.detail != explain.NotListedYet {
		return nil
	}
	return []string{explain.AwaitsMountStatus(name)}
}

// unlisted reports whether a kubelet that works does not list a volume in use that it is to mount. It never lists one whose driver needs no attach
// (k/k v1.36.3 pkg/kubelet/volumemanager/volume_manager.go: GetVolumesInUse).
func (x *state) unlisted(node *corev1.Node, key attachment.VolumeKey) bool {
	return x.attachRequired(key.Driver) && !kube.InUse(node, kube.UniqueVolumeName(key.Driver, key.Handle)) && x.ticks(node.Name)
}
