package kube

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestOutOfServiceOfAFence: a taint that a fence of belay set counts only for the boot that was fenced, also as the cache has the Node. One
// that a person set counts whatever its value, as upstream's does.
func TestOutOfServiceOfAFence(t *testing.T) {
	for name, test := range map[string]struct {
		value, fenced, boot string
		want                bool
	}{
		"of a person":                      {"nodeshutdown", "", "boot-1", true},
		"of a person, without a value":     {"", "", "boot-1", true},
		"of a fence of this boot":          {"belay-3", "boot-1", "boot-1", true},
		"of a fence of the boot before":    {"belay-3", "boot-1", "boot-2", false},
		"of a fence of an unknown boot":    {"belay-3", "", "boot-1", false},
		"of a fence, and no boot is known": {"belay-3", "", "", false},
	} {
		node := &corev1.Node{}
		node.Spec.Taints = []corev1.Taint{
			{Key: "other", Effect: corev1.TaintEffectNoExecute},
			{Key: OutOfServiceTaint, Value: test.value, Effect: corev1.TaintEffectNoExecute},
		}
		node.Status.NodeInfo.BootID = test.boot
		if test.fenced != "" {
			node.Annotations = map[string]string{FencedBootAnnotation: test.fenced}
		}
		if OutOfService(node) != test.want || OutOfService(StripNode(node)) != test.want {
			t.Errorf("%s: %t, in the cache %t, want %t", name, OutOfService(node), OutOfService(StripNode(node)), test.want)
		}
		byFence := test.want && strings.HasPrefix(test.value, FenceTaintPrefix)
		if OutOfServiceByFence(node) != byFence || OutOfServiceByFence(StripNode(node)) != byFence {
			t.Errorf("%s: set by a fence %t, want %t", name, OutOfServiceByFence(node), byFence)
		}
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: OutOfServiceTaint, Value: "nodeshutdown", Effect: corev1.TaintEffectNoSchedule})
		if OutOfServiceByFence(node) {
			t.Errorf("%s: a person's taint beside it is a fence's", name)
		}
	}
}

// TestControlPlane: every label that installers give to machines of the control plane, with any value, also as the caches keep the Node. Other roles are
// those of machines that only run pods.
func TestControlPlane(t *testing.T) {
	for role, want := range map[string]bool{
		"control-plane": true, "master": true, "etcd": true, "controlplane": true,
		"worker": false, "infra": false, "edge": false, "ingress": false, "": false,
	} {
		for _, value := range []string{"", "true", "false"} {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"node-role.kubernetes.io/" + role: value}}}
			if got, kept := ControlPlane(node), ControlPlane(StripNode(node)); got != want || kept != want {
				t.Errorf("node-role.kubernetes.io/%s=%s: %t, in the cache %t", role, value, got, kept)
			}
		}
	}
}
