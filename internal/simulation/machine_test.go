package simulation

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/excuse"
)

// machine is one piece of hardware with its kubelet. Its name is that of its Node; another machine may take over the name while
// this one still runs.
type machine struct {
	name   string
	nth    int  // of the machines that had the name
	on     bool // power
	online bool // reaches the API server
	boot   int
	// hung: unmounts do not end.
	hung bool
	// replaced: another machine has its name now; held are the attachments that it had then. alike: nothing that the two show is different but
	// their boots.
	replaced, alike bool
	held            map[string]types.UID
	local           map[string]*local // by volume handle
	// runs is the volume that each pod was started with, which outlives a PersistentVolume that is recreated under its name.
	runs map[use]string
	// due is when kubelet will have sent its list, and unmounted what no pod wants and it does
	// not list, if it stays Ready until then: see settleTime. Zero when it has, or is not Ready.
	due    time.Time
	behind bool // it has not
	// unmounts is when it begins to unmount what it does not list.
	unmounts time.Time
	node     types.UID
	renewed  time.Time // its lease, by the API server's clock
	renews   int
	clock    *wallClock
}

// settleTime is how long after it became Ready a kubelet that was restarted, or whose Node was recreated, may take until its list
// of volumes in use is complete and it has unmounted what no pod wants and what it does not list. The reconciler of kubelet's
// volume manager rebuilds from disk what is mounted, begins to unmount once all pods are known (k8s.io/kubernetes
// pkg/kubelet/volumemanager/reconciler: readyToUnmount, unmountVolumes), runs every 100 ms, and the list is sent with the next
// status, every 10 s.
const settleTime = 30 * time.Second

const (
	// renewInterval is that of kubelet's lease (nodeLeaseDurationSeconds 40, a quarter).
	renewInterval = 10 * time.Second
	// leaseDuration is how long a lease is good for.
	leaseDuration = 40 * time.Second
)

// use is one volume of a pod.
type use struct {
	pod   types.UID
	claim string
}

// local is one volume at one machine. The zero value knows nothing of it.
type local struct {
	claimed bool // kubelet's memory says in use; the Node says so after a sync
	// hidden: the kubelet restarted while the Node did not report what is mounted. It takes that for a volume that needs no attach, and so
	// claims it only as long as a pod wants it (attachment.SyncWindow).
	hidden   bool
	verified bool // the Node was read live, and reports the volume: it may be mounted
	mounted  bool
	node     types.UID // of the Node that it was reported by then
	forced   bool      // detached by a policy that takes the machine for dead
	// unrecorded is the attachment whose record did not fit the boot of the machine when its Node was deleted.
	unrecorded types.UID
	// removed: a person deleted the VolumeAttachment of what was in use, which is then unpublished; lost: the Node as well.
	removed, lost bool
	// inherited: the machine took over a Node that reported the volume to the one before.
	inherited bool
	// left is since when no pod has wanted the volume of a machine whose Node is gone or
	// another machine's.
	left time.Time
}

// counts: the volume is mounted, or is about to be, and nothing has taken it from the machine.
func (s *sim) counts(m *machine, handle string) bool {
	v := m.of(handle)
	return (v.mounted || v.verified) && !v.lost && (!v.forced || s.givenBack(m, handle))
}

// givenBack: what was taken from the machine is published to it again, or about to be, and an attachment of it stays. Of a machine whose
// name another one has, that is the one that it had.
func (s *sim) givenBack(m *machine, handle string) bool {
	if handle == fibre || !s.storage.gives(handle, s.nodeID(m, handle)) {
		return false
	}
	return slices.ContainsFunc(s.attachmentsAt(m.name), func(va *storagev1.VolumeAttachment) bool {
		return s.diskOf(va).handle == handle && va.DeletionTimestamp == nil && (!m.replaced || va.UID == m.held[handle])
	})
}

// unmounted: nothing is left of the volume but the claim.
func (v *local) unmounted() {
	v.mounted, v.verified, v.forced, v.lost, v.hidden, v.unrecorded = false, false, false, false, false, ""
}

func (m *machine) of(handle string) *local {
	if m.local[handle] == nil {
		m.local[handle] = &local{}
	}
	return m.local[handle]
}

