package recovery

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

const aUUID, boardUUID = "4c4c4544-0051-3910-8052-b4c04f4d3532", "03000200-0400-0500-0006-000700080009"

func shows(name, uid, boot, uuid string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid)}}
	n.Status.NodeInfo.BootID, n.Status.NodeInfo.SystemUUID = boot, uuid
	return n
}

func over(objects ...client.Object) *parts {
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	return &parts{client: c, live: c}
}

// TestSharedUUIDProvesNoRestart (S8): a Node that was registered again shows another boot and the system UUID of the fence. If another Node has
// that UUID too, or firmware left it, the boot of the fence may run on. The Node object that was fenced keeps its identity.
func TestSharedUUIDProvesNoRestart(t *testing.T) {
	for name, c := range map[string]struct {
		uid, uuid string
		other     *corev1.Node
		want      fencing.Relation
	}{
		"restarted":                             {"new", "4C4C4544005139108052B4C04F4D3532", shows("n2", "2", "b", "other"), fencing.Rebooted},
		"another Node has the UUID":             {"new", aUUID, shows("n2", "2", "b", aUUID), fencing.RelationUnknown},
		"it does, and the Node is the fenced":   {"old", aUUID, shows("n2", "2", "b", aUUID), fencing.Rebooted},
		"the default of boards":                 {"old", boardUUID, shows("n2", "2", "b", "other"), fencing.RelationUnknown},
		"another UUID, which another Node has":  {"new", "other", shows("n2", "2", "b", "other"), fencing.OtherMachine},
		"the UUID of a boot that is not fenced": {"new", "other", shows("n2", "2", "b", aUUID), fencing.OtherMachine},
	} {
		t.Run(name, func(t *testing.T) {
			fence := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
			fence.Spec.NodeName, fence.Spec.NodeUID, fence.Spec.BootID, fence.Spec.MachineID = "n1", "old", "boot-1", aUUID
			if c.uuid == boardUUID {
				fence.Spec.MachineID = c.uuid // by an earlier version
			}
			node := shows("n1", c.uid, "boot-2", c.uuid)
			turn := &turn{actor: &actor{parts: over(node, c.other)}, fence: fence, mem: &memory{}}
			seen := fencing.Observed{}
			turn.readNode(t.Context(), &seen)
			if got := seen.Now.Since(fenceState(fence).Boot); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
}

// TestBoundSwitchKeepsItsNode (hole 6): neither of two Nodes that show one system UUID gets a switch, but a switch that was bound to a Node
// before stays so: another node that writes the UUID into its status must not take it.
func TestBoundSwitchKeepsItsNode(t *testing.T) {
	source := func(name string) *fencingv1.FenceSource {
		s := &fencingv1.FenceSource{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1}}
		s.Spec.Levels = []fencingv1.FenceLevel{{Feeds: []fencingv1.Feed{{Agent: "fence_" + name}}}}
		return s
	}
	bound := source("n1")
	bound.Status.Bound = &fencingv1.Bound{NodeUID: "1", BootID: "boot", MachineID: aUUID, HardwareID: aUUID, Generation: 1}
	f := &fencer{parts: over(source("n1"), source("n2"), shows("n1", "1", "boot", aUUID), shows("n2", "2", "boot-2", aUUID))}
	for name, c := range map[string]struct {
		source *fencingv1.FenceSource
		want   bool
	}{"not bound": {source("n1"), true}, "bound": {bound, false}, "the other": {source("n2"), true}} {
		if got, err := f.shared(t.Context(), c.source); err != nil || got != c.want {
			t.Errorf("%s: shared %v, %v", name, got, err)
		}
	}
}
