package attacher

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/kube"
)

// realNode makes the Node, which lists volumes in use, beside a CSINode.
func (b *bubble) realNode(name string, ready corev1.ConditionStatus, inUse ...string) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	for _, handle := range inUse {
		node.Status.VolumesInUse = append(node.Status.VolumesInUse, corev1.UniqueVolumeName(kube.UniqueVolumeName(bubbleDriver, handle)))
	}
	b.api.put("nodes", node)
}

// refuseNodes refuses to read a Node.
func (b *bubble) refuseNodes(err error) {
	b.api.mu.Lock()
	defer b.api.mu.Unlock()
	b.api.refuse = func(r *http.Request) error {
		if !strings.Contains(r.URL.Path, "/nodes/") {
			return nil
		}
		return err
	}
}

// A Node is asked live whether it lists a volume in use. Whatever else the answer is, it is unknown.
func TestInUseAt(t *testing.T) {
	const id = "id-y"
	forbidden := apierrors.NewForbidden(corev1.Resource("nodes"), "y", errors.New("no"))
	for name, tt := range map[string]struct {
		arrange func(b *bubble)
		want    decision.Knowledge
		why     string
	}{
		"listed": {func(b *bubble) { b.node("y", id); b.realNode("y", corev1.ConditionTrue, "v") }, decision.Yes, `Node "y" lists it in use`},
		"listed by a Node that is not Ready": {func(b *bubble) { b.node("y", id); b.realNode("y", corev1.ConditionUnknown, "v") }, decision.Yes,
			`Node "y" lists it in use`},
		"not listed": {func(b *bubble) { b.node("y", id); b.realNode("y", corev1.ConditionTrue, "another") }, decision.No, ""},
		"not Ready":  {func(b *bubble) { b.node("y", id); b.realNode("y", corev1.ConditionUnknown) }, decision.Unknown, "not Ready"},
		"no conditions": {func(b *bubble) {
			b.node("y", id)
			b.api.put("nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "y"}})
		}, decision.Unknown, "not Ready"},
		"the Node is gone": {func(b *bubble) { b.node("y", id) }, decision.No, ""},
		"two Nodes with the ID, one lists it": {func(b *bubble) {
			b.node("x", id)
			b.node("y", id)
			b.realNode("x", corev1.ConditionUnknown)
			b.realNode("y", corev1.ConditionTrue, "v")
		}, decision.Yes, `Node "y" lists it in use`},
		"two Nodes with the ID, one may": {func(b *bubble) {
			b.node("x", id)
			b.node("y", id)
			b.realNode("x", corev1.ConditionTrue)
			b.realNode("y", corev1.ConditionUnknown)
		}, decision.Unknown, `Node "y" is not Ready`},
		"the ID is recorded on an attachment": {func(b *bubble) {
			b.attachedBefore("other", "y")
			b.node("y", "id-now")
			b.realNode("y", corev1.ConditionTrue, "v")
		}, decision.Yes, `Node "y" lists it in use`},
		"no Node has the ID": {func(b *bubble) { b.node("y", "another"); b.realNode("y", corev1.ConditionTrue) }, decision.Unknown, `no Node is known with node ID "id-y"`},
		"the right is missing": {func(b *bubble) { b.node("y", id); b.realNode("y", corev1.ConditionTrue); b.refuseNodes(forbidden) }, decision.Unknown,
			"needs the verb get on nodes"},
		"the read fails": {func(b *bubble) {
			b.node("y", id)
			b.realNode("y", corev1.ConditionTrue)
			b.refuseNodes(errors.New("away"))
		}, decision.Unknown, "away"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t)
				tt.arrange(b)
				defer b.start()()
				b.pass(time.Second)
				got := b.attacher.inUseAt(t.Context(), "v", id)
				if got.known != tt.want || !strings.Contains(got.why, tt.why) || (got.why == "") != (tt.want == decision.No) {
					t.Errorf("%v, %q, want %v, %q", got.known, got.why, tt.want, tt.why)
				}
			})
		})
	}
}
