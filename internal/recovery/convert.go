package recovery

import (
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// Power states in evidence.
const powerOn, powerOff, powerUnknown = "On", "Off", "Unknown"

// bootOf returns the boot that a Node shows.
func bootOf(node *corev1.Node) fencing.Boot {
	return fencing.Boot{Node: node.Name, NodeUID: string(node.UID), ID: node.Status.NodeInfo.BootID, Machine: machineID(node.Status.NodeInfo.SystemUUID)}
}

// machineID returns one form of a system UUID: the kubelet, BMCs and people write it in upper or lower case.
func machineID(uuid string) string { return strings.ToLower(strings.TrimSpace(uuid)) }

// optedOut reports whether the owner of the node keeps it from being fenced.
func optedOut(node *corev1.Node) bool {
	value, ok := node.Annotations[kube.FenceOptOutAnnotation]
	return ok && value != "false"
}

// ready is the condition Ready: Unknown without one.
func ready(node *corev1.Node) fencing.Knowledge {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return decision.Known(c.Status == corev1.ConditionTrue)
		}
	}
	return fencing.Unknown
}

// fenceState returns the stored state of a NodeFence.
func fenceState(f *fencingv1.NodeFence) fencing.Fence {
	s := fencing.Fence{
		UID: string(f.UID), ResourceVersion: f.ResourceVersion,
		Boot:          fencing.Boot{Node: f.Spec.NodeName, NodeUID: f.Spec.NodeUID, ID: f.Spec.BootID, Machine: f.Spec.MachineID},
		Epoch:         f.Spec.Epoch,
		Phase:         fencing.Phase(f.Status.Phase),
		ManualRelease: f.Spec.Release == fencingv1.ReleaseManual,
		Evidence:      provenBy(f),
		Deleting:      f.DeletionTimestamp != nil,
		StorageProven: meta.IsStatusConditionTrue(f.Status.Conditions, conditionStorageFenced),
	}
	if s.Phase == "" {
		s.Phase = fencing.Suspected
	}
	if n := len(f.Status.Intents); n > 0 {
		i := f.Status.Intents[n-1]
		s.Intent = fencing.Intent{Nonce: i.Nonce, NotAfter: i.NotAfter.Time, Renewal: i.Renewal}
	}
	if f.Status.Untainted != nil {
		s.Untainted = f.Status.Untainted.Time
	}
	if x := f.Spec.Statement; x != nil {
		s.Statement = &fencing.Statement{By: x.By, Reason: x.Reason, Machine: machineID(x.MachineID), Expires: x.Expires.Time}
	}
	return s
}

// provenBy is the class of evidence with which the fence left Fencing.
func provenBy(f *fencingv1.NodeFence) fencing.Class {
	for _, c := range f.Status.Conditions {
		if c.Type == conditionProven && c.Status == metav1.ConditionTrue {
			return fencing.Class(c.Reason)
		}
	}
	return ""
}

// Conditions of a NodeFence.
const (
	conditionProven          = "Proven"
	conditionTainted         = "Tainted"
	conditionVolumesReleased = "VolumesReleased"
	conditionContradicted    = "Contradicted"
	conditionStorageFenced   = "StorageFenced"
)

// conditionFenceReady is the condition of a FenceSource.
const conditionFenceReady = "FenceReady"

// taintValue is the value of the taints of a fence.
func taintValue(epoch int64) string { return kube.FenceTaintPrefix + strconv.FormatInt(epoch, 10) }

// sourceState returns what a FenceSource says about a node's switch.
func boundSource(s *fencingv1.FenceSource) fencing.Source {
	source := fencing.Source{Name: s.Name}
	for _, c := range s.Status.Conditions {
		if c.Type == conditionFenceReady {
			source.Shared, source.Locked = c.Reason == reasonShared, c.Reason == reasonLocked
		}
	}
	if b := s.Status.Bound; b != nil {
		source.SaidOn = fencing.Boot{Node: s.Name, NodeUID: b.NodeUID, ID: b.BootID, Machine: b.MachineID}
		source.Machine = b.HardwareID
	}
	return source
}

// powerOf is the power state of an answer.
func powerOf(e *fencingv1.Evidence) fencing.Power {
	switch e.Power {
	case powerOn:
		return fencing.PowerOn
	case powerOff:
		return fencing.PowerOff
	}
	return fencing.PowerUnknown
}

func powerName(p fencing.Power) string {
	switch p {
	case fencing.PowerOn:
		return powerOn
	case fencing.PowerOff:
		return powerOff
	case fencing.PowerUnknown:
	}
	return powerUnknown
}

// micro is a time as it is stored.
func micro(t time.Time) metav1.MicroTime { return metav1.NewMicroTime(t) }
