package attachdetach

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

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
		"attach-no-longer-needed": {asUpstream, lifeFlip},
		"silent-attacher":         {asUpstream, lifeSilent},
		"fibre-channel":           {asUpstream, lifeFibreChannel},
		"fibre-channel-timeout":   {asUpstream, lifeFibreChannelTimeout},
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
	l.podGone("p") // the clock begins anew
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
	l.pass(time.Hour)
	l.use("a", v)
	l.use("a")
	l.detached(v, "a")
	l.pod("p2", "a", "v")
	l.attached(v, "a")
	l.deleteNode("a")
	l.podGone("p2")
	l.comeBack("a", true)
	l.detached(v, "a")
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
