package simulation

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
)

const namespace = "default"

// disk is one volume at the storage, with the PersistentVolumes that name it.
type disk struct {
	handle string
	modes  []corev1.PersistentVolumeAccessMode // of each PersistentVolume
	// exclusive is what must hold of it all the time.
	exclusive bool
	// meddled: somebody deleted an attachment of it by hand, and what follows is not
	// the plane's doing.
	meddled bool
}

// volumeName and claimName are those of the PersistentVolume of that index.
func (d *disk) volumeName(i int) string { return fmt.Sprintf("pv-%s-%d", d.handle, i) }
func (d *disk) claimName(i int) string  { return fmt.Sprintf("claim-%s-%d", d.handle, i) }

var (
	once = corev1.ReadWriteOnce
	many = corev1.ReadWriteMany
)

// fibre is what a Fibre Channel volume is called. It has no VolumeAttachment.
const fibre = "[50]:1"

// drawDisks chooses the volumes of a seed.
func (s *sim) drawDisks() {
	all := []*disk{
		{handle: "a^1", modes: []corev1.PersistentVolumeAccessMode{once}, exclusive: true},
		{handle: "twin", modes: []corev1.PersistentVolumeAccessMode{once, many}, exclusive: true},
		{handle: fibre, modes: []corev1.PersistentVolumeAccessMode{once}, exclusive: true},
		{handle: "shared", modes: []corev1.PersistentVolumeAccessMode{many}},
	}
	s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	s.disks = all[:1+s.rng.IntN(2)]
	slices.SortFunc(s.disks, func(a, b *disk) int { return len(b.handle) - len(a.handle) })
}

// objects are what an administrator makes, in an order that the seed chooses. Of two
// PersistentVolumes that share a handle the one that makes it exclusive comes first: a
// volume that turns exclusive after it was attached to two nodes is nobody's fault.
func (s *sim) objects() [][]client.Object {
	made := [][]client.Object{{&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}}}}
	for _, d := range s.disks {
		var group []client.Object
		for i, mode := range d.modes {
			pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: d.volumeName(i)}}
			pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{mode}
			if d.handle == fibre {
				pv.Spec.FC = &corev1.FCVolumeSource{TargetWWNs: []string{"50"}, Lun: new(int32(1))}
			} else {
				pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: d.handle}
			}
			pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: d.claimName(i)}
			group = append(group, pv)
		}
		made = append(made, group)
	}
	s.rng.Shuffle(len(made), func(i, j int) { made[i], made[j] = made[j], made[i] })
	return made
}

// administer makes the next objects.
func (s *sim) administer() (did bool) {
	if len(s.missing) == 0 {
		return false
	}
	for _, obj := range s.missing[0] {
		if pv, ok := obj.(*corev1.PersistentVolume); ok {
			pv.Spec.ClaimRef.UID = s.makeClaim(pv).GetUID()
		}
		s.mustCreate(obj)
		s.say("%s %s is made", kindOf(obj), obj.GetName())
	}
	s.missing = s.missing[1:]
	return true
}

func (s *sim) makeClaim(pv *corev1.PersistentVolume) client.Object {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pv.Spec.ClaimRef.Name}}
	claim.Spec.VolumeName, claim.Status.Phase = pv.Name, corev1.ClaimBound
	return s.mustCreate(claim)
}

// mustCreate makes an object of a model whose name is free.
func (s *sim) mustCreate(obj client.Object) client.Object {
	made, err := s.api.create(nil, nil, obj)
	if err != nil {
		panic(err)
	}
	return made
}

