package attacher

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// maxInterned is how many different things an interner holds at most. Those of a cluster's nodes and of its storage classes find
// room; where each volume has something of its own there is nothing to share anyway.
const maxInterned = 8192

// interner keeps one of each of the lists and maps that many objects have in common, a node's annotations or a volume's
// attributes: at 20,000 volumes their copies are a third of the caches. What is taken from it is shared: nobody may
// change it, as nobody may change an object in a cache.
type interner struct {
	mu    sync.Mutex
	lists map[string][]string
	maps  map[string]map[string]string
	// others are sources of which only the driver is kept.
	others map[string]*corev1.CSIPersistentVolumeSource
}

func newInterner() *interner {
	return &interner{lists: map[string][]string{}, maps: map[string]map[string]string{}, others: map[string]*corev1.CSIPersistentVolumeSource{}}
}

// list gives a list of the same strings.
func (s *interner) list(l []string) []string {
	if len(l) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return take(s.lists, fmt.Sprintf("%q", l), l)
}

// pairs gives a map of the same strings.
func (s *interner) pairs(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	var content strings.Builder
	for _, key := range slices.Sorted(maps.Keys(m)) {
		content.WriteString(strconv.Quote(key) + strconv.Quote(m[key]))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return take(s.maps, content.String(), m)
}

// word gives the same string.
func (s *interner) word(w string) string { return s.list([]string{w})[0] }

// foreign gives the source of a volume of another driver.
func (s *interner) foreign(driver string) *corev1.CSIPersistentVolumeSource {
	s.mu.Lock()
	defer s.mu.Unlock()
	return take(s.others, driver, &corev1.CSIPersistentVolumeSource{Driver: driver})
}

// take gives the value that is kept, or keeps it. A full one is cleared: what was taken stays as it is.
func take[T any](on map[string]T, content string, thing T) T {
	if there, ok := on[content]; ok {
		return there
	}
	if len(on) >= maxInterned {
		clear(on)
	}
	on[content] = thing
	return thing
}
