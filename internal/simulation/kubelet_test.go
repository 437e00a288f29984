package simulation

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
)

// machine is one machine with its kubelet, as upstream's goes about volumes: claim the
// volume in volumesInUse, read the Node live, mount what it reports; unmount, then drop
// the claim.
type machine struct {
	name   string
	on     bool // power
	online bool // reaches the API server
	boot   int
	// returned: the Node object was made anew since the machine booted.
	returned bool
	local    map[string]*local // by volume handle
}

// local is one volume at one machine. The zero value knows nothing of it.
type local struct {
	claimed  bool // kubelet's memory says in use; the Node says so after a sync
	verified bool // the Node was read live, and reports the volume: it may be mounted
	mounted  bool
	forced   bool // detached by a policy that takes the machine for dead
}

func (m *machine) of(handle string) *local {
	if m.local[handle] == nil {
		m.local[handle] = &local{}
	}
	return m.local[handle]
}

func nodeID(node string) string { return "id-" + node }

func (m *machine) bootID() string { return fmt.Sprintf("boot-%s-%d", m.name, m.boot) }

// newNode is the Node object as kubelet registers it.
func (m *machine) newNode() *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: m.name, Annotations: map[string]string{kube.ManagedAttachAnnotation: "true"},
	}}
	node.Status.NodeInfo.BootID, node.Status.NodeInfo.SystemUUID = m.bootID(), "machine-"+m.name
	setReady(node, corev1.ConditionTrue)
	return node
}

func setReady(node *corev1.Node, status corev1.ConditionStatus) {
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func isOutOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == kube.OutOfServiceTaint })
}

func listed(node *corev1.Node, handle string) bool {
	return slices.Contains(node.Status.VolumesInUse, corev1.UniqueVolumeName(unique(handle)))
}

func reports(node *corev1.Node, handle string) bool {
	return slices.ContainsFunc(node.Status.VolumesAttached, func(v corev1.AttachedVolume) bool { return string(v.Name) == unique(handle) })
}

func unique(handle string) string {
	if handle == fibre {
		return kube.UniqueVolumeName(kube.FibreChannelPlugin, handle)
	}
	return kube.UniqueVolumeName(driverName, handle)
}

// register makes the Node object, and the CSINode that goes with it.
func (s *sim) register(m *machine) {
	if _, err := s.api.create(nil, nil, m.newNode()); err != nil {
		return
	}
	s.say("kubelet %s registers, %s", m.name, m.bootID())
	s.registerDriver(m)
}

func (s *sim) registerDriver(m *machine) {
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: m.name}}
	node.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driverName, NodeID: nodeID(m.name)}}
	if _, err := s.api.create(nil, nil, node); err == nil {
		s.say("kubelet %s registers the driver", m.name)
	}
}

// kubelet takes one step for one volume, if it has one to take.
func (s *sim) kubelet(m *machine, handle string) (did bool) {
	node, ok := get[*corev1.Node](s.api, m.name)
	if !m.on || !m.online || !ok {
		return false
	}
	v, wanted := m.of(handle), s.wantedAt(m.name, handle) && !isOutOfService(node)
	switch {
	case !isReady(node):
		change(s.api, node, func(n *corev1.Node) { setReady(n, corev1.ConditionTrue) })
		s.say("kubelet %s: ready", m.name)
	case !m.synced(node):
		m.sync(s, node)
	case wanted && !v.claimed:
		v.claimed = true
	case wanted && !v.mounted && !v.verified && !reports(node, handle):
		return false // read again and again
	case wanted && !v.mounted && !v.verified:
		v.verified = true
		s.say("kubelet %s: reads the node, %s is reported", m.name, handle)
	case wanted && !v.mounted && s.mountable(m, handle):
		s.judgeMount(m, handle)
		v.mounted = true
		s.say("kubelet %s: mounts %s", m.name, handle)
	case !wanted && v.mounted:
		v.mounted, v.verified, v.forced = false, false, false
		s.say("kubelet %s: unmounts %s", m.name, handle)
	case !wanted && v.claimed:
		v.claimed, v.verified, v.forced = false, false, false
	default:
		return s.endPods(m)
	}
	return true
}

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
	s.say("kubelet %s: in use %v", m.name, m.claims())
}

// mountable is kubelet's look at the attachment before it mounts, and what the storage
// says then.
func (s *sim) mountable(m *machine, handle string) bool {
	if handle == fibre {
		return true // the node connects it by itself
	}
	va, ok := get[*storagev1.VolumeAttachment](s.api, kube.AttachmentName(handle, driverName, m.name))
	return ok && va.Status.Attached && va.DeletionTimestamp == nil && s.storage.published[handle][nodeID(m.name)]
}

// restart restarts kubelet. It finds its mounts, and takes those that the Node reports
// for attachable: the others stay out of its list while they are mounted. A kubelet
// whose Node is gone registers a new one.
func (s *sim) restart(m *machine) {
	if !m.on || !m.online {
		return
	}
	node, ok := get[*corev1.Node](s.api, m.name)
	s.say("kubelet %s restarts", m.name)
	for handle, v := range m.local {
		v.verified = false
		v.claimed = v.mounted && ok && reports(node, handle)
	}
	if !ok {
		m.returned = true
		s.register(m)
		return
	}
	s.registerDriver(m)
	if !m.synced(node) {
		m.sync(s, node)
	}
}

// boot starts the machine again: nothing is mounted, and the Node says so at once.
func (s *sim) boot(m *machine) {
	m.boot++
	m.on, m.online, m.returned, m.local = true, true, false, map[string]*local{}
	s.say("%s boots", m.name)
	node, ok := get[*corev1.Node](s.api, m.name)
	if !ok {
		s.register(m)
		return
	}
	s.registerDriver(m)
	change(s.api, node, func(n *corev1.Node) {
		n.Status.NodeInfo.BootID, n.Status.VolumesInUse = m.bootID(), nil
		setReady(n, corev1.ConditionTrue)
	})
}

// powerOff takes the machine's power.
func (s *sim) powerOff(m *machine) {
	m.on, m.online = false, false
	for _, v := range m.local {
		v.mounted, v.verified = false, false
	}
	s.say("%s loses its power", m.name)
}
