package diagnosis

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// NodeMap is which node has which volumes, and how many more it takes.
type NodeMap struct {
	metav1.TypeMeta `json:",inline"`

	// Time is when the objects were read, by the clock of the API server.
	Time time.Time `json:"time"`
	// AtLeast is set when not all pods, claims and volumes could be read: more slots may be taken than shown.
	AtLeast bool `json:"atLeast,omitempty"`
	// Items are the nodes, the fullest first.
	Items []NodeVolumes `json:"items"`
	// Unread lists what could not be read, so that the map may lack it.
	Unread []Unread `json:"unread,omitempty"`
}

// NodeVolumes is a node with its volumes.
type NodeVolumes struct {
	Node NodeState `json:"node"`
	// Drivers are those that the node has registered or has volumes of.
	Drivers []DriverSlots `json:"drivers,omitempty"`
	Volumes []NodeVolume  `json:"volumes,omitempty"`
}

// DriverSlots is how many volumes of a driver a node has, and may have.
type DriverSlots struct {
	Driver string `json:"driver"`
	// Limit is allocatable.count of the CSINode; absent for no limit.
	Limit *int32 `json:"limit,omitempty"`
	// Used are the slots that the scheduler counts as taken: by the volumes of pods on the node and by VolumeAttachments, each once.
	Used int `json:"used"`
	// Uncounted are the VolumeAttachments that take a slot, and that the scheduler does not count: those of inline volumes, of
	// migrated volumes, and of PersistentVolumes that do not exist.
	Uncounted int `json:"uncounted,omitempty"`
	// Registered is set when the CSINode has the driver.
	Registered bool `json:"registered"`
	// Attached to Reported count volumes by state; a volume may have several.
	Attached  int `json:"attached"`
	Attaching int `json:"attaching"`
	Detaching int `json:"detaching"`
	InUse     int `json:"inUse"`
	Reported  int `json:"reported"`
}

// The states of a volume at a node.
const (
	// StateWanted: a pod on the node needs it, and it has no VolumeAttachment there.
	StateWanted = "wanted"
	// StateAttached to StateDetaching are the states of its VolumeAttachment.
	StateAttached  = "attached"
	StateAttaching = "attaching"
	StateDetaching = "detaching"
	// StateInUse and StateReported: status.volumesInUse and status.volumesAttached of the node list it.
	StateInUse    = "in use"
	StateReported = "reported"
)

// NodeVolume is a volume at a node.
type NodeVolume struct {
	Volume `json:",inline"`

	// Attachment is its VolumeAttachment for the node.
	Attachment string `json:"attachment,omitempty"`
	// States has one of "attached", "attaching", "detaching" and "wanted", and "in use" and "reported".
	States []string `json:"states"`
}

// Map shows the nodes, or the one with the name, and of their volumes all, or those of one driver.
func Map(s *Snapshot, node, driver string) NodeMap {
	x := newState(s)
	m := NodeMap{TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: "NodeMap"}, Time: s.Now, Items: []NodeVolumes{}, Unread: s.Unread}
	for _, r := range []Resource{Pods, Claims, Volumes, Attachments} {
		m.AtLeast = m.AtLeast || !slices.Contains(s.Whole, r)
	}
	for _, at := range x.atNodes(driver) {
		if node == "" || at.name == node {
			m.Items = append(m.Items, at.describe(x))
		}
	}
	slices.SortFunc(m.Items, func(a, b NodeVolumes) int {
		return cmp.Or(cmp.Compare(b.fullness(), a.fullness()), cmp.Compare(len(b.Volumes), len(a.Volumes)), strings.Compare(a.Node.Name, b.Node.Name))
	})
	return m
}

// fullness is the greatest part of a limit that is taken.
func (n *NodeVolumes) fullness() float64 {
	most := 0.0
	for i := range n.Drivers {
		most = max(most, n.Drivers[i].Fullness())
	}
	return most
}

// Fullness is the part of the limit that is taken, 0 without a limit.
func (d *DriverSlots) Fullness() float64 {
	switch {
	case d.Limit == nil:
		return 0
	case *d.Limit <= 0:
		return 1
	}
	return float64(d.Used) / float64(*d.Limit)
}

// atNode collects the volumes at a node.
type atNode struct {
	name    string
	volumes map[attachment.VolumeKey]*placed
	// unbound counts the claims of pods that have no volume yet, by driver.
	unbound map[string]map[string]bool
	limits  []storagev1.CSINodeDriver
}

// placed is a volume at a node.
type placed struct {
	va              *storagev1.VolumeAttachment
	pod             bool // a pod on the node needs it
	inUse, reported bool
}

func (n *atNode) at(key attachment.VolumeKey) *placed {
	p := n.volumes[key]
	if p == nil {
		p = &placed{}
		n.volumes[key] = p
	}
	return p
}

// atNodes places the volumes, or those of the driver, at the nodes that have, use, report or need them.
func (x *state) atNodes(driver string) []*atNode {
	nodes := map[string]*atNode{}
	at := func(name string) *atNode {
		if nodes[name] == nil {
			nodes[name] = &atNode{name: name, volumes: map[attachment.VolumeKey]*placed{}, unbound: map[string]map[string]bool{}}
		}
		return nodes[name]
	}
	is := func(name string) bool { return driver == "" || name == driver }
	for _, node := range x.Nodes {
		at(node.Name).list(node, is)
	}
	for _, node := range x.CSINodes {
		for _, d := range node.Spec.Drivers {
			if is(d.Name) {
				at(node.Name).limits = append(at(node.Name).limits, d)
			}
		}
	}
	for _, va := range x.Attachments {
		if !is(kube.DriverOf(va.Spec.Attacher)) {
			continue
		}
		key, ok := x.volumeOf(va)
		if !ok {
			key = attachment.VolumeKey{Driver: va.Spec.Attacher, Handle: unknownHandle + va.Name}
		}
		at(va.Spec.NodeName).at(key).va = va
	}
	for key, uses := range x.uses {
		for _, u := range uses {
			if node := u.pod.Spec.NodeName; node != "" && is(key.Driver) && assigned(u.pod) {
				at(node).at(key).pod = true
			}
		}
	}
	x.placeUnbound(at, is)
	return slices.SortedFunc(maps.Values(nodes), func(a, b *atNode) int { return strings.Compare(a.name, b.name) })
}

