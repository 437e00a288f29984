package heap

import (
	"runtime"
	"testing"
	"time"
)

func TestHeapGrowth(t *testing.T) {
	for name, c := range map[string]struct {
		live uint64
		want int
	}{
		"nothing known":   {0, 400},
		"a small cluster": {20 << 20, 320},
		"as much as room": {64 << 20, 100},
		"a large cluster": {1 << 30, 40},
		"hardly anything": {1, 400},
	} {
		if got := (Growth{Room: 64 << 20, Least: 40}).percent(c.live); got != c.want {
			t.Errorf("%s: percent(%d) = %d, want %d", name, c.live, got, c.want)
		}
	}
	if live() == 0 {
		runtime.GC()
		if live() == 0 {
			t.Error("live() = 0 after a collection")
		}
	}
}

func TestEachCollectionCallsBack(t *testing.T) {
	noticed := make(chan struct{}, 1)
	afterCollection(func() {
		select {
		case noticed <- struct{}{}:
		default: // the test is over
		}
	})
	for range 3 {
		runtime.GC()
		select {
		case <-noticed:
		case <-time.After(time.Minute):
			t.Fatal("a collection was not noticed")
		}
	}
}
