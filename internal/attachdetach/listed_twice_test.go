package attachdetach

import (
	"slices"
	"testing"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// The API server admits a list that names a volume twice (it is atomic). When both entries
// go at once, the volume is no longer in use, and nothing wakes it.
func TestListedTwice(t *testing.T) {
	m, k := newModel(t), key{Driver: driver, Handle: "h"}
	unique := kube.UniqueVolumeName(k.Driver, k.Handle)
	m.put(aVolume("pv", k.Handle))
	m.put(aClaim("pv"))
	m.put(aNode("a", isReady, listing([]string{unique, unique}, []string{unique})))
	va := sharedAttachment(k, "a")
	va.Spec.Source.PersistentVolumeName = new("pv")
	m.put(va)
	if d := m.decide(k); d.Reason != attachment.StillInUse {
		t.Fatalf("before: %+v", d.Steps)
	}
	woken := m.put(aNode("a", isReady, listing(nil, []string{unique})))
	if d := m.decide(k); !does[attachment.WithdrawReport](d) {
		t.Fatalf("after: %+v", d.Steps)
	}
	if !slices.Contains(woken, k) {
		t.Error("the volume is no longer in use and is not woken")
	}
}
