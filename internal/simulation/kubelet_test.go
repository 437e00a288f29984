package simulation

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// A kubelet goes about volumes as upstream's: claim the volume in volumesInUse, read the Node
// live, mount what it reports; unmount, then drop the claim.

// kubelet takes one step for one volume, if it has one to take.
func (s *sim) kubelet(m *machine, handle string) (did bool) {
	node, ok := get[*corev1.Node](s.api, m.name)
	switch {
	case !m.on || !m.online:
		return false
	case !ok: // it gets its pods, and has no Node to read
		return s.unmount(m, handle, s.runsAt(m, handle))
	}
	v, wanted := m.of(handle), s.runsAt(m, handle) && !isOutOfService(node)
	switch {
	case !isReady(node) || !s.introduced(m, node):
		change(s.api, node, func(n *corev1.Node) {
			s.introduce(m, n)
			setReady(n, corev1.ConditionTrue)
		})
		s.say("kubelet %s: ready", m)
	case !m.synced(node):
		m.sync(s, node)
	case wanted && !v.claimed:
		v.claimed = true
		s.start(m, handle)
	case wanted && !v.mounted && !v.verified && !reports(node, handle):
		return false // read again and again
	case wanted && !v.mounted && !v.verified:
		v.verified, v.node = true, node.UID
		s.say("kubelet %s: reads the node, %s is reported", m, handle)
	case wanted && !v.mounted && s.mountable(m, handle):
		s.judgeMount(m, handle, sameMachine)
		v.mounted = true
		s.say("kubelet %s: mounts %s", m, handle)
	default:
		return s.unmount(m, handle, wanted)
	}
	return true
}

// unmount is the way down: unmount, drop the claim, let pods that ended go.
func (s *sim) unmount(m *machine, handle string, wanted bool) (did bool) {
	switch v := m.of(handle); {
	case !wanted && v.mounted && v.claimed && v.hidden && s.lists.IntN(4) > 0: // its status is sent before it has unmounted
		v.claimed = false
		m.behind, m.due = true, time.Time{}
		if !s.calm {
			m.unmounts = time.Now().Add(time.Duration(s.lists.IntN(20)) * time.Second)
		}
		s.say("kubelet %s: %s "+hides+", and is mounted", m, handle)
	case !wanted && v.mounted && (m.hung || v.hidden && !v.claimed && time.Now().Before(m.unmounts)):
		return false
	case !wanted && v.mounted:
		v.unmounted()
		s.say("kubelet %s: unmounts %s", m, handle)
	case !wanted && v.claimed:
		v.claimed = false
		v.unmounted()
	default:
		return s.endPods(m)
	}
	return true
}

// start notes the volume that pods run with, whatever becomes of their PersistentVolumes.
func (s *sim) start(m *machine, handle string) {
	for _, pod := range s.podsAt(m, handle) {
		for i, claim := range claimsOf(pod) {
			if s.runsWith(m, pod)[i] == handle {
				m.runs[use{pod.UID, claim}] = handle
			}
		}
	}
}

// podsAt are the pods of a machine that kubelet is to run with the volume.
func (s *sim) podsAt(m *machine, handle string) []*corev1.Pod {
	return slices.DeleteFunc(list[*corev1.Pod](s.api), func(p *corev1.Pod) bool {
		return p.Spec.NodeName != m.name || p.DeletionTimestamp != nil || !slices.Contains(s.runsWith(m, p), handle)
	})
}

// runsWith are the volumes that a pod was started with, or will be, in the order of its claims.
func (s *sim) runsWith(m *machine, p *corev1.Pod) []string {
	handles := s.handlesOf(p)
	for i, claim := range claimsOf(p) {
		handles[i] = cmp.Or(m.runs[use{p.UID, claim}], handles[i])
	}
	return handles
}

func (s *sim) runsAt(m *machine, handle string) bool { return len(s.podsAt(m, handle)) > 0 }

// claims are the names of the volumes that kubelet's memory says are in use.
func (m *machine) claims() []corev1.UniqueVolumeName {
	var names []corev1.UniqueVolumeName
	for _, handle := range slices.Sorted(maps.Keys(m.local)) {
		if m.local[handle].claimed {
			names = append(names, corev1.UniqueVolumeName(unique(handle)))
		}
	}
	return names
}

func (m *machine) synced(node *corev1.Node) bool {
	return slices.Equal(m.claims(), node.Status.VolumesInUse)
}

func (m *machine) sync(s *sim, node *corev1.Node) {
	change(s.api, node, func(n *corev1.Node) { n.Status.VolumesInUse = m.claims() })
	s.say("kubelet %s: in use %v", m, m.claims())
}

// mountable is kubelet's look at the attachment before it mounts, and what the storage
// says then.
func (s *sim) mountable(m *machine, handle string) bool {
	if handle == fibre {
		return true // the node connects it by itself
	}
	va, ok := get[*storagev1.VolumeAttachment](s.api, attachmentName(handle, m.name))
	return ok && va.Status.Attached && va.DeletionTimestamp == nil && s.storage.published[handle][s.nodeID(m, handle)]
}
