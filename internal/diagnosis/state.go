package diagnosis

import (
	"cmp"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/kube"
)

// state is a snapshot with its objects by name and by what they are about.
type state struct {
	*Snapshot

	pods        map[string]*corev1.Pod // by namespace/name, as claims
	claims      map[string]*corev1.PersistentVolumeClaim
	volumes     map[string]*corev1.PersistentVolume
	nodes       map[string]*corev1.Node
	csiNodes    map[string]*storagev1.CSINode
	drivers     map[string]*storagev1.CSIDriver
	attachments map[string]*storagev1.VolumeAttachment
	heartbeats  map[string]*coordinationv1.Lease // by node
	fences      map[string]*fencingv1.NodeFence  // by node
	sources     map[string]*fencingv1.FenceSource

	byKey     map[attachment.VolumeKey][]*corev1.PersistentVolume
	attached  map[attachment.VolumeKey][]*storagev1.VolumeAttachment
	uses      map[attachment.VolumeKey][]use
	byClaim   map[string][]*corev1.Pod
	events    map[string][]*corev1.Event             // by UID of the object, else by resource/namespace/name; newest first
	listed    map[string][]string                    // the nodes that report or use a volume, by its unique name
	hidden    map[string]bool                        // names that must not appear in an output
	carriers  map[kube.Identity][]string             // the nodes that have an identity; nil until it is asked for
	byNodeID  map[driverID][]string                  // the nodes for which a driver has registered an ID; nil until it is asked for
	latest    map[string]*storagev1.VolumeAttachment // the latest that a driver has attached; nil until it is asked for
	reported  map[*corev1.Pod][]report               // what node agents report of the volumes of those that were asked for
	underPod  map[*corev1.Pod][]Finding              // what is wrong with the volumes of those that were asked for
	explained map[*corev1.PersistentVolume]bool      // those that ofPersistentVolume was asked for
	slotsOf   map[string]filled                      // how far the slots of the drivers that were asked for are taken
	words     map[string]time.Time                   // when an attacher of each driver last wrote an error; nil until it is asked for
	leases    map[string]*coordinationv1.Lease       // of the attachers of those drivers that were asked for
	gone      map[string]bool                        // whether a driver is not installed any more, of those that were asked for
	never     map[string]bool                        // whether no attacher has ever worked for a driver, of those that were asked for
}

// use is a pod that needs a volume on its node.
type use struct {
	pod *corev1.Pod
	pv  string // empty for an inline volume
}

func newState(s *Snapshot) *state {
	s = s.confirmed()
	x := &state{
		Snapshot: s,
		pods:     index(s.Pods), claims: index(s.Claims), volumes: index(s.Volumes), nodes: index(s.Nodes), csiNodes: index(s.CSINodes),
		drivers: index(s.Drivers), attachments: index(s.Attachments), fences: map[string]*fencingv1.NodeFence{}, sources: index(s.FenceSources), heartbeats: map[string]*coordinationv1.Lease{},
		byKey:    map[attachment.VolumeKey][]*corev1.PersistentVolume{},
		attached: map[attachment.VolumeKey][]*storagev1.VolumeAttachment{},
		uses:     map[attachment.VolumeKey][]use{}, byClaim: map[string][]*corev1.Pod{}, events: map[string][]*corev1.Event{},
		listed: map[string][]string{}, reported: map[*corev1.Pod][]report{}, underPod: map[*corev1.Pod][]Finding{}, explained: map[*corev1.PersistentVolume]bool{}, never: map[string]bool{}, slotsOf: map[string]filled{},
		leases: map[string]*coordinationv1.Lease{}, gone: map[string]bool{},
	}
	x.chooseFences()
	for _, lease := range s.Leases {
		if lease.Namespace == corev1.NamespaceNodeLease {
			x.heartbeats[lease.Name] = lease
		}
	}
	for _, pv := range s.Volumes {
		if key, ok := kube.KeyOfVolume(pv); ok {
			x.byKey[key] = append(x.byKey[key], pv)
		}
	}
	for _, va := range s.Attachments {
		if key, ok := x.volumeOf(va); ok {
			x.attached[key] = append(x.attached[key], va)
		}
	}
	for _, pod := range s.Pods {
		if x.pods[join(pod.Namespace, pod.Name)] == pod { // it may have been read twice
			x.addPod(pod)
		}
	}
	for _, node := range s.Nodes {
		for _, name := range volumesOf(node) {
			x.listed[name] = append(x.listed[name], node.Name)
		}
	}
	x.addEvents()
	x.hidden = x.hiddenNames()
	return x
}