// user makes pods come and go.
func (s *sim) user() {
	if s.rival && s.chance(40) {
		for d := s.pickDisk(); s.chance(60); {
			s.attachByHand(d)
		}
		return
	}
	found := list[*corev1.Pod](s.api)
	if len(found) == 0 || len(found) < 4 && s.chance(50) {
		s.comePod()
		return
	}
	pod := found[s.rng.IntN(len(found))]
	if m := s.machines[pod.Spec.NodeName]; m.on && !m.of(s.handleOf(pod)).mounted && s.chance(70) {
		return // not before it has run
	}
	force := 15
	if node, ok := get[*corev1.Node](s.api, pod.Spec.NodeName); ok && !isReady(node) {
		force = 70 // people lose patience
	}
	switch {
	case s.chance(force):
		s.say("pod %s on %s is deleted by force", pod.Name, pod.Spec.NodeName)
		s.api.drop(pod)
	case pod.DeletionTimestamp == nil:
		s.say("pod %s on %s is deleted", pod.Name, pod.Spec.NodeName)
		change(s.api, pod, func(p *corev1.Pod) { now := metav1.Now().Rfc3339Copy(); p.DeletionTimestamp = &now })
	}
}

func (s *sim) comePod() {
	m, d := s.pickMachine(), s.pickDisk()
	node, ok := get[*corev1.Node](s.api, m.name)
	if ok && (isOutOfService(node) || !isReady(node)) {
		return
	}
	if !ok && s.begun { // a scheduler binds to what exists, or did until just now
		return
	}
	s.podsMade++
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("pod-", s.podsMade)}}
	pod.Spec.NodeName = m.name
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: d.claimName(s.rng.IntN(len(d.modes)))},
	}}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	s.mustCreate(pod)
	s.say("pod %s comes to %s with %s", pod.Name, m.name, pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName)
}

// handleOf is the volume that a pod uses.
func (s *sim) handleOf(pod *corev1.Pod) string {
	for _, d := range s.disks {
		for i := range d.modes {
			if pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName == d.claimName(i) {
				return d.handle
			}
		}
	}
	panic("a pod without a volume: " + pod.Name)
}

// wantedAt tells whether a pod at the node is to run with the volume.
func (s *sim) wantedAt(node, handle string) bool {
	return slices.ContainsFunc(list[*corev1.Pod](s.api), func(p *corev1.Pod) bool {
		return p.Spec.NodeName == node && s.handleOf(p) == handle && p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded
	})
}

// endPods is kubelet's last word on pods: containers end, and pods whose volumes are
// unmounted go.
func (s *sim) endPods(m *machine) (did bool) {
	for _, pod := range list[*corev1.Pod](s.api) {
		if pod.Spec.NodeName != m.name || pod.DeletionTimestamp == nil {
			continue
		}
		if handle := s.handleOf(pod); m.of(handle).mounted && !s.wantedAt(m.name, handle) {
			continue
		}
		s.say("kubelet %s: pod %s has ended", m.name, pod.Name)
		s.api.drop(pod)
		return true
	}
	return false
}

// collectPods is the pod garbage collector: pods on nodes that are gone or out of service
// are deleted by force.
func (s *sim) collectPods() {
	for _, pod := range list[*corev1.Pod](s.api) {
		node, ok := get[*corev1.Node](s.api, pod.Spec.NodeName)
		if !ok || isOutOfService(node) {
			s.say("pod %s on %s is collected", pod.Name, pod.Spec.NodeName)
			s.api.drop(pod)
		}
	}
}

// trouble is what befalls machines, and what people do.
func (s *sim) trouble(m *machine) {
	node, ok := get[*corev1.Node](s.api, m.name)
	switch s.rng.IntN(9) {
	case 0:
		s.restart(m)
	case 1: // a power cut, and later a person says so
		if m.on {
			s.powerOff(m)
		} else if ok && !isOutOfService(node) && s.policy.OutOfService {
			change(s.api, node, func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: kube.OutOfServiceTaint, Effect: corev1.TaintEffectNoExecute}}
				setReady(n, corev1.ConditionUnknown)
			})
			s.say("%s is out of service", m.name)
		}
	case 2: // back, and later a person says so
		if !m.on {
			s.boot(m)
		} else if ok && isOutOfService(node) && isReady(node) {
			change(s.api, node, func(n *corev1.Node) { n.Spec.Taints = nil })
			s.say("%s is back in service", m.name)
		}
	case 3: // the network of one machine
		if m.on && ok {
			m.online = !m.online
			s.say("%s online: %v", m.name, m.online)
		}
		if s.chance(50) {
			s.watchLifecycle()
		}
	case 4:
		s.watchLifecycle()
	case 5: // the Node object goes, the machine does not notice
		if ok && s.chance(50) && s.recorded(node) {
			s.say("node %s is deleted", m.name)
			s.api.drop(node)
			if csiNode, ok := get[*storagev1.CSINode](s.api, m.name); ok {
				s.api.drop(csiNode)
			}
		}
	case 6: // somebody makes the Node object again: kubelet goes on as it was
		if !ok && m.on && m.online {
			m.returned = true
			s.register(m)
		}
	case 7:
		s.collectPods()
	case 8:
		s.meddle(s.pickDisk())
	}
}

