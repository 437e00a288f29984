package recovery

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// plane is what happens around recovery: StatefulSets with one pod and one volume each, their scheduler, an attach/detach controller, and
// upstream's controllers that act on taints.
type plane struct {
	*world

	volumes []string
	// detaches is how the attach/detach controller treats a node that is out of service.
	detaches string
	// lag is how old the Nodes are that it sees; sees has them.
	lag  time.Duration
	sees []seenNodes
	pods int
	// boots: its VolumeAttachments say which boot they were made for, as belay's do and upstream's do not.
	boots bool
	// lies: the driver that was declared to cut at unpublish does not.
	lies bool
	// byStorage: what forces allowed last was on the proof that the driver cuts at unpublish.
	byStorage bool
	// unpublishes has when the driver answers the unpublish of each VolumeAttachment. It cuts some time before that.
	unpublishes map[string]time.Time
}

// cutDriver was declared to cut at unpublish. v3 has another driver.
const cutDriver, otherDriver = "cut.test", "disk.test"

func driverOf(volume string) string {
	if volume == "v3" {
		return otherDriver
	}
	return cutDriver
}

type seenNodes struct {
	at    time.Time
	nodes []*corev1.Node
}

// The attach/detach controllers: upstream's, which acts on any taint out-of-service that its cache shows; belay's, which acts on one of the
// boot that it is about, and only if the Node still has it when its report is withdrawn; and belay's in the process of recovery, which acts
// on its proofs.
const upstreams, belays, withProofs = "upstream's", "belay's", "with proofs"

func newPlane(w *world) *plane {
	p := &plane{world: w, volumes: []string{"v1", "v2", "v3"}, boots: w.chance(60)}
	p.detaches = []string{upstreams, belays, withProofs, withProofs}[w.rng.IntN(4)]
	p.lag = time.Duration(w.rng.IntN(4)) * 4 * time.Second
	p.lies, p.unpublishes = w.chance(10), map[string]time.Time{}
	declared := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: cutDriver, Annotations: map[string]string{kube.CutsAtUnpublishAnnotation: "true"}}}
	_, err := w.create(nil, declared)
	must2(w.t, err)
	return p
}

// turn is one round of all controllers.
func (p *plane) turn() {
	if p.outage() {
		return
	}
	p.sees = append(p.sees, seenNodes{time.Now(), storedAs[*corev1.Node](p.world, "Node")})
	for len(p.sees) > 1 && time.Since(p.sees[1].at) >= p.lag {
		p.sees = p.sees[1:]
	}
	for _, part := range []func(){p.schedule, p.attach, p.detach, p.evict} {
		if p.calm || p.chance(50) {
			part()
		}
	}
}

func volumeOf(pod *corev1.Pod) string { return pod.Labels["volume"] }

func (p *plane) podsOf(volume string) []*corev1.Pod {
	all := storedAs[*corev1.Pod](p.world, "Pod")
	return slices.DeleteFunc(all, func(pod *corev1.Pod) bool { return volumeOf(pod) != volume })
}

// attachmentOf is the VolumeAttachment of a volume: there is never more than one, as the fabric is exclusive.
func (p *plane) attachmentOf(volume string) *storagev1.VolumeAttachment {
	for _, va := range storedAs[*storagev1.VolumeAttachment](p.world, "VolumeAttachment") {
		if *va.Spec.Source.PersistentVolumeName == volume {
			return va
		}
	}
	return nil
}

// schedule is the StatefulSet controller and the scheduler.
func (p *plane) schedule() {
	for _, volume := range p.volumes {
		if len(p.podsOf(volume)) > 0 {
			continue
		}
		nodes := slices.DeleteFunc(storedAs[*corev1.Node](p.world, "Node"), func(n *corev1.Node) bool {
			return len(n.Spec.Taints) > 0 || ready(n) != fencing.Yes
		})
		if len(nodes) == 0 {
			return
		}
		node := nodes[p.rng.IntN(len(nodes))].Name
		p.pods++
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprintf("%s-pod-%d", volume, p.pods), Labels: map[string]string{"volume": volume},
		}}
		pod.Spec.NodeName = node
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: volume}}}}
		switch p.pods % 4 { // what its tenant claims that it is
		case 1:
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "none", UID: "none", Controller: new(true)}}
		case 2:
			pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "none"}
		}
		if p.pods%4 < 3 { // nothing but recovery deletes it
			pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		}
		_, err := p.create(nil, pod)
		must2(p.t, err)
		p.say("%s comes to %s", pod.Name, node)
	}
}