// confirmed returns the snapshot with the VolumeAttachments that have no attacher as attached: no client writes their status.
func (s *Snapshot) confirmed() *Snapshot {
	own := func(va *storagev1.VolumeAttachment) bool { return kube.NoAttacher(kube.DriverOf(va.Spec.Attacher)) }
	if !slices.ContainsFunc(s.Attachments, own) {
		return s
	}
	with := *s
	with.Attachments = slices.Clone(s.Attachments)
	for i, va := range with.Attachments {
		if own(va) {
			with.Attachments[i] = va.DeepCopy()
			with.Attachments[i].Status.Attached = true
		}
	}
	return &with
}

// object is what index needs to know of an API object.
type object interface {
	GetNamespace() string
	GetName() string
}

func index[T object](objects []T) map[string]T {
	byName := make(map[string]T, len(objects))
	for _, o := range objects {
		byName[join(o.GetNamespace(), o.GetName())] = o
	}
	return byName
}

func join(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// volumesOf returns what both lists of the node name, each once.
func volumesOf(node *corev1.Node) []string {
	names := make([]string, 0, len(node.Status.VolumesAttached)+len(node.Status.VolumesInUse))
	for _, v := range node.Status.VolumesAttached {
		names = append(names, string(v.Name))
	}
	for _, v := range node.Status.VolumesInUse {
		names = append(names, string(v))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (x *state) addPod(pod *corev1.Pod) {
	for i := range pod.Spec.Volumes {
		name := kube.ClaimName(pod, &pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		x.byClaim[join(pod.Namespace, name)] = append(x.byClaim[join(pod.Namespace, name)], pod)
		if key, pv, ok := x.volumeOfClaim(pod.Namespace, name); ok && kube.UsesClaim(pod, x.claims[join(pod.Namespace, name)]) {
			x.uses[key] = append(x.uses[key], use{pod: pod, pv: pv.Name})
		}
	}
	for _, inline := range kube.InlineVolumes(pod) {
		x.uses[inline.Key] = append(x.uses[inline.Key], use{pod: pod})
	}
}

// volumeOfClaim returns the volume that a claim is bound to.
func (x *state) volumeOfClaim(namespace, name string) (attachment.VolumeKey, *corev1.PersistentVolume, bool) {
	claim := x.claims[join(namespace, name)]
	if claim == nil || claim.Spec.VolumeName == "" {
		return attachment.VolumeKey{}, nil, false
	}
	pv := x.volumes[claim.Spec.VolumeName]
	if pv == nil {
		return attachment.VolumeKey{}, nil, false
	}
	key, ok := kube.KeyOfVolume(pv)
	return key, pv, ok
}

// volumeOf returns the volume of a VolumeAttachment: by its own data, by its PersistentVolume, else by its name among the volumes
// that its node lists, or among those that were read.
func (x *state) volumeOf(va *storagev1.VolumeAttachment) (attachment.VolumeKey, bool) {
	keys := kube.VolumesOf(va, x.volumes[kube.SourceName(va)], func(yield func(attachment.VolumeKey) bool) {
		if node := x.nodes[va.Spec.NodeName]; node != nil {
			kube.Named(volumesOf(node))(yield)
		}
	})
	switch len(keys) {
	case 0:
		return x.namedAfter(va)
	case 1:
		return keys[0], true
	}
	named := slices.IndexFunc(keys, func(key attachment.VolumeKey) bool { return kube.IsAttachmentOf(va, key) })
	return keys[max(named, 0)], true
}

// fewVolumes limits the volumes whose names are compared with those of VolumeAttachments.
const fewVolumes = 16

// namedAfter finds the volume of a VolumeAttachment whose PersistentVolume was not read among the few that were: several
// PersistentVolumes may share a handle.
func (x *state) namedAfter(va *storagev1.VolumeAttachment) (attachment.VolumeKey, bool) {
	if len(x.byKey) > fewVolumes {
		return attachment.VolumeKey{}, false
	}
	for key := range x.byKey {
		if kube.IsAttachmentOf(va, key) {
			return key, true
		}
	}
	return attachment.VolumeKey{}, false
}

func (x *state) addEvents() {
	for _, e := range x.Events {
		keys := []string{eventKey(e.InvolvedObject.Kind, e.InvolvedObject.Namespace, e.InvolvedObject.Name)}
		if e.InvolvedObject.UID != "" {
			keys = append(keys, string(e.InvolvedObject.UID))
		}
		for _, key := range keys {
			x.events[key] = append(x.events[key], e)
		}
	}
	for _, of := range x.events {
		slices.SortStableFunc(of, func(a, b *corev1.Event) int {
			return cmp.Or(eventTime(b).Compare(eventTime(a)), strings.Compare(eventSuffix(b), eventSuffix(a)))
		})
	}
}

func eventKey(kind, namespace, name string) string {
	return strings.ToLower(kind) + "/" + namespace + "/" + name
}

// eventSuffix orders the events of one second: client-go ends their names with the time in nanoseconds, in hexadecimal.
func eventSuffix(e *corev1.Event) string { return e.Name[strings.LastIndex(e.Name, ".")+1:] }

func eventTime(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

// lastEvent returns the newest event of the object with one of the reasons.
func (x *state) lastEvent(uid string, reasons ...string) *corev1.Event {
	for _, e := range x.events[uid] {
		if len(reasons) == 0 || slices.Contains(reasons, e.Reason) {
			return e
		}
	}
	return nil
}

// attachRequired is kube.AttachRequired.
func (x *state) attachRequired(driver string) bool {
	return kube.AttachRequired(x.drivers[driver])
}

// node describes a node and whether it is alive.
func (x *state) node(name string) NodeState {
	n := NodeState{Name: name, State: NodeUnknown}
	node := x.nodes[name]
	if lease := x.heartbeats[name]; lease != nil && lease.Spec.RenewTime != nil {
		n.LastHeartbeat = timePointer(lease.Spec.RenewTime.Time)
	}
	if node == nil {
		if x.exists(Ref{Resource: Nodes, Name: name}) == decision.No {
			n.State = NodeDeleted
		}
		return n
	}
	n.OutOfService = kube.OutOfService(node)
	n.State = NodeNotReady
	for _, c := range node.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		n.Since = timePointer(c.LastTransitionTime.Time)
		switch c.Status {
		case corev1.ConditionTrue:
			n.State = NodeReady
		case corev1.ConditionUnknown:
			n.State = NodeUnreachable
		case corev1.ConditionFalse:
		}
	}
	return n
}

func timePointer(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// ended reports whether the pod needs its volumes no longer.
func ended(u use) bool { return kube.PodEnded(u.pod) }

// usersOn returns the pods that need the volume on the node and have not ended, oldest first.
func (x *state) usersOn(key attachment.VolumeKey, node string) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, u := range x.uses[key] {
		if u.pod.Spec.NodeName == node && !ended(u) && !slices.Contains(pods, u.pod) {
			pods = append(pods, u.pod)
		}
	}
	slices.SortStableFunc(pods, older)
	return pods
}

func older(a, b *corev1.Pod) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
