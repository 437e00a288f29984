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

// maxInterned bounds the number of values. The values of a cluster's nodes and storage classes fit; values that are
// unique to a volume cannot be shared anyway.
const maxInterned = 8192

// interner deduplicates lists and maps that many objects have in common, such as a node's annotations or a volume's
// attributes: at 20,000 volumes their copies are a third of the caches. The values are shared and must not be changed,
// as for all objects in a cache.
type interner struct {
	mu    sync.Mutex
	lists map[string][]string
	maps  map[string]map[string]string
	// others holds CSI sources with nothing but the driver.
	others map[string]*corev1.CSIPersistentVolumeSource
}

func newInterner() *interner {
	return &interner{lists: map[string][]string{}, maps: map[string]map[string]string{}, others: map[string]*corev1.CSIPersistentVolumeSource{}}
}

func (s *interner) list(l []string) []string {
	if len(l) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return take(s.lists, fmt.Sprintf("%q", l), l)
}

func (s *interner) stringMap(m map[string]string) map[string]string {
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

func (s *interner) str(w string) string { return s.list([]string{w})[0] }

// foreignSource returns the source of another driver's volume.
func (s *interner) foreignSource(driver string) *corev1.CSIPersistentVolumeSource {
	s.mu.Lock()
	defer s.mu.Unlock()
	return take(s.others, driver, &corev1.CSIPersistentVolumeSource{Driver: driver})
}

// take returns the interned value, and interns it if it is new. A full map is cleared; earlier values stay valid.
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
