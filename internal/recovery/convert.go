package recovery

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// Power states in evidence.
const powerOn, powerOff, powerUnknown = "On", "Off", "Unknown"

// bootOf is kube.BootOf.
func bootOf(node *corev1.Node) fencing.Boot { return kube.BootOf(node) }

// machineID is fencing.MachineID.
func machineID(uuid string) string { return fencing.MachineID(uuid) }

// optedOut is kube.FenceOptedOut.
func optedOut(node *corev1.Node) bool { return kube.FenceOptedOut(node) }

// ready is the condition Ready: Unknown without one.
func ready(node *corev1.Node) fencing.Knowledge {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return decision.Known(c.Status == corev1.ConditionTrue)
		}
	}
	return fencing.Unknown
}

// fenceState is kube.FenceState.
func fenceState(f *fencingv1.NodeFence) fencing.Fence { return kube.FenceState(f) }

// provenBy is the class of evidence with which the fence left Fencing.
func provenBy(f *fencingv1.NodeFence) fencing.Class { return kube.FenceState(f).Evidence }

// Conditions of a NodeFence.
const (
	conditionProven          = kube.ConditionProven
	conditionTainted         = kube.ConditionTainted
	conditionVolumesReleased = kube.ConditionVolumesReleased
	conditionContradicted    = kube.ConditionContradicted
	conditionUpstreamForces  = "UpstreamForces"
	conditionStorageFenced   = kube.ConditionStorageFenced
	conditionEnded           = kube.ConditionEnded
	conditionBesideEarlier   = kube.ConditionBesideEarlier
)

// Conditions of a FenceSource. conditionHeld is there while a command is held back.
const conditionFenceReady, conditionHeld = kube.ConditionFenceReady, kube.ConditionSwitchOffHeld

// taintValue is the value of the taints of a fence.
func taintValue(epoch int64) string { return kube.FenceTaint(epoch) }

// shownEpoch returns the epoch that a Node shows, or zero.
func shownEpoch(node *corev1.Node) int64 {
	epoch, _ := strconv.ParseInt(node.Annotations[kube.FenceEpochAnnotation], 10, 64)
	return epoch
}

// boundSource is kube.BoundSource.
func boundSource(s *fencingv1.FenceSource) fencing.Source { return kube.BoundSource(s) }

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

// recordZone records the zone that a Node names, if none is recorded of this Node object.
func recordZone(s *fencingv1.FenceSource, node *corev1.Node) {
	name := node.Labels[corev1.LabelTopologyZone]
	if z := s.Status.Zone; name != "" && (z == nil || z.NodeUID != string(node.UID)) {
		s.Status.Zone = &fencingv1.RecordedZone{NodeUID: string(node.UID), Name: name}
	}
}

// recordedZone is the zone of a Node for the brakes: the one that the fencer recorded when the Node's switch was first bound, empty if there is none.
// The Node's kubelet may change the label (kubelet v0.36.3 pkg/apis/well_known_labels.go:37), and could so make the nodes of another zone too many to be
// fenced. It cannot recreate the Node: it may delete none (k/k v1.36.3 plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go:211-213).
func recordedZone(s *fencingv1.FenceSource, boot fencing.Boot) string {
	if z := s.Status.Zone; z != nil && z.NodeUID == boot.NodeUID {
		return z.Name
	}
	return ""
}