func (s *sim) newMachine(name string) *machine {
	m := &machine{name: name, on: true, online: true, local: map[string]*local{}, runs: map[use]string{}, clock: s.newClock()}
	if before := s.machines[name]; before != nil {
		m.nth = before.nth + 1
	}
	s.machines[name] = m
	return m
}

// all are the machines of a name, the present one last.
func (s *sim) all(name string) []*machine {
	var found []*machine
	for _, m := range s.cutOffs {
		if m.name == name {
			found = append(found, m)
		}
	}
	return append(found, s.machines[name])
}

// everyMachine gives all machines, also those whose names others have.
func (s *sim) everyMachine() []*machine {
	var found []*machine
	for _, name := range machineNames {
		found = append(found, s.all(name)...)
	}
	return found
}

func (m *machine) String() string { return m.name + strings.Repeat("'", m.nth) }

// identity is what the machines of a seed say of themselves.
type identity struct {
	boot, system, provider bool
	// idsByName: the driver knows a machine by its Node's name, not by its hardware.
	idsByName bool
	// uuid is the system UUID of all machines: what their firmware shows where none was set, or that of an image. Empty: each has its own.
	uuid string
}

// What all machines of a seed may show.
const defaultUUID, clonedUUID = "03000200-0400-0500-0006-000700080009", "4c4c4544-0051-3910-8052-b4c04f4d3532"

func (s *sim) drawIdentity() {
	s.identity = identity{boot: !s.chance(15), system: !s.chance(20), provider: s.chance(50), idsByName: s.chance(50)}
	s.storage.perNode = s.others.IntN(2) == 0
	if s.identity.system && s.alike {
		s.identity.uuid = []string{defaultUUID, defaultUUID, clonedUUID}[s.boxes.IntN(3)]
	}
	if s.identity.uuid != "" && s.boxes.IntN(10) > 0 { // nor does anything else tell them apart
		s.identity.provider, s.identity.idsByName, s.swapIn = false, true, 1+s.boxes.IntN(steps/8)
		s.policy.DeletedNode = attachment.DeletedNodeWait
	}
}

// nodeID is what the driver of a volume calls the machine.
func (s *sim) nodeID(m *machine, handle string) string {
	return s.nodeIDAt(m, volumeOf(handle).Driver)
}

func (s *sim) nodeIDAt(m *machine, driver string) string {
	id := "id-" + m.name
	if driver == otherDriver {
		id = "other-" + id
	}
	if s.identity.idsByName {
		return id
	}
	return id + strings.Repeat("-other", m.nth)
}

// byID is the machine that the driver of a volume knows by that ID now.
func (s *sim) byID(id, handle string) *machine {
	for _, m := range slices.Backward(s.everyMachine()) {
		if s.nodeID(m, handle) == id {
			return m
		}
	}
	panic("the driver of " + handle + " knows no node " + id)
}

func said(says bool, text string) string {
	if !says {
		return ""
	}
	return text
}

func (s *sim) bootID(m *machine) string {
	return said(s.identity.boot, fmt.Sprintf("boot-%s-%d-%d", m.name, m.nth, m.boot))
}

// introduce has a Node say which machine stands behind it. The provider's name of the machine
// cannot be changed once it is there.
func (s *sim) introduce(m *machine, node *corev1.Node) {
	node.Status.NodeInfo.BootID = s.bootID(m)
	node.Status.NodeInfo.SystemUUID = said(s.identity.system, cmp.Or(s.identity.uuid, fmt.Sprintf("machine-%s-%d", m.name, m.nth)))
	if node.Spec.ProviderID == "" {
		node.Spec.ProviderID = s.providerID(m)
	}
}

// introduced reports whether the Node has the status of its kubelet.
func (s *sim) introduced(m *machine, node *corev1.Node) bool {
	own := node.DeepCopy()
	s.introduce(m, own)
	return own.Status.NodeInfo == node.Status.NodeInfo && own.Spec.ProviderID == node.Spec.ProviderID
}

// newNode is the Node object as kubelet registers it.
func (s *sim) newNode(m *machine) *corev1.Node {
	node := bareNode(m.name)
	s.introduce(m, node)
	setReady(node, corev1.ConditionTrue)
	return node
}

func bareNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Annotations: map[string]string{kube.ManagedAttachAnnotation: "true"},
	}}
}

