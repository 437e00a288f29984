package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// Only an answer of the API server itself proves that a create made nothing. After any other result the attachment is
// read before the volume is decided on again.
func TestUnsure(t *testing.T) {
	resource := schema.GroupResource{Resource: "volumeattachments"}
	tests := map[string]struct {
		err  error
		want bool
	}{
		"connection lost":  {errors.New("read tcp: connection reset by peer"), true},
		"no answer yet":    {context.DeadlineExceeded, true},
		"server timeout":   {apierrors.NewServerTimeout(resource, "create", 1), true},
		"gateway timeout":  {apierrors.NewTimeoutError("took too long", 1), true},
		"internal error":   {apierrors.NewInternalError(errors.New("etcd")), true},
		"forbidden":        {apierrors.NewForbidden(resource, "va", nil), false},
		"invalid":          {apierrors.NewInvalid(schema.GroupKind{Kind: "VolumeAttachment"}, "va", nil), false},
		"no API server":    {fmt.Errorf("dial: %w", syscall.ECONNREFUSED), false},
		"too many at once": {apierrors.NewTooManyRequests("later", 1), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, k := &Controller{pendingCreates: map[key]map[string]pendingCreate{}, clock: ownClock{}}, key{Driver: "d", Handle: "h"}
			(&work{Controller: c, key: k}).recordPendingCreate("va", "n", tt.err)
			if got := slices.Collect(maps.Keys(c.pendingCreates[k])); tt.want != slices.Equal(got, []string{"va"}) {
				t.Errorf("to be read: %v, want it: %v", got, tt.want)
			}
		})
	}
}

// A report without an answer counts against every other node, also when no pod wants
// the volume at its own node any more and nothing else refers to that node (S1).
func TestUnansweredReportOnUnwantedNode(t *testing.T) {
	m := newModel(t)
	fc := aVolume("c", "")
	fc.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"5006"}, Lun: new(int32(1))}}
	for _, obj := range []client.Object{aPod("p", "n", byClaimOf("c")), aClaim("c"), fc, aNode("n"), aNode("before")} {
		m.put(obj)
	}
	k := key{Driver: kube.FibreChannelPlugin, Handle: "[5006]:1"}
	m.put(ownAttachment(k, aNode("before")))
	s := m.observe(k, &nodeReads{}, doubtAbout("before"))
	d := attachment.Decide(modelTime, s.want, s.seen, attachment.Policy{})
	if reports(d) || !does[attachment.WithdrawReport](d) {
		t.Errorf("steps %+v, want only that the other node's report is stopped", d.Steps)
	}
}

// doubtAbout is a node with a write that got no answer.
type doubtAbout string

func (doubtAbout) deleteMayBeUnderway(*storagev1.VolumeAttachment) bool { return false }
func (n doubtAbout) writeMayBeUnderway(node *corev1.Node) bool          { return node.Name == string(n) }
func (doubtAbout) attachmentDeleted([]key, *storagev1.VolumeAttachment) {}
func (doubtAbout) pending(key) []attachment.Pending                     { return nil }
