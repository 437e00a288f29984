package kube

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// maxInterned bounds the number of values. The values of a cluster's nodes and storage classes fit; values that are
// unique to a volume cannot be shared anyway.
const maxInterned = 8192

// maxWords is maxInterned for strings: of a node there are several.
const maxWords = 8 * maxInterned

// Interned holds values that many objects have in common. They are shared and must not be changed, as all objects in a cache. The zero
// value is ready for use.
type Interned[T any] struct {
	mu     sync.Mutex
	values map[string]T
}

// Take returns the interned value with that content, and interns this one if there is none. When it is full, it is cleared; earlier values
// stay valid.
func (s *Interned[T]) Take(content string, value T) T { return s.take(content, value, maxInterned) }

func (s *Interned[T]) take(content string, value T, most int) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if there, ok := s.values[content]; ok {
		return there
	}
	if s.values == nil || len(s.values) >= most {
		s.values = map[string]T{}
	}
	s.values[content] = value
	return value
}

// Interner deduplicates strings, lists and maps, such as a node's annotations or a volume's attributes: at 20,000 volumes their copies are
// a third of the attacher's caches.
type Interner struct {
	words Interned[string]
	lists Interned[[]string]
	maps  Interned[map[string]string]
}

// Word returns a string that equal words share.
func (s *Interner) Word(w string) string { return s.words.take(w, w, maxWords) }

// List returns a list that equal lists share.
func (s *Interner) List(l []string) []string {
	if len(l) == 0 {
		return nil
	}
	return s.lists.Take(fmt.Sprintf("%q", l), l)
}

// Map returns a map that equal maps share.
func (s *Interner) Map(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	var content strings.Builder
	for _, key := range slices.Sorted(maps.Keys(m)) {
		content.WriteString(strconv.Quote(key) + strconv.Quote(m[key]))
	}
	return s.maps.Take(content.String(), m)
}
