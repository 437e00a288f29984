package attachdetach

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
)

// A pod needs a Fibre Channel volume again, and the Node, which notes since when none has, is deleted before that note is taken off it:
// the unmount timeout does not count from the note (S2).
func TestDeletedNodeKeepsTheNewerRequest(t *testing.T) {
	unique, old, now := kube.UniqueVolumeName(kube.FibreChannelPlugin, "[50]:1"), time.Unix(1000, 0).UTC(), time.Unix(2000, 0).UTC()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{
		kube.DetachesRequestedAnnotation: fmt.Sprintf("{%q: %q}", unique, old.Format(time.RFC3339)),
	}}}
	for name, test := range map[string]struct {
		before func(*ledger)
		want   time.Time
	}{
		"only the Node has it":            {func(*ledger) {}, old},
		"the Node got it":                 {func(l *ledger) { l.request(unique, "a", old); l.stored(unique, "a") }, old},
		"it was about to be taken off":    {func(l *ledger) { l.request(unique, "a", time.Time{}) }, time.Time{}},
		"a later one was about to follow": {func(l *ledger) { l.request(unique, "a", now) }, now},
	} {
		t.Run(name, func(t *testing.T) {
			l := &ledger{}
			l.add(unique, "a", ledgerEntry{}, true)
			test.before(l)
			l.nodeDeleted(node)
			if got := l.of(unique)["a"].requested; !got.Equal(test.want) {
				t.Errorf("requested at %v, want %v", got, test.want)
			}
		})
	}
}
