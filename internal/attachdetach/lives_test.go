package attachdetach

import (
	"errors"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
)

// asUpstream is upstream's policy.
var asUpstream = attachment.Policy{OutOfService: true, UnmountTimeout: 6 * time.Minute}

// settledOn makes a node and a volume that a pod of it uses.
func (l *life) settledOn(node string) key {
	l.Helper()
	l.node(node)
	v := l.volume("v")
	l.pod("p", node, "v")
	l.attached(v, node)
	l.use(node, v)
	return v
}

// TestLives plays whole lives of a volume. The transcripts say who did what, when.
func TestLives(t *testing.T) {
	noForce := attachment.Policy{OutOfService: true}
	onDeletion := attachment.Policy{OutOfService: true, DeletedNode: attachment.DeletedNodeDetach}
	for name, tc := range map[string]struct {
		policy attachment.Policy
		play   func(*life)
	}{
		"attach-and-detach":       {asUpstream, lifeAttach},
		"move":                    {asUpstream, lifeMove},
		"multi-attach":            {asUpstream, lifeMultiAttach},
		"timeout":                 {asUpstream, lifeTimeout},
		"timeout-healthy":         {asUpstream, lifeTimeoutHealthy},
		"timeout-off":             {noForce, lifeTimeoutOff},
		"out-of-service":          {noForce, lifeOutOfService},
		"node-deleted":            {asUpstream, lifeNodeDeleted},
		"node-deleted-policy":     {onDeletion, lifeNodeDeletedPolicy},
		"node-came-back":          {asUpstream, lifeNodeCameBack},
		"node-came-back-silent":   {asUpstream, lifeNodeCameBackSilent},
		"node-deleted-pods-stay":  {asUpstream, lifeNodeDeletedPodsStay},
		"deleted-by-hand":         {asUpstream, lifeDeletedByHand},
		"uncertain-attach":        {asUpstream, lifeUncertainAttach},
		"uncertain-attach-in-use": {asUpstream, lifeUncertainAttachInUse},
		"holder-not-ready":        {asUpstream, lifeHolderNotReady},
		"detach-forbidden":        {asUpstream, lifeDetachForbidden},
		"lease-forbidden":         {asUpstream, lifeLeaseForbidden},
		"attach-no-longer-needed": {asUpstream, lifeFlip},
		"silent-attacher":         {asUpstream, lifeSilent},
		"silent-attacher-move":    {asUpstream, lifeSilentMove},
		"fibre-channel":           {asUpstream, lifeFibreChannel},
		"fibre-channel-timeout":   {asUpstream, lifeFibreChannelTimeout},
		"fibre-channel-returned":  {asUpstream, lifeFibreChannelReturned},
	} {
		t.Run(name, func(t *testing.T) { playLife(t, name, tc.policy, tc.play) })
	}
}

func lifeAttach(l *life) {
	v := l.settledOn("a")
	l.podGone("p")
	l.use("a")
	l.detached(v, "a")
}

func lifeMove(l *life) {
	v := l.settledOn("a")
	l.node("b")
	l.podGone("p")
	l.use("a")
	l.pod("p2", "b", "v")
	l.detached(v, "a")
	l.attached(v, "b")
}

func lifeMultiAttach(l *life) {
	v := l.settledOn("a")
	l.node("b")
	l.pod("q", "b", "v")
	l.use("b", v)
	l.pass(time.Hour)
	l.podGone("p")
	l.use("a")
	l.refusesDetach(v, "a", "busy")
	l.detached(v, "a")
	l.attached(v, "b")
}

func lifeTimeout(l *life) {
	v := l.settledOn("a")
	l.node("b")
	l.ready("a", corev1.ConditionUnknown)
	l.podGone("p")
	l.pod("p2", "b", "v")
	l.pass(4 * time.Minute)
	l.restart()
	l.pass(2*time.Minute - time.Nanosecond)
	l.pass(time.Nanosecond)
	l.detached(v, "a")
	l.attached(v, "b")
	l.ready("a", corev1.ConditionTrue)
	l.use("a")
}

func lifeTimeoutHealthy(l *life) {
	l.settledOn("a")
	l.podGone("p")
	l.pass(time.Hour) // a healthy node is never forced
	l.pod("p", "a", "v")
	l.ready("a", corev1.ConditionFalse)
	l.podGone("p") // the clock starts again
	l.pass(5 * time.Minute)
	l.ready("a", corev1.ConditionTrue)
	l.pass(5 * time.Minute)
	l.ready("a", corev1.ConditionUnknown) // overdue
}