func (p *plane) attach() {
	for _, pod := range storedAs[*corev1.Pod](p.world, "Pod") {
		if p.attachmentOf(volumeOf(pod)) != nil {
			continue
		}
		node := p.node(pod.Spec.NodeName)
		if node == nil || p.detaches == withProofs && isolated(node) && lists(node, volumeOf(pod)) { // belay's attaches nothing there (attachment's keepsOldMount)
			continue
		}
		va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: kube.AttachmentName(volumeOf(pod), driverOf(volumeOf(pod)), node.Name), Labels: map[string]string{"machine": node.Status.NodeInfo.SystemUUID, "isolated": fmt.Sprint(isolated(node))}}}
		if p.boots {
			va.Annotations = map[string]string{
				kube.BootIDAnnotation: node.Status.NodeInfo.BootID, kube.SystemUUIDAnnotation: node.Status.NodeInfo.SystemUUID, kube.NodeUIDAnnotation: string(node.UID),
				kube.VolumeHandleAnnotation: volumeOf(pod),
			}
		}
		pv := volumeOf(pod)
		va.Spec = storagev1.VolumeAttachmentSpec{Attacher: driverOf(pv), NodeName: node.Name, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}}
		_, err := p.create(nil, va)
		must2(p.t, err)
	}
}

// detach removes the VolumeAttachments that no pod wants, and that nothing uses or a policy takes away.
func (p *plane) detach() {
	for _, volume := range p.volumes {
		va := p.attachmentOf(volume)
		var why string
		switch {
		case va == nil:
			continue
		case !p.unpublishes[va.Name].IsZero():
			p.unpublish(va, volume)
			continue
		case slices.ContainsFunc(p.podsOf(volume), func(pod *corev1.Pod) bool { return pod.Spec.NodeName == va.Spec.NodeName }):
			continue
		case p.forces(va):
			why = "by force"
			p.judgeForce(va, p.byStorage)
		case p.unused(va):
			why = "unused"
		default:
			continue
		}
		p.say("%s is being detached from %s %s", volume, va.Spec.NodeName, why)
		p.unpublishes[va.Name] = time.Now().Add(time.Duration(p.rng.IntN(5000)) * time.Millisecond)
		p.unpublish(va, volume)
	}
}

// unpublish is the driver: it cuts the machine off at some time, and answers after that. Only then the object goes.
func (p *plane) unpublish(va *storagev1.VolumeAttachment, volume string) {
	m, answers := p.byUUID(va.Labels["machine"]), !time.Now().Before(p.unpublishes[va.Name])
	if driverOf(volume) == cutDriver && !p.lies && (answers || p.chance(30)) {
		for pod, v := range m.runs {
			if _, refused := m.refused[pod]; v == volume && !refused {
				m.refused[pod] = time.Now()
			}
		}
	}
	if !answers {
		return
	}
	delete(p.unpublishes, va.Name)
	p.say("%s is detached from %s", volume, va.Spec.NodeName)
	must2(p.t, client.IgnoreNotFound(p.api.Delete(context.Background(), va)))
	p.changed("VolumeAttachment")
}

// forceDelete is a person with kubectl delete pod --force, who waits no longer for a node that is not Ready.
func (p *plane) forceDelete() {
	for _, pod := range storedAs[*corev1.Pod](p.world, "Pod") {
		if node := p.node(pod.Spec.NodeName); node != nil && ready(node) != fencing.Yes {
			p.deletePod(pod, "deleted by a person")
		}
	}
}

// writes reports whether what the machine writes to a volume reaches it.
func (m *hardware) writes(volume string) bool {
	for pod, v := range m.runs {
		if _, refused := m.refused[pod]; v == volume && !refused {
			return true
		}
	}
	return false
}

// unused: the machine's kubelet reports that it does not have the volume mounted.
func (p *plane) unused(va *storagev1.VolumeAttachment) bool {
	node := p.node(va.Spec.NodeName)
	m := p.byUUID(va.Labels["machine"])
	if node == nil || ready(node) != fencing.Yes || m.gone || node.Status.NodeInfo.BootID != m.bootID() || !m.on || m.frozen || m.cut || m.down {
		return false
	}
	return !m.uses(*va.Spec.Source.PersistentVolumeName)
}

func (m *hardware) uses(volume string) bool {
	for _, v := range m.runs {
		if v == volume {
			return true
		}
	}
	return false
}

