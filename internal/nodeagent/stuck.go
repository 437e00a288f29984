package nodeagent

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/nodevolume"
)

// emitFailedUnmount emits an event about a volume that cannot be unmounted. The pod may be gone, so the claim and the Node get it as well. The
// caller holds mu.
func (m *volumeManager) emitStuck(pod, claim *corev1.ObjectReference, text string) {
	node := &corev1.ObjectReference{Kind: "Node", Name: m.config.NodeName, UID: types.UID(m.config.NodeName)} // as kubelet names it
	for _, about := range []*corev1.ObjectReference{pod, claim, node} {
		if about != nil && about.Name != "" { // a recovered record may lack the name
			m.events.Event(about, corev1.EventTypeWarning, explain.FailedUnmount, text)
		}
	}
}

// emitFailedUnstage does the same for a volume that cannot be unstaged. The caller holds mu.
func (m *volumeManager) emitStage(v *volume, text string) {
	if !v.unstageTold.isNew(text, time.Now()) {
		return
	}
	staged := &podVolume{PodVolume: &nodevolume.PodVolume{Key: nodevolume.PublishKey{PodUID: v.life.Stage.Record.Pod.UID}, MountState: v.life.Stage}}
	m.emitStuck(staged.podOf(), staged.claimOf(), text)
	m.log.Error(errors.New(text), "Volume stays in use", "volume", v.name)
}

// pvcRef returns the reference for events about the claim, or nil.
func (p *podVolume) claimOf() *corev1.ObjectReference {
	pod := p.Record.Pod
	claim, namespace := claimRef{name: pod.Claim, uid: types.UID(pod.ClaimUID)}, pod.Namespace
	if p.want != nil {
		claim, namespace = p.want.claim, p.want.pod.Namespace
	}
	if claim.name == "" {
		return nil
	}
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: namespace, Name: claim.name, UID: claim.uid}
}
