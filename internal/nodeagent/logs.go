package nodeagent

import (
	"cmp"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/nodevolume"
)

// The log keys are those of docs/logs.md, which all programs share; complete adds the node. A pod also has its UID, which names its
// directories on the node.

// logNames are the names of a volume and a pod in the log. Empty ones are left out.
type logNames struct {
	driver, handle string
	// volume is the PersistentVolume, podVolume the name of an inline volume in its pod.
	volume, podVolume      string
	claimNamespace, claim  string
	podNamespace, pod, uid string
}

func (n logNames) values() []any {
	var values []any
	for _, named := range []struct{ key, value string }{
		{"driver", n.driver}, {"handle", n.handle}, {"volume", n.volume}, {"podVolume", n.podVolume},
	} {
		if named.value != "" {
			values = append(values, named.key, named.value)
		}
	}
	if n.claim != "" {
		values = append(values, "claim", klog.KRef(n.claimNamespace, n.claim))
	}
	if n.pod != "" {
		values = append(values, "pod", klog.KRef(n.podNamespace, n.pod))
	}
	if n.uid != "" {
		values = append(values, "podUID", n.uid)
	}
	return values
}

// namesOf returns the names in a record.
func namesOf(r nodevolume.Record) logNames {
	n := logNames{
		driver: r.Driver, handle: r.Handle, volume: r.SpecName,
		claimNamespace: r.Pod.Namespace, claim: r.Pod.Claim, podNamespace: r.Pod.Namespace, pod: r.Pod.Name, uid: r.Pod.UID,
	}
	if r.Inline {
		n.volume, n.podVolume = "", r.SpecName
	}
	return n
}

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

// logger returns a logger with the names of a volume and a pod; see volume.logValues.
func (m *volumeManager) logger(v *volume, key nodevolume.PublishKey) logr.Logger {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.log.WithValues(v.logValues(key)...)
}

// logValues returns the log keys and values of a pod.
func (m *podManager) logValues(uid types.UID) []any {
	n := logNames{uid: string(uid)}
	if p, known := m.snapshot(uid); known && p.object != nil {
		n.podNamespace, n.pod = p.object.Namespace, p.object.Name
	}
	return n.values()
}

// waitMessage is the log message for a wait. The caller holds mu.
func (m *volumeManager) waitMessage(v *volume, key nodevolume.PublishKey) string {
	if p := v.findPod(key); p != nil && m.demands(v)(p) == nodevolume.Wanted {
		return "Waiting to mount volume"
	}
	return "Waiting to unmount volume"
}

// calledMessages are the log messages for calls to a driver.
var calledMessages = map[string]string{
	"NodeStageVolume": "Called NodeStageVolume", "NodePublishVolume": "Called NodePublishVolume", "NodeExpandVolume": "Called NodeExpandVolume",
	"NodeUnpublishVolume": "Called NodeUnpublishVolume", "NodeUnstageVolume": "Called NodeUnstageVolume",
}

// logCall logs a call to the driver. A failed one is logged by logFailure.
func (m *volumeManager) logCall(v *volume, key nodevolume.PublishKey, call pendingCall, outcome csi.Outcome, values ...any) {
	logger := m.logger(v, key)
	if outcome != csi.Done {
		logger = logger.V(1)
	}
	logger.Info(calledMessages[call.method], append(values, "outcome", outcome.String())...)
}