// forces reports whether the controller detaches a volume that may be in use.
func (p *plane) forces(va *storagev1.VolumeAttachment) bool {
	proven := p.detaches != withProofs
	if p.detaches == withProofs {
		boot := fencing.Boot{Node: va.Spec.NodeName, ID: va.Annotations[kube.BootIDAnnotation], Machine: machineID(va.Labels["machine"])}
		if node := p.node(va.Spec.NodeName); node != nil {
			boot.NodeUID = string(node.UID)
			if boot.ID == "" {
				boot.ID = node.Status.NodeInfo.BootID
			}
		}
		for _, process := range p.processes {
			volume := fencing.Volume{Driver: va.Spec.Attacher, Handle: *va.Spec.Source.PersistentVolumeName}
			for _, proof := range process.proofs.Of(va.Spec.NodeName) {
				if proof.Holds(boot, volume) {
					p.byStorage = proof.Class() == fencing.StorageFenced
					return true
				}
				node := p.node(va.Spec.NodeName)
				proven = proven || node != nil && proof.Class() != fencing.StorageFenced && proof.Boot() == bootOf(node)
			}
		}
	}
	p.byStorage = false
	for _, node := range p.sees[0].nodes {
		if node.Name != va.Spec.NodeName {
			continue
		}
		now := p.node(node.Name)
		switch {
		case p.detaches == upstreams:
			return outOfService(node)
		case now == nil, now.UID != node.UID, !kube.OutOfService(now):
			return false // the withdrawal is bound to the Node's version (attachdetach.reporter)
		}
		if m := va.Annotations[kube.SystemUUIDAnnotation]; m != "" && m != node.Status.NodeInfo.SystemUUID {
			return false // belay's controller takes no taint for a statement about another machine (attachment's goneFor)
		}
		return kube.OutOfService(node) && (proven || !kube.OutOfServiceByFence(node))
	}
	return false
}

// outOfService: the Node has the taint, whatever its value, which is all that upstream asks.
func outOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == kube.OutOfServiceTaint })
}

// evict is upstream's PodGC and taint manager, which may act on Nodes that they saw a while ago.
func (p *plane) evict() {
	for _, node := range p.sees[0].nodes {
		if !outOfService(node) {
			continue
		}
		for _, pod := range storedAs[*corev1.Pod](p.world, "Pod") {
			if pod.Spec.NodeName == node.Name && len(pod.Spec.Tolerations) == 0 && p.chance(20) {
				p.deletePod(pod, "evicted")
			}
		}
	}
}

func (p *plane) deletePod(pod *corev1.Pod, why string) {
	p.say("%s on %s is %s", pod.Name, pod.Spec.NodeName, why)
	must2(p.t, client.IgnoreNotFound(p.api.Delete(context.Background(), pod)))
	p.changed("Pod")
}

// lists reports whether the Node lists the volume in use.
func lists(node *corev1.Node, volume string) bool {
	return slices.Contains(node.Status.VolumesInUse, corev1.UniqueVolumeName(kube.UniqueVolumeName(driverOf(volume), volume)))
}

// listInUse writes what the machine has mounted into the Node.
func (p *plane) listInUse(m *hardware) {
	var used []corev1.UniqueVolumeName
	for _, volume := range p.volumes {
		if m.uses(volume) {
			used = append(used, corev1.UniqueVolumeName(kube.UniqueVolumeName(driverOf(volume), volume)))
		}
	}
	if node := p.node(m.name); node != nil && !slices.Equal(used, node.Status.VolumesInUse) {
		change(p.world, node, func(n *corev1.Node) { n.Status.VolumesInUse = used })
	}
}

// kubeletPods is what a machine's kubelet does about its pods: those that are gone end, new ones are admitted, and start once their volume
// is attached.
func (p *plane) kubeletPods(m *hardware, node *corev1.Node) {
	there := map[string]*corev1.Pod{}
	for _, pod := range storedAs[*corev1.Pod](p.world, "Pod") {
		if pod.Spec.NodeName == m.name {
			there[string(pod.UID)] = pod
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(m.runs)) { // the order of a map is not the seed's
		if there[uid] == nil {
			if _, refused := m.refused[uid]; refused && (m.hung || !p.calm && p.chance(70)) {
				continue // its unmount hangs
			}
			delete(m.runs, uid)
			delete(m.refused, uid)
		}
	}
	p.listInUse(m)
	for _, volume := range p.volumes {
		for _, pod := range p.podsOf(volume) {
			uid := string(pod.UID)
			if _, runs := m.runs[uid]; runs || there[uid] == nil {
				continue
			}
			if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute }) {
				p.deletePod(pod, "rejected by kubelet")
				continue
			}
			va := p.attachmentOf(volume)
			if va != nil && p.unpublishes[va.Name].IsZero() && va.Spec.NodeName == m.name && va.Labels["machine"] == m.uuid {
				p.judgeWriter(m, volume)
				m.runs[uid] = volume
				p.say("%s writes to %s", m, volume)
			}
		}
	}
}
