package attacher

import (
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/publication"
)

func TestLedgerKeepsOneCallPerExclusiveVolume(t *testing.T) {
	try := func(uid, volume string) attempt {
		return attempt{uid: types.UID(uid), volume: identity{handle: volume}, node: "node-" + uid, verb: publication.Publish, nodeID: "n"}
	}
	l := newLedger()
	if !l.begin(try("a", "v"), true) || l.begin(try("b", "v"), true) || l.begin(try("a", "v"), false) {
		t.Error("S4: a second call was let through")
	}
	if !l.begin(try("b", "v"), false) || !l.begin(try("c", "w"), true) {
		t.Error("calls for a shared volume and for another volume do not wait")
	}
	now := time.Now()
	l.fail("a", errors.New("x"), now)
	l.begin(try("a", "v"), false)
	l.fail("a", errors.New("x"), now)
	if got := l.of("a").call.Failures; got != 2 {
		t.Errorf("failures: %d, want 2", got)
	}
	l.begin(try("a", "v"), false)
	l.confirm("a", nil, now)
	if c := l.of("a").call; !c.Confirmed || c.Failures != 0 || c.Message != "" {
		t.Errorf("after OK: %+v", c)
	}
	l.forget("a")
	l.forget("b")
	l.forget("c")
	if len(l.byUID)+len(l.byVolume) != 0 {
		t.Errorf("left behind: %v %v", l.byUID, l.byVolume)
	}
}
