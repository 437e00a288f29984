package recovery

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/testing/fixture"
)

// A node was drained for a reboot, a new firmware or its Machine Config: "A node without a volume to move is never switched off: drain a node before it reboots"
// (docs/recovery/nodes-and-people.md). The pods of DaemonSets stay, because kubectl drain, kured and OpenShift's Machine Config Operator leave them.
// Many have a volume that no other node ever wants: the CSI driver of SPIFFE and that of the Secrets Store are mounted inline, read-only, for each pod.
// Such a node has something to lose (kube.HasStorage), and its machine is switched off in the middle of its firmware.
// What must hold: what is not attached, and is of a DaemonSet, whose pod moves nowhere, is no reason to fence a node. A pod that only claims to be of one
// holds back the fence for nothing but its own volume.
func TestHostileDrainedNodeHasNothingToLose(t *testing.T) {
	yes, readOnly := true, true
	for name, source := range map[string]corev1.VolumeSource{
		"SPIFFE":        {CSI: &corev1.CSIVolumeSource{Driver: "csi.spiffe.io", ReadOnly: &readOnly}},
		"Secrets Store": {CSI: &corev1.CSIVolumeSource{Driver: "secrets-store.csi.k8s.io", ReadOnly: &readOnly}},
		"NFS":           {NFS: &corev1.NFSVolumeSource{Server: "192.0.2.1", Path: "/", ReadOnly: true}},
	} {
		pod := fixture.Pod("default", "agent-x", "n1")
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", UID: "ds", Controller: &yes}}
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}}
		n := fencing.Node{Boot: bootOf(nodeOf("n1", 0))}
		must(t, (&detector{parts: partsOver(nil, pod)}).occupants(t.Context(), &n, nodeOf("n1", 0)))
		if n.Idle != fencing.Yes {
			t.Errorf("%s: a drained node is kept for the pod of a DaemonSet: it is switched off when it reboots (idle: %v)", name, n.Idle)
		}
	}
}
