package nodeagent

import (
	"k8s.io/klog/v2"

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