func lifeTimeoutOff(l *life) {
	l.settledOn("a")
	l.ready("a", corev1.ConditionUnknown)
	l.podGone("p")
	l.pass(time.Hour)
}

func lifeOutOfService(l *life) {
	v := l.settledOn("a")
	l.node("b")
	l.ready("a", corev1.ConditionUnknown)
	l.podGone("p")
	l.pod("p2", "b", "v")
	l.outOfService("a")
	l.detached(v, "a")
	l.attached(v, "b")
}

func lifeNodeDeleted(l *life) {
	v := l.settledOn("a")
	l.node("b")
	l.deleteNode("a")
	l.podGone("p")
	l.pod("p2", "b", "v")
	l.pass(time.Minute)
	l.restart()
	l.pass(5 * time.Minute)
	l.detached(v, "a")
	l.attached(v, "b")
}

func lifeNodeDeletedPolicy(l *life) {
	v := l.settledOn("a")
	l.node("b")
	l.deleteNode("a")
	l.podGone("p")
	l.pod("p2", "b", "v")
	l.detached(v, "a")
	l.attached(v, "b")
}

func lifeNodeCameBack(l *life) {
	v := l.settledOn("a")
	l.deleteNode("a")
	l.podGone("p")
	l.comeBack("a", false)
	l.pass(30 * time.Second)
	l.use("a", v)
	l.use("a")
	l.pass(time.Minute)
	l.detached(v, "a")
	l.pod("p2", "a", "v")
	l.attached(v, "a")
	l.deleteNode("a")
	l.podGone("p2")
	l.comeBack("a", true)
	l.detached(v, "a")
}

// lifeNodeCameBackSilent is about a kubelet that unmounted the volume while its Node was
// gone, and so never lists it again.
func lifeNodeCameBackSilent(l *life) {
	v := l.settledOn("a")
	l.node("b")
	l.deleteNode("a")
	l.podGone("p")
	l.pod("p2", "b", "v")
	l.comeBack("a", false)
	l.pass(time.Minute)
	l.detached(v, "a")
	l.attached(v, "b")
}

// lifeNodeDeletedPodsStay is the minute before PodGC deletes the pods of a deleted Node.
func lifeNodeDeletedPodsStay(l *life) {
	v := l.settledOn("a")
	l.node("b")
	l.pod("q", "b", "v")
	l.deleteNode("a")
	l.pass(time.Minute)
	l.podGone("p")
	l.pass(6 * time.Minute)
	l.detached(v, "a")
	l.attached(v, "b")
}

// lifeDeletedByHand is about a VolumeAttachment that a person deletes while the volume is
// in use. Its mounts are dead, so its pod is deleted later.
func lifeDeletedByHand(l *life) {
	v := l.settledOn("a")
	l.node("b")
	l.deletesAttachment(v, "a")
	l.detached(v, "a")
	l.attached(v, "a")
	l.pod("q", "b", "v")
	l.podGone("p")
	l.use("a")
	l.detached(v, "a")
	l.attached(v, "b")
}

// lifeUncertainAttach is about a pod whose volume may be in the process of being attached to another node.
func lifeUncertainAttach(l *life) {
	l.node("a")
	l.node("b")
	v := l.volume("v")
	l.pod("p", "a", "v")
	l.pod("q", "b", "v")
	l.cannotAttach(v, "a", "no answer in time")
	l.podGone("p")
	l.detached(v, "a")
	l.attached(v, "b")
}

// lifeUncertainAttachInUse is about an attach without an answer, whose node already lists the
// volume in use, as kubelet does before it mounts. Each attempt has a new error.
func lifeUncertainAttachInUse(l *life) {
	l.node("a")
	l.node("b")
	v := l.volume("v")
	l.pod("p", "a", "v")
	l.use("a", v)
	l.cannotAttach(v, "a", "no answer in time; next attempt at 2000-01-01T00:00:01Z")
	l.cannotAttach(v, "a", "no answer in time; next attempt at 2000-01-01T00:00:03Z")
	l.podGone("p")
	l.pod("q", "b", "v")
	l.cannotAttach(v, "a", "no answer in time; next attempt at 2000-01-01T00:00:07Z")
	l.use("a")
	l.refusesDetach(v, "a", "no answer in time; next attempt at 2000-01-01T00:00:15Z")
	l.refusesDetach(v, "a", "no answer in time; next attempt at 2000-01-01T00:00:31Z")
	l.detached(v, "a")
	l.attached(v, "b")
}