// list places the volumes that the Node lists.
func (n *atNode) list(node *corev1.Node, is func(driver string) bool) {
	for _, v := range node.Status.VolumesInUse {
		if key, ok := keyOf(string(v)); ok && is(key.Driver) {
			n.at(key).inUse = true
		}
	}
	for _, v := range node.Status.VolumesAttached {
		if key, ok := keyOf(string(v.Name)); ok && is(key.Driver) {
			n.at(key).reported = true
		}
	}
}

// unknownHandle begins the key of a volume of which only a VolumeAttachment is known; no driver's handle does.
const unknownHandle = "\x00"

// assigned reports whether the scheduler counts the pod: until it has ended, even while it is being deleted.
func assigned(pod *corev1.Pod) bool {
	return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// placeUnbound counts the claims without a volume of pods on nodes, as the scheduler does, by the driver that provisions them.
func (x *state) placeUnbound(at func(string) *atNode, is func(string) bool) {
	for _, claim := range x.Claims {
		if x.volumes[claim.Spec.VolumeName] != nil {
			continue
		}
		driver := claim.Annotations[ProvisionerAnnotation]
		if driver == "" || !is(driver) {
			continue
		}
		name := join(claim.Namespace, claim.Name)
		for _, pod := range x.byClaim[name] {
			if node := pod.Spec.NodeName; node != "" && assigned(pod) {
				if at(node).unbound[driver] == nil {
					at(node).unbound[driver] = map[string]bool{}
				}
				at(node).unbound[driver][name] = true
			}
		}
	}
}

// ProvisionerAnnotation is set by the PersistentVolume controller on claims that an external provisioner is to serve.
const ProvisionerAnnotation = "volume.kubernetes.io/storage-provisioner"

// describe counts the slots as the scheduler does (k/k pkg/scheduler/framework/plugins/nodevolumelimits/csi.go): the volumes of pods
// on the node, and the VolumeAttachments of CSI PersistentVolumes, each volume once.
func (n *atNode) describe(x *state) NodeVolumes {
	slots := map[string]*DriverSlots{}
	of := func(driver string) *DriverSlots {
		if slots[driver] == nil {
			slots[driver] = &DriverSlots{Driver: driver}
		}
		return slots[driver]
	}
	for i := range n.limits {
		d := of(n.limits[i].Name)
		d.Registered = true
		if a := n.limits[i].Allocatable; a != nil {
			d.Limit = a.Count
		}
	}
	out := NodeVolumes{Node: x.node(n.name)}
	for driver, claims := range n.unbound {
		of(driver).Used += len(claims)
	}
	for key, p := range n.volumes {
		d := of(key.Driver)
		switch {
		case p.pod && !kube.NoAttacher(key.Driver), p.va != nil && x.counted(p.va):
			d.Used++
		case p.va != nil:
			d.Uncounted++
		}
		v := p.describe(x, key)
		d.count(v.States)
		out.Volumes = append(out.Volumes, v)
	}
	for _, driver := range slices.Sorted(maps.Keys(slots)) {
		out.Drivers = append(out.Drivers, *slots[driver])
	}
	slices.SortFunc(out.Volumes, func(a, b NodeVolume) int {
		return cmp.Or(strings.Compare(a.Driver, b.Driver), strings.Compare(a.PersistentVolume, b.PersistentVolume),
			strings.Compare(a.Handle, b.Handle), strings.Compare(a.Attachment, b.Attachment))
	})
	return out
}

// counted reports whether the scheduler counts the VolumeAttachment: it looks up its PersistentVolume, which has to be a CSI volume.
func (x *state) counted(va *storagev1.VolumeAttachment) bool {
	pv := x.volumes[kube.SourceName(va)]
	return pv != nil && pv.Spec.CSI != nil && !kube.Migrated(pv)
}

func (d *DriverSlots) count(states []string) {
	for _, s := range states {
		switch s {
		case StateAttached:
			d.Attached++
		case StateAttaching:
			d.Attaching++
		case StateDetaching:
			d.Detaching++
		case StateInUse:
			d.InUse++
		case StateReported:
			d.Reported++
		}
	}
}

func (p *placed) describe(x *state, key attachment.VolumeKey) NodeVolume {
	var v NodeVolume
	if strings.HasPrefix(key.Handle, unknownHandle) {
		v.Volume = Volume{Driver: key.Driver, PersistentVolume: kube.SourceName(p.va)}
	} else {
		v.Volume = *x.describe(key, x.volume(key))
	}
	switch {
	case p.va == nil && p.pod:
		v.States = append(v.States, StateWanted)
	case p.va == nil:
	case p.va.DeletionTimestamp != nil:
		v.States = append(v.States, StateDetaching)
	case p.va.Status.Attached:
		v.States = append(v.States, StateAttached)
	default:
		v.States = append(v.States, StateAttaching)
	}
	if p.va != nil {
		v.Attachment = p.va.Name
	}
	if p.inUse {
		v.States = append(v.States, StateInUse)
	}
	if p.reported {
		v.States = append(v.States, StateReported)
	}
	return v
}
