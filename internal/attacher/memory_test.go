package attacher

import (
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/publication"
)

func TestLedgerKeepsOneCallPerExclusiveVolume(t *testing.T) {
	exclusive := func(uid, volume string) attempt {
		return attempt{key: publication.Key{Volume: volume}, uid: types.UID(uid), volume: identity{handle: volume}, node: "node-" + uid,
			verb: publication.Publish, nodeID: "id-" + uid}
	}
	shared := func(uid, volume string) attempt {
		try := exclusive(uid, volume)
		try.key.NodeID = try.nodeID
		return try
	}
	yes, no := func() bool { return true }, func() bool { return false }
	l := newLedger()
	if !l.begin(exclusive("a", "v"), no) || l.begin(exclusive("b", "v"), no) || l.begin(shared("a", "v"), no) {
		t.Error("S4: a second call was let through")
	}
	if !l.begin(shared("b", "v"), no) || !l.begin(exclusive("c", "w"), no) {
		t.Error("calls for a shared volume and for another volume do not wait")
	}
	if l.begin(exclusive("d", "x"), yes) || l.of("d").call.InFlight {
		t.Error("S1: a call was let through whose decision is outdated")
	}
	now := time.Now()
	l.fail("a", errors.New("x"), now)
	l.begin(shared("a", "v"), no)
	l.fail("a", errors.New("x"), now)
	if got := l.of("a").call.Failures; got != 2 {
		t.Errorf("failures: %d, want 2", got)
	}
	l.begin(shared("a", "v"), no)
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
