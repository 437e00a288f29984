package attachdetach

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/attachment"
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
			l.add(unique, "a", ledgerEntry{})
			test.before(l)
			l.nodeDeleted(node)
			if got := l.of(unique)["a"].requested; !got.Equal(test.want) {
				t.Errorf("requested at %v, want %v", got, test.want)
			}
		})
	}
}

// A machine is restarted, is given a Fibre Channel volume again, and its Node is deleted. The entry, which was made under the boot before,
// becomes that of the boot that lists the volume: otherwise a recreated Node would look like a restarted machine (S2). It stays that of the
// Node object that the volume was attached under.
func TestDeletedNodeKeepsTheBootThatListedTheVolume(t *testing.T) {
	unique := kube.UniqueVolumeName(kube.FibreChannelPlugin, "[50]:1")
	entry := func(uid, boot, system string, created int64) ledgerEntry {
		return ledgerEntry{machine: attachment.Machine{NodeUID: uid, BootID: boot, SystemUUID: system}, created: time.Unix(created, 0)}
	}
	names := []corev1.UniqueVolumeName{corev1.UniqueVolumeName(unique)}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "uid-2", CreationTimestamp: metav1.Unix(2000, 0)}}
	node.Status.NodeInfo.BootID, node.Status.NodeInfo.SystemUUID = "boot-2", "system"
	node.Status.VolumesAttached = []corev1.AttachedVolume{{Name: names[0]}}
	node.Status.VolumesInUse = names
	unlisted, unreported := node.DeepCopy(), node.DeepCopy()
	unlisted.Status.VolumesInUse, unreported.Status.VolumesAttached = nil, nil
	earlier, last := entry("uid-1", "boot-1", "system", 1000), entry("uid-1", "boot-2", "system", 1000)
	later, other := entry("uid-3", "boot-2", "system", 3000), entry("uid-1", "boot-1", "another system", 1000)
	for name, test := range map[string]struct {
		before ledgerEntry
		node   *corev1.Node
		want   ledgerEntry
	}{
		"the boot before":            {earlier, node, last},
		"it does not list it":        {earlier, unlisted, earlier},
		"it lists it without report": {earlier, unreported, earlier},
		"a later Node was given it":  {later, node, later},
		"another machine has it":     {other, node, other},
	} {
		t.Run(name, func(t *testing.T) {
			l := &ledger{}
			l.add(unique, "a", test.before)
			l.nodeDeleted(test.node)
			if got := l.of(unique)["a"]; got != test.want {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}