// lifeHolderNotReady is about pods that cannot terminate, because their node has no power.
func lifeHolderNotReady(l *life) {
	v := l.settledOn("a")
	l.node("b")
	l.pod("q", "b", "v")
	l.ready("a", corev1.ConditionUnknown)
	l.ready("a", corev1.ConditionTrue)
	l.ready("a", corev1.ConditionUnknown)
	l.podGone("p")
	l.pass(6 * time.Minute)
	l.detached(v, "a")
	l.attached(v, "b")
}

// lifeDetachForbidden is about an admission rule that forbids the delete.
func lifeDetachForbidden(l *life) {
	v := l.settledOn("a")
	l.node("b")
	l.pod("q", "b", "v")
	l.forbids = func(verb string, _ client.Object) error {
		if verb == "delete" {
			return errors.New("frozen for the weekend")
		}
		return nil
	}
	l.podGone("p")
	l.use("a")
	l.pass(10 * time.Second)
	l.forbids = nil
	l.pass(10 * time.Second)
	l.detached(v, "a")
	l.attached(v, "b")
}

// lifeLeaseForbidden is about a controller that was not given the right to read the leases
// of kubelets.
func lifeLeaseForbidden(l *life) {
	l.settledOn("a")
	l.node("b")
	l.pod("q", "b", "v")
	l.deleteNode("a")
	l.podGone("p")
	l.forbids = func(_ string, obj client.Object) error {
		if _, ok := obj.(*coordinationv1.Lease); ok {
			return errors.New("no rights")
		}
		return nil
	}
	l.comeBack("a", false)
	l.pass(10 * time.Second)
}

func lifeFlip(l *life) {
	v := l.settledOn("a")
	l.driverAttaches(false)
	l.driverAttaches(true)
	l.driverAttaches(false)
	l.pass(time.Hour)
	l.podGone("p")
	l.use("a")
	l.detached(v, "a")
	l.pod("p2", "a", "v")
	l.driverAttaches(true)
	l.attached(v, "a")
}

func lifeSilent(l *life) {
	l.node("a")
	v := l.volume("v")
	l.pod("p", "a", "v")
	l.pass(time.Hour)
	l.attached(v, "a")
	l.podGone("p")
	l.pass(time.Hour)
	l.pod("p2", "a", "v")
	l.detached(v, "a")
}

// lifeSilentMove is about a pod that waits while nothing carries out the detach.
func lifeSilentMove(l *life) {
	v := l.settledOn("a")
	l.node("b")
	l.pod("q", "b", "v")
	l.podGone("p")
	l.use("a")
	l.pass(3 * time.Minute)
	l.detached(v, "a")
	l.attached(v, "b")
}

func lifeFibreChannel(l *life) {
	l.node("a")
	l.node("b")
	v := l.fibreChannel("v")
	l.pod("p", "a", "v")
	l.use("a", v)
	l.pod("q", "b", "v")
	l.podGone("p")
	l.restart()
	l.use("a")
	l.pass(time.Minute) // the report that a new leader finds does not say when the volume was attached
	l.podGone("q")
}

func lifeFibreChannelTimeout(l *life) {
	l.node("a")
	l.node("b")
	v := l.fibreChannel("v")
	l.pod("p", "a", "v")
	l.use("a", v)
	l.ready("a", corev1.ConditionUnknown)
	l.podGone("p")
	l.pod("q", "b", "v")
	l.pass(4 * time.Minute)
	l.restart()
	l.pass(2 * time.Minute)
	l.ready("a", corev1.ConditionTrue)
	l.use("a")
	l.use("b", v)
	l.deleteNode("b")
	l.podGone("q")
	l.pod("p", "a", "v")
	l.pass(time.Minute)
	l.comeBack("b", false)
	l.pass(time.Hour)
	l.use("b", v)
	l.use("b")
}

// The timeout counts from the last time that pods left, also where it began to count once
// before while there was no Node.
func lifeFibreChannelReturned(l *life) {
	l.node("a")
	v := l.fibreChannel("v")
	l.pod("p", "a", "v")
	l.use("a", v)
	l.deleteNode("a")
	l.podGone("p")
	l.pass(time.Minute)
	l.comeBack("a", false)
	l.use("a", v)
	l.pod("q", "a", "v")
	l.pass(10 * time.Minute)
	l.ready("a", corev1.ConditionUnknown)
	l.podGone("q")
	l.pass(10 * time.Minute)
}
