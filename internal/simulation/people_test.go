package simulation

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
)

// user makes pods come and go.
func (s *sim) user() {
	if s.remakes && s.chance(35) {
		s.remake(s.slotToRemake())
		return
	}
	if s.others.IntN(100) < 15 && s.share() {
		return
	}
	if s.rival && s.chance(40) {
		for d := s.pickDisk(); s.chance(60); {
			s.attachByHand(d)
		}
		return
	}
	found := list[*corev1.Pod](s.api)
	if len(found) == 0 || len(found) < 3+len(s.slots) && s.chance(50) {
		s.comePod()
		return
	}
	pod := found[s.rng.IntN(len(found))]
	if s.chance(10) || s.createUnderway() && s.chance(60) {
		s.movePod(pod)
		return
	}
	if m := s.machines[pod.Spec.NodeName]; m.on && !m.mounts(s.runsWith(m, pod)) && s.chance(70) {
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

// movePod replaces a pod at once by one on another node that uses the same volume.
func (s *sim) movePod(pod *corev1.Pod) {
	s.say("pod %s on %s is deleted by force", pod.Name, pod.Spec.NodeName)
	s.api.drop(pod)
	s.comePodTo(s.pickMachine(), claimsOf(pod)...)
}

// createUnderway: an attachment may still be made that its maker has no answer about.
func (s *sim) createUnderway() bool {
	return slices.ContainsFunc(s.net.late, func(r *request) bool { return strings.HasPrefix(r.what, "CREATE") })
}

func (s *sim) comePod() {
	one := s.slots[s.rng.IntN(len(s.slots))]
	claims := []string{one.claim}
	if other := s.slots[s.rng.IntN(len(s.slots))]; other.disk != one.disk && other.disk != one.other && s.chance(50) {
		claims = append(claims, other.claim)
	}
	s.comePodTo(s.pickMachine(), claims...)
}

func claimsOf(pod *corev1.Pod) (names []string) {
	for _, v := range pod.Spec.Volumes {
		names = append(names, v.PersistentVolumeClaim.ClaimName)
	}
	return names
}

func (s *sim) comePodTo(m *machine, claims ...string) {
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
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	s.mustCreate(pod)
	s.say("pod %s comes to %s with %s", pod.Name, m.name, strings.Join(claims, " and "))
}

// endPods is kubelet's last word on pods: containers end, and pods whose volumes are
// unmounted go.
func (s *sim) endPods(m *machine) (did bool) {
	for _, pod := range list[*corev1.Pod](s.api) {
		if pod.Spec.NodeName != m.name || pod.DeletionTimestamp == nil {
			continue
		}
		if slices.ContainsFunc(s.runsWith(m, pod), func(handle string) bool { return m.of(handle).mounted && !s.runsAt(m, handle) }) {
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
	if !ok && s.chance(50) {
		s.comeBack(m)
		return
	}
	switch {
	case s.loses && s.chance(40) && s.loseNode(m):
		return
	case s.skewed && s.chance(25):
		s.stepClock()
		return
	case s.skewed && s.chance(25):
		s.cutOff(m)
		return
	}
	switch s.rng.IntN(12) {
	case 0:
		s.restart(m)
	case 1: // a power cut, and later a person says so
		if m.on {
			s.powerOff(m)
		} else if ok && !isOutOfService(node) && s.policy.OutOfService {
			s.taint(node)
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
		if ok {
			s.deleteNode(m, node)
		}
	case 6:
		s.comeBack(m)
	case 7:
		s.collectPods()
	case 8:
		s.meddle(s.pickDisk())
	case 9:
		s.stepClock()
	default:
		s.cutOff(m)
	}
}

// cutOff is a machine that still runs without network, and people who lose patience with its pods: it uses volumes that nothing in
// the API wants there.
func (s *sim) cutOff(m *machine) {
	for _, name := range machineNames { // better one that has something to lose
		if other := s.machines[name]; !m.uses() && other.uses() && other.on {
			m = other
		}
	}
	if _, ok := get[*corev1.Node](s.api, m.name); !ok || !m.on {
		return
	}
	m.online = false
	s.say("%s is cut off", m.name)
	s.watchLifecycle()
	s.losePatience(m)
	if !m.uses() || !s.chance(60) {
		return
	}
	if s.skewed && s.chance(50) {
		s.stepClockMeanwhile()
		return
	}
	if s.policy.OutOfService && s.chance(40) { // a person who takes the machine for dead
		node, _ := get[*corev1.Node](s.api, m.name)
		s.taint(node)
	}
	s.passBusily(s.policy.UnmountTimeout + time.Duration(1+s.rng.IntN(60))*time.Second)
}

// stepClockMeanwhile sets the clock of the leader while it waits for a machine that was cut off, and has it look again: time that only
// this clock shows must not count.
func (s *sim) stepClockMeanwhile() {
	look := func() {
		for range 6 {
			s.controller.work()
			s.settleDown() // or the worker would run beside what happens next
			s.passBusily(tick)
		}
	}
	look()
	s.stepClock()
	for range s.slots {
		s.comePod()
	}
	look()
}

// taint is a person who states that a machine is off.
func (s *sim) taint(node *corev1.Node) {
	change(s.api, node, func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: kube.OutOfServiceTaint, Effect: corev1.TaintEffectNoExecute}}
		setReady(n, corev1.ConditionUnknown)
	})
	s.say("%s is out of service", node.Name)
}

// losePatience is people who delete the pods of a machine by force, and make others.
func (s *sim) losePatience(m *machine) {
	for _, pod := range list[*corev1.Pod](s.api) {
		if pod.Spec.NodeName == m.name && s.chance(80) {
			s.say("pod %s on %s is deleted by force", pod.Name, m.name)
			s.api.drop(pod)
			s.comePod()
		}
	}
}

// watchLifecycle is the node lifecycle controller.
func (s *sim) watchLifecycle() {
	for _, node := range list[*corev1.Node](s.api) {
		if m := s.machines[node.Name]; (!m.on || !m.online) && isReady(node) {
			change(s.api, node, func(n *corev1.Node) { setReady(n, corev1.ConditionUnknown) })
			s.say("%s is not ready", m.name)
			if s.others.IntN(2) == 0 {
				s.controller.catchUp(true) // so that whatever it makes due is found
			}
		}
	}
}

// silence is the late status of a kubelet that lists a volume which was not given to it: others that wait for the volume have to be
// notified.
func (s *sim) silence() {
	for _, node := range list[*corev1.Node](s.api) {
		waits := slices.ContainsFunc(node.Status.VolumesInUse, func(name corev1.UniqueVolumeName) bool {
			return !slices.ContainsFunc(node.Status.VolumesAttached, func(v corev1.AttachedVolume) bool { return v.Name == name })
		})
		if waits && isReady(node) {
			change(s.api, node, func(n *corev1.Node) { setReady(n, corev1.ConditionUnknown) })
			s.say("%s is not ready, for a moment", node.Name)
			s.controller.catchUp(true)
			return
		}
	}
}

// meddle is a person with kubectl, in the seeds that have one.
func (s *sim) meddle(d *disk) {
	if !s.meddler || d.handle == fibre {
		return
	}
	own := list[*storagev1.VolumeAttachment](s.api)
	own = slices.DeleteFunc(own, func(va *storagev1.VolumeAttachment) bool { return s.diskOf(va) != d || va.DeletionTimestamp != nil })
	switch {
	case len(own) > 0 && s.chance(30):
		s.say("a person deletes %s of %s at %s", short(own[0].Name), d.handle, own[0].Spec.NodeName)
		_ = s.api.remove(nil, nil, attachments, own[0].Name, nil)
	case len(own) == 0 && s.chance(30):
		s.attachByHand(d)
	}
}

// attachByHand makes an attachment that belay-controller does not know of: a person's, under a
// name of its own, or another controller's.
func (s *sim) attachByHand(d *disk) {
	if d.handle == fibre || len(s.missing) > 0 {
		return
	}
	slot := s.slotOf(d)
	if slot == nil {
		return
	}
	node, name := s.pickMachine().name, slot.volume
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "by-hand-" + d.handle + "-" + node}}
	another := s.rival && s.chance(50)
	if another {
		va.Name = attachmentName(d.handle, node)
	}
	va.Spec.Attacher, va.Spec.NodeName, va.Spec.Source.PersistentVolumeName = d.key().Driver, node, &name
	if _, ok := s.byHand[va.Name]; ok {
		return
	}
	if !another {
		s.byHand[va.Name] = d
	}
	if _, err := s.api.create(nil, nil, va); err == nil {
		s.say("a person attaches %s to %s by hand", d.handle, node)
	}
}