// watchLifecycle is the node lifecycle controller.
func (s *sim) watchLifecycle() {
	for _, node := range list[*corev1.Node](s.api) {
		if m := s.machines[node.Name]; (!m.on || !m.online) && isReady(node) {
			change(s.api, node, func(n *corev1.Node) { setReady(n, corev1.ConditionUnknown) })
			s.say("%s is not ready", m.name)
		}
	}
}

// recorded tells whether the attachments at the node know its present boot. A Node that
// is deleted in the moment between its boot and that record is not told from one that
// booted after it was deleted.
func (s *sim) recorded(node *corev1.Node) bool {
	return !slices.ContainsFunc(list[*storagev1.VolumeAttachment](s.api), func(va *storagev1.VolumeAttachment) bool {
		return va.Spec.NodeName == node.Name && va.Annotations[kube.NodeUIDAnnotation] == string(node.UID) &&
			va.Annotations[kube.BootIDAnnotation] != node.Status.NodeInfo.BootID
	})
}

// meddle is somebody with kubectl, in the seeds that have one.
func (s *sim) meddle(d *disk) {
	if !s.meddler || d.handle == fibre {
		return
	}
	own := list[*storagev1.VolumeAttachment](s.api)
	own = slices.DeleteFunc(own, func(va *storagev1.VolumeAttachment) bool { return s.diskOf(va) != d || va.DeletionTimestamp != nil })
	switch {
	case len(own) > 0 && s.chance(30):
		d.meddled = true
		s.say("somebody deletes %s of %s at %s", short(own[0].Name), d.handle, own[0].Spec.NodeName)
		_ = s.api.remove(nil, nil, attachments, own[0].Name, nil)
	case len(own) == 0 && s.chance(30):
		s.attachByHand(d)
	}
}

// attachByHand makes an attachment that belay-controller does not know of.
func (s *sim) attachByHand(d *disk) {
	if d.handle == fibre || len(s.missing) > 0 {
		return
	}
	node, name := s.pickMachine().name, d.volumeName(0)
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "by-hand-" + d.handle[:1] + "-" + node}}
	va.Spec.Attacher, va.Spec.NodeName, va.Spec.Source.PersistentVolumeName = driverName, node, &name
	if _, err := s.api.create(nil, nil, va); err == nil {
		d.meddled = true
		s.say("somebody attaches %s to %s by hand", d.handle, node)
	}
}

// diskOf is the volume of an attachment.
func (s *sim) diskOf(va *storagev1.VolumeAttachment) *disk {
	for _, d := range s.disks {
		for i := range d.modes {
			if va.Spec.Source.PersistentVolumeName != nil && *va.Spec.Source.PersistentVolumeName == d.volumeName(i) {
				return d
			}
		}
	}
	panic("an attachment without a volume: " + va.Name)
}

// recover makes a machine well. Only those that cannot be known to have stopped using
// their volumes have to be started again.
func (s *sim) recover(m *machine) {
	_, ok := get[*corev1.Node](s.api, m.name)
	forgot := false
	for handle, v := range m.local {
		forgot = forgot || v.mounted && (!v.claimed || s.disk(handle).meddled)
	}
	if !m.on || !ok || m.returned || forgot || s.chance(50) {
		s.boot(m)
	} else {
		m.online = true
		s.registerDriver(m)
	}
	if node, ok := get[*corev1.Node](s.api, m.name); ok && isOutOfService(node) {
		change(s.api, node, func(n *corev1.Node) { n.Spec.Taints = nil })
		s.say("%s is back in service", m.name)
	}
}
