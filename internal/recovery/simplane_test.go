package recovery

import (
	"context"
	"fmt"
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
}

type seenNodes struct {
	at    time.Time
	nodes []*corev1.Node
}

// The attach/detach controllers: upstream's, which acts on any taint out-of-service; belay's, which acts on one of the boot that it is
// about; and belay's in the process of recovery, which acts on its proofs.
const upstreams, belays, withProofs = "upstream's", "belay's", "with proofs"

func newPlane(w *world) *plane {
	p := &plane{world: w, volumes: []string{"v1", "v2", "v3"}, boots: w.chance(60)}
	p.detaches = []string{upstreams, belays, withProofs}[w.rng.IntN(3)]
	p.lag = time.Duration(w.rng.IntN(4)) * 4 * time.Second
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
	va := &storagev1.VolumeAttachment{}
	if p.api.Get(context.Background(), client.ObjectKey{Name: "va-" + volume}, va) != nil {
		return nil
	}
	return va
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
		if node == nil {
			continue
		}
		va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va-" + volumeOf(pod), Labels: map[string]string{"machine": node.Status.NodeInfo.SystemUUID}}}
		if p.boots {
			va.Annotations = map[string]string{
				kube.BootIDAnnotation: node.Status.NodeInfo.BootID, kube.SystemUUIDAnnotation: node.Status.NodeInfo.SystemUUID, kube.NodeUIDAnnotation: string(node.UID),
			}
		}
		pv := volumeOf(pod)
		va.Spec = storagev1.VolumeAttachmentSpec{Attacher: "disk.test", NodeName: node.Name, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}}
		_, err := p.create(nil, va)
		must2(p.t, err)
	}
}

// detach removes the VolumeAttachments that no pod wants, and that nothing uses or a policy takes away.
func (p *plane) detach() {
	for _, volume := range p.volumes {
		va := p.attachmentOf(volume)
		if va == nil || slices.ContainsFunc(p.podsOf(volume), func(pod *corev1.Pod) bool { return pod.Spec.NodeName == va.Spec.NodeName }) {
			continue
		}
		var why string
		switch {
		case p.forces(va):
			why = "by force"
			p.judgeForce(va)
		case p.unused(va):
			why = "unused"
		default:
			continue
		}
		p.say("%s is detached from %s %s", volume, va.Spec.NodeName, why)
		must2(p.t, p.api.Delete(context.Background(), va))
		p.changed("VolumeAttachment")
	}
}

// unused: the machine's kubelet reports that it does not have the volume mounted.
func (p *plane) unused(va *storagev1.VolumeAttachment) bool {
	node := p.node(va.Spec.NodeName)
	m := p.byUUID(va.Labels["machine"])
	if node == nil || ready(node) != fencing.Yes || m.gone || node.Status.NodeInfo.BootID != m.bootID() || !m.on || m.frozen || m.cut {
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
	if p.detaches == withProofs {
		boot := fencing.Boot{Node: va.Spec.NodeName, ID: va.Annotations[kube.BootIDAnnotation], Machine: machineID(va.Labels["machine"])}
		if node := p.node(va.Spec.NodeName); node != nil {
			boot.NodeUID = string(node.UID)
			if boot.ID == "" {
				boot.ID = node.Status.NodeInfo.BootID
			}
		}
		for _, process := range p.processes {
			volume := fencing.Volume{Driver: "disk.test", Handle: *va.Spec.Source.PersistentVolumeName}
			if proof := process.proofs.Of(va.Spec.NodeName); proof.Holds(time.Now(), boot, volume) {
				return true
			}
		}
	}
	for _, node := range p.sees[0].nodes {
		if node.Name != va.Spec.NodeName {
			continue
		}
		if p.detaches == upstreams {
			return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == kube.OutOfServiceTaint })
		}
		return kube.OutOfService(node)
	}
	return false
}

// evict is upstream's PodGC and taint manager, which may act on Nodes that they saw a while ago.
func (p *plane) evict() {
	for _, node := range p.sees[0].nodes {
		if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == kube.OutOfServiceTaint }) {
			continue
		}
		for _, pod := range storedAs[*corev1.Pod](p.world, "Pod") {
			if pod.Spec.NodeName == node.Name && p.chance(20) {
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

// kubeletPods is what a machine's kubelet does about its pods: those that are gone end, new ones are admitted, and start once their volume
// is attached.
func (p *plane) kubeletPods(m *hardware, node *corev1.Node) {
	there := map[string]*corev1.Pod{}
	for _, pod := range storedAs[*corev1.Pod](p.world, "Pod") {
		if pod.Spec.NodeName == m.name {
			there[string(pod.UID)] = pod
		}
	}
	for uid := range m.runs {
		if there[uid] == nil {
			delete(m.runs, uid)
		}
	}
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
			if va := p.attachmentOf(volume); va != nil && va.Spec.NodeName == m.name && va.Labels["machine"] == m.uuid {
				p.judgeWriter(m, volume)
				m.runs[uid] = volume
				p.say("%s writes to %s", m, volume)
			}
		}
	}
}
