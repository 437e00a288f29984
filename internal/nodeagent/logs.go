package nodeagent

import (
	"cmp"

	"belay.dev/belay/internal/nodevolume"
)

// names returns the names of a pod's volume, from the pod or else from the record.
func (p *podVolume) names() logNames {
	n := namesOf(p.Record)
	if w := p.toMount; w != nil {
		n = logNames{
			volume: w.specName, claimNamespace: w.pod.Namespace, claim: w.claim.name, podNamespace: w.pod.Namespace, pod: w.pod.Name,
		}
	}
	n.volume, n.uid = cmp.Or(p.Key.SpecName, n.volume), p.Key.PodUID
	return n
}

// logValues returns the log keys and values of a volume and of the pod that it is mounted for; without a pod, the key is zero. The caller
// holds mu.
func (v *volume) logValues(key nodevolume.PublishKey) []any {
	n := logNames{volume: key.SpecName, uid: key.PodUID}
	switch p := v.findPod(key); {
	case p != nil:
		n = p.names()
	case key == nodevolume.PublishKey{}:
		n = namesOf(v.state.Stage.Record)
		for _, p := range v.pods {
			if other := p.names(); n.volume == "" || n.claim == "" && n.volume == other.volume {
				n = other
			}
		}
		n.pod, n.uid = "", ""
	}
	n.driver, n.handle = v.driver, v.handle
	if v.state.Inline {
		n.volume, n.podVolume = "", cmp.Or(n.podVolume, n.volume)
	}
	return n.values()
}
