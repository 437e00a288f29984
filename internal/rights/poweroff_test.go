package rights

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/kube"
)

// asks is a NodeFence by which a person asks for the power-off of a node.
func asks(name, by string, change ...func(*fencingv1.NodeFence)) *fencingv1.NodeFence {
	f := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{kube.FenceFinalizer}}, Spec: fencingv1.NodeFenceSpec{
		NodeName: name, NodeUID: "u", BootID: "b", MachineID: "m", Epoch: time.Now().Unix(), Trigger: fencingv1.TriggerRequested, Release: fencingv1.ReleaseAuto,
		Request: &fencingv1.Request{By: by, Reason: "kubelet is dead"},
	}}
	for _, c := range change {
		c(f)
	}
	return f
}

// TestWhoMayAskForAPowerOff: who has the ClusterRole belay-fence-power-off asks in the own name for the power-off of a node. The rest is recovery's: no
// evidence, no statement, no epoch that outlasts others, nothing on Nodes, pods and VolumeAttachments.
func TestWhoMayAskForAPowerOff(t *testing.T) {
	fencingServed(t)
	const by = "of-power-off"
	token := bound(t, by, deployed+"admission.yaml", "belay-fence-power-off")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: by}}
	create(t, secret())
	t.Cleanup(func() { (&fleet{TB: t, admin: withFences(t, server.Config())}).clear() })
	const policy = "belay-fence-request"
	attempts(t, token,
		attempt{"asks in another's name", "create", asks("x", "admin"), "", policy},
		attempt{"begins a fence without saying who asks", "create", asks("x", by, func(f *fencingv1.NodeFence) {
			f.Spec.Trigger, f.Spec.Request = fencingv1.TriggerNodeSilent, nil
		}), "", policy},
		attempt{"begins the fence of a deleted Node", "create", asks("x", by, func(f *fencingv1.NodeFence) {
			f.Spec.Trigger, f.Spec.Request = fencingv1.TriggerNodeDeleted, nil
		}), "", policy},
		attempt{"asks with a request that another trigger hides", "create", asks("x", by, func(f *fencingv1.NodeFence) { f.Spec.Trigger = fencingv1.TriggerNodeSilent }), "", "if, and only if"},
		attempt{"asks without a request", "create", asks("x", by, func(f *fencingv1.NodeFence) { f.Spec.Request = nil }), "", "if, and only if"},
		attempt{"asks with the epoch of a late fence", "create", asks("x", by, func(f *fencingv1.NodeFence) { f.Spec.Epoch = 1<<63 - 1 }), "", policy},
		attempt{"asks without the finalizer", "create", asks("x", by, func(f *fencingv1.NodeFence) { f.Finalizers = nil }), "", policy},
		attempt{"asks with an owner", "create", asks("x", by, func(f *fencingv1.NodeFence) {
			f.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "x", UID: "u"}}
		}), "", policy},
		attempt{"states beside it that the machine is off", "create", asks("x", by, func(f *fencingv1.NodeFence) {
			f.Spec.Statement = &fencingv1.Statement{By: by, Reason: "r", MachineID: "m", Expires: metav1.NewTime(time.Now().Add(time.Hour).Truncate(time.Second))}
		}), "", "belay-fence-"},
		attempt{"asks with a reason that is too long", "create", asks("x", by, func(f *fencingv1.NodeFence) { f.Spec.Request.Reason = strings.Repeat("r", 513) }), "", "Too long"},
		attempt{"asks without a reason", "create", asks("x", by, func(f *fencingv1.NodeFence) { f.Spec.Request.Reason = "" }), "", "spec.request.reason"},

		attempt{"asks in the own name", "create", asks(by, by), "", byNone},

		attempt{"gives the request to another", "patch", asks(by, by), `{"spec":{"request":{"by":"admin"}}}`, byRBAC},
		attempt{"gives evidence", "status", asks(by, by), `{"status":{"phase":"Isolating"}}`, byRBAC},
		attempt{"takes the finalizer", "patch", asks(by, by), `{"metadata":{"finalizers":null}}`, byRBAC},
		attempt{"taints a node", "patch", node, taints(outOfService), byRBAC},
		attempt{"deletes a node", "delete", node, "", byRBAC},
		attempt{"changes a switch", "create", &fencingv1.FenceSource{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, "", byRBAC},
		attempt{"reads a Secret", "get", secret(), "", byRBAC},
		attempt{"withdraws the request", "delete", asks(by, by), "", byNone},
	)
	admin := withFences(t, server.Config())
	attempts(t, admin, attempt{"an administrator gives a fence a request later", "patch", asks(by, by), `{"spec":{"request":{"reason":"another"}}}`, "a fence is about one boot"})
}

// TestDetectorAsksForNoPowerOff: with the right to create NodeFences alone, as the detector has, a client asks for nothing in a person's place.
func TestDetectorAsksForNoPowerOff(t *testing.T) {
	fencingServed(t)
	_, token := tokenOf(t, "belay-recovery-detector", recoveryFiles+"detector.yaml")
	attempts(t, token,
		attempt{"asks in its own name", "create", asks("y", "system:serviceaccount:belay-system:belay-recovery-detector"), "", "belay-fence-request"},
		attempt{"asks in a person's", "create", asks("y", "admin"), "", "belay-fence-request"},
	)
}