func setReady(node *corev1.Node, status corev1.ConditionStatus) {
	now := metav1.Time{Time: time.Now().Truncate(time.Second)}
	condition := corev1.NodeCondition{Type: corev1.NodeReady, Status: status, LastHeartbeatTime: now, LastTransitionTime: now}
	if len(node.Status.Conditions) > 0 && node.Status.Conditions[0].Status == status {
		condition.LastTransitionTime = node.Status.Conditions[0].LastTransitionTime
	}
	node.Status.Conditions = []corev1.NodeCondition{condition}
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func isOutOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == kube.OutOfServiceTaint })
}

func reports(node *corev1.Node, handle string) bool {
	return slices.ContainsFunc(node.Status.VolumesAttached, func(v corev1.AttachedVolume) bool { return string(v.Name) == unique(handle) })
}

func unique(handle string) string {
	key := volumeOf(handle)
	return kube.UniqueVolumeName(key.Driver, key.Handle)
}

// register makes the Node object, and the CSINode that goes with it.
func (s *sim) register(m *machine, node *corev1.Node) {
	made, err := s.api.create(nil, nil, node)
	if err != nil {
		return
	}
	m.node, m.behind = made.GetUID(), true
	s.say("%s registers, %s", m, s.bootID(m))
	if m.uses() || len(s.attachmentsAt(m.name)) > 0 {
		s.say("%s "+returns, m)
	}
	if m.on && m.online {
		s.registerDriver(m)
	}
}

func (s *sim) registerDriver(m *machine) {
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: m.name}}
	for _, d := range s.drivers {
		node.Spec.Drivers = append(node.Spec.Drivers, storagev1.CSINodeDriver{Name: d.name, NodeID: d.inForm(s.nodeIDAt(m, d.name))})
	}
	switch old, ok := get[*storagev1.CSINode](s.api, m.name); {
	case !ok:
		s.mustCreate(node)
	case !slices.Equal(nodeIDs(old), nodeIDs(node)):
		change(s.api, old, func(n *storagev1.CSINode) { n.Spec.Drivers = node.Spec.Drivers })
	default:
		return
	}
	s.say("%s registers its drivers as %v", m, nodeIDs(node))
}

func nodeIDs(node *storagev1.CSINode) (ids []string) {
	for _, d := range node.Spec.Drivers {
		ids = append(ids, d.NodeID)
	}
	return ids
}

