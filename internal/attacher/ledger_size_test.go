package attacher

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/publication"
)

// The state that is kept for an attached VolumeAttachment stays until it is deleted, so it has to be small.
func TestLedgerBytes(t *testing.T) {
	const attachments, most = 20_000, 520
	tries := make([]attempt, attachments)
	for i := range tries {
		name := fmt.Sprint("csi-", i)
		tries[i] = attempt{
			uid: types.UID(fmt.Sprint("uid-", i)), node: "node", verb: publication.Publish, nodeID: "id-node", inputs: "inputs",
			attachment: &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}}, volume: identity{handle: fmt.Sprint("handle-", i)},
		}
	}
	l, now := newLedger(), time.Now()
	before := heapInUse()
	for _, try := range tries {
		l.begin(try, func() bool { return false })
		l.confirm(try.uid, nil, now)
		l.recorded(try.uid)
	}
	each := (heapInUse() - before) / attachments
	runtime.KeepAlive(l)
	t.Logf("%d bytes per VolumeAttachment", each)
	if each > most {
		t.Errorf("%d bytes per VolumeAttachment, want at most %d", each, most)
	}
	runtime.KeepAlive(tries)
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
