package attacher

import (
	"errors"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/publication"
)

func objectOf(uid, version string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va", UID: types.UID(uid), ResourceVersion: version}}
}

// What a read gives after writes, replies and events in every order in which they
// can come.
func TestNewest(t *testing.T) {
	type read = *newest[*storagev1.VolumeAttachment]
	event := func(n read, o *storagev1.VolumeAttachment) { _ = n.indexer.Add(o); n.caughtUp(o) }
	end := func(n read, o *storagev1.VolumeAttachment) { _ = n.indexer.Delete(o); n.deleted(o) }
	list := func(n read, version string, uids ...types.UID) {
		found := quorumList{version: version, uids: map[types.UID]struct{}{}}
		for _, uid := range uids {
			found.uids[uid] = struct{}{}
		}
		n.listed(found)
	}
	tests := map[string]struct {
		happens func(n read)
		want    string // resource version; empty for nothing
	}{
		"came and went before the list":     {func(n read) { list(n, "9"); event(n, objectOf("u", "5")) }, ""},
		"was there at the list":             {func(n read) { list(n, "9", "u"); event(n, objectOf("u", "5")) }, "5"},
		"made after the list":               {func(n read) { list(n, "9"); event(n, objectOf("w", "10")) }, "10"},
		"made again, and both before it":    {func(n read) { list(n, "9", "w"); event(n, objectOf("u", "5")) }, ""},
		"list that the cache has come past": {func(n read) { event(n, objectOf("u", "11")); list(n, "9") }, "11"},
		"only the cache":                    {func(n read) { event(n, objectOf("u", "5")) }, "5"},
		"reply before the event":            {func(n read) { event(n, objectOf("u", "5")); n.wrote(objectOf("u", "7")) }, "7"},
		"event of something in between":     {func(n read) { event(n, objectOf("u", "5")); n.wrote(objectOf("u", "7")); event(n, objectOf("u", "6")) }, "7"},
		"event of the write":                {func(n read) { event(n, objectOf("u", "5")); n.wrote(objectOf("u", "7")); event(n, objectOf("u", "7")) }, "7"},
		"somebody else's later write":       {func(n read) { event(n, objectOf("u", "5")); n.wrote(objectOf("u", "7")); event(n, objectOf("u", "9")) }, "9"},
		"event before the reply":            {func(n read) { event(n, objectOf("u", "9")); n.wrote(objectOf("u", "7")) }, "9"},
		"versions of different length":      {func(n read) { event(n, objectOf("u", "99")); n.wrote(objectOf("u", "100")) }, "100"},
		"deleted before the reply":          {func(n read) { event(n, objectOf("u", "5")); end(n, objectOf("u", "8")); n.wrote(objectOf("u", "7")) }, ""},
		"deleted after the reply":           {func(n read) { event(n, objectOf("u", "5")); n.wrote(objectOf("u", "7")); end(n, objectOf("u", "8")) }, ""},
		"ended by us, cache behind":         {func(n read) { event(n, objectOf("u", "5")); n.ended(objectOf("u", "7")) }, ""},
		"ended by us, made again": {func(n read) {
			event(n, objectOf("u", "5"))
			n.ended(objectOf("u", "7"))
			end(n, objectOf("u", "7"))
			event(n, objectOf("w", "8"))
		}, "8"},
		"made again, reply for the first": {func(n read) { event(n, objectOf("w", "8")); n.wrote(objectOf("u", "7")) }, "8"},
		"made again, end of the first":    {func(n read) { event(n, objectOf("w", "8")); n.ended(objectOf("u", "7")) }, "8"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNewest[*storagev1.VolumeAttachment](cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), nil)
			tt.happens(n)
			got := ""
			if va, ok := n.get("va"); ok {
				got = va.ResourceVersion
			}
			if got != tt.want {
				t.Errorf("read version %q, want %q", got, tt.want)
			}
			end(n, objectOf("u", "100"))
			end(n, objectOf("w", "100"))
			if len(n.ahead)+len(n.gone) != 0 {
				t.Errorf("left behind: %v, %v", n.ahead, n.gone)
			}
		})
	}
}

func TestGate(t *testing.T) {
	tests := map[string]struct {
		listed, cached map[string]string
		events         func(g *gate)
		want           bool // open
	}{
		"nothing there":                {want: true},
		"cache is as new":              {listed: map[string]string{"a": "5"}, cached: map[string]string{"a": "5"}, want: true},
		"cache is newer":               {listed: map[string]string{"a": "9"}, cached: map[string]string{"a": "10"}, want: true},
		"cache is older":               {listed: map[string]string{"a": "5"}, cached: map[string]string{"a": "4"}},
		"cache lacks one":              {listed: map[string]string{"a": "5"}},
		"cache has a deleted one":      {cached: map[string]string{"a": "4"}},
		"caught up":                    {listed: map[string]string{"a": "5"}, cached: map[string]string{"a": "4"}, events: func(g *gate) { g.reached("a", "5") }, want: true},
		"on the way":                   {listed: map[string]string{"a": "5"}, cached: map[string]string{"a": "3"}, events: func(g *gate) { g.reached("a", "4") }},
		"deletion arrived":             {cached: map[string]string{"a": "4"}, events: func(g *gate) { g.reached("a", "4"); g.deleted("a") }, want: true},
		"changed, not deleted, so far": {cached: map[string]string{"a": "4"}, events: func(g *gate) { g.reached("a", "6") }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := newGate()
			opened := g.wait(tt.listed, func() map[string]string { return tt.cached })
			if tt.events != nil {
				tt.events(g)
			}
			got := false
			select {
			case <-opened:
				got = true
			default:
			}
			if got != tt.want {
				t.Errorf("open: %v, want %v", got, tt.want)
			}
		})
	}
}

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