// restart restarts kubelet. It finds its mounts, and takes those that the Node reports
// for attachable: the others stay out of its list while they are mounted. A kubelet
// whose Node is gone registers a new one.
func (s *sim) restart(m *machine) {
	if !m.on || !m.online {
		return
	}
	node, ok := get[*corev1.Node](s.api, m.name)
	s.say("kubelet %s restarts", m)
	m.runs = map[use]string{}
	for handle, v := range m.local {
		v.verified = false
		v.claimed = v.mounted && ok && reports(node, handle)
		v.hidden = v.mounted && !v.claimed
	}
	m.behind = true
	if !ok {
		s.register(m, s.newNode(m))
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
	m.on, m.online, m.hung, m.local, m.runs = true, true, false, map[string]*local{}, map[use]string{}
	s.say("%s boots", m)
	s.arise(m)
}

// arise has the kubelet of a machine that was just started put itself in its Node's place.
func (s *sim) arise(m *machine) {
	node, ok := get[*corev1.Node](s.api, m.name)
	if !ok {
		s.register(m, s.newNode(m))
		return
	}
	m.node = node.UID
	for _, d := range s.disks {
		m.of(d.handle).inherited = m.nth > 0 && reports(node, d.handle)
	}
	s.registerDriver(m)
	change(s.api, node, func(n *corev1.Node) {
		s.introduce(m, n)
		n.Status.VolumesInUse = nil
		setReady(n, corev1.ConditionTrue)
	})
}

// powerOff takes the machine's power.
func (s *sim) powerOff(m *machine) {
	m.on, m.online = false, false
	for _, v := range m.local {
		v.mounted, v.verified, v.hidden = false, false, false
	}
	s.say("%s loses its power", m)
}

// replace puts another machine in the place of one, under its name. If the replaced machine has power, it continues with what it
// has mounted, without network.
func (s *sim) replace(m *machine) {
	s.leave(m)
	m.online, m.replaced = false, true
	m.held = s.heldAt(m)
	s.cutOffs, s.left[m] = append(s.cutOffs, m), s.api.version
	other := s.newMachine(m.name)
	s.say("%s comes in the place of %s, which is on: %v", other, m, m.on)
	s.arise(other)
}

// heldAt are the volumes that are attached to a machine, with the UIDs of their attachments; empty if it has none.
func (s *sim) heldAt(m *machine) map[string]types.UID {
	held := map[string]types.UID{}
	for _, va := range s.attachmentsAt(m.name) {
		held[s.diskOf(va).handle] = va.UID
	}
	return held
}

// replacedHolds reports whether a machine that another one replaced may still have a volume: no other gets it before the unmount timeout.
func (s *sim) replacedHolds() bool {
	return slices.ContainsFunc(s.cutOffs, func(m *machine) bool {
		now := s.heldAt(m)
		for handle, uid := range m.held {
			if is, ok := now[handle]; ok && is == uid {
				return true
			}
		}
		return false
	})
}

// leave notes since when pods have wanted nothing of a machine whose Node is no longer its
// own: those that come to the Node later do not come to the machine.
func (s *sim) leave(m *machine) {
	for _, d := range s.disks {
		if v := m.of(d.handle); v.left.IsZero() {
			v.left = s.requests.since(d, m.name)
		}
	}
}

// passing gets the machines ready for some time to pass: kubelets do their duty when it is due.
func (s *sim) passing(d time.Duration) {
	for _, name := range machineNames {
		m := s.machines[name]
		node, ok := get[*corev1.Node](s.api, name)
		if ok && node.UID != m.node {
			m.node, m.behind = node.UID, true
		}
		switch {
		case !m.behind:
		case !m.on || !m.online || !ok || !isReady(node):
			m.due = time.Time{}
		case m.due.IsZero():
			m.due = time.Now().Add(settleTime)
		case time.Until(m.due) < d:
			s.settle(m)
		}
	}
}

// passed has the kubelets renew their leases, as they did while that time passed.
func (s *sim) passed(d time.Duration) {
	for _, name := range machineNames {
		m := s.machines[name]
		_, ok := get[*corev1.Node](s.api, name)
		now := time.Now().Truncate(renewInterval)
		beats := int(now.Sub(time.Now().Add(-d).Truncate(renewInterval)) / renewInterval)
		if m.on && m.online && beats > 0 && (ok || s.leases[name]) {
			s.leases[name], m.renewed, m.renews = true, now, m.renews+beats
		}
	}
}

// settle is what a kubelet does that was restarted, or whose Node was recreated.
func (s *sim) settle(m *machine) {
	m.behind, m.due = false, time.Time{}
	for _, handle := range slices.Sorted(maps.Keys(m.local)) {
		if v := m.local[handle]; v.mounted && !v.claimed && !s.runsAt(m, handle) {
			if m.hung {
				s.excuse(excuse.HiddenMount) // it would keep it
			}
			v.unmounted()
			s.say("kubelet %s: unmounts %s, which it does not list", m, handle)
		}
	}
	if node, ok := get[*corev1.Node](s.api, m.name); ok && !m.synced(node) {
		m.sync(s, node)
	}
}

// lease is the Lease of a Node's kubelet.
func (s *sim) lease(name string) (client.Object, error) {
	m := s.machines[name]
	if !s.leases[name] || m == nil || m.renewed.IsZero() {
		return nil, apierrors.NewNotFound(resource("Lease"), name)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}}
	lease.UID = "lease-" + types.UID(name)
	lease.ResourceVersion = strconv.Itoa(firstVersion + 100000*m.nth + m.renews)
	lease.Spec.HolderIdentity = &name
	lease.Spec.LeaseDurationSeconds = new(int32(leaseDuration / time.Second))
	lease.Spec.RenewTime = &metav1.MicroTime{Time: m.renewed.Add(time.Duration(m.clock.ahead.Load()))}
	return lease, nil
}

// providerID is what the kubelet of the machine says, if anything.
func (s *sim) providerID(m *machine) string {
	return said(s.identity.provider, fmt.Sprintf("cloud://%s-%d", m.name, m.nth))
}
