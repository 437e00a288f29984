package kube

import (
	"maps"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestInterner: equal values are one, different values are not, and an interner does not grow forever.
func TestInterner(t *testing.T) {
	var s Interner
	a, b := s.Map(map[string]string{"a": "b", "c": "d"}), s.Map(map[string]string{"c": "d", "a": "b"})
	a["probe"] = "" // no other code may
	if _, one := b["probe"]; !one {
		t.Error("equal maps are two")
	}
	for _, other := range []map[string]string{{"a": "b"}, {"a": "b\x00c"}, {"a": "b", "c": ""}, {"ab": "", "c": "d"}} {
		if diff := cmp.Diff(other, s.Map(maps.Clone(other))); diff != "" {
			t.Errorf("not what was put there:\n%s", diff)
		}
	}
	if s.Map(nil) != nil || s.Map(map[string]string{}) != nil || s.List([]string{}) != nil {
		t.Error("of nothing there is something")
	}
	for i := range 3 * maxWords {
		if word := strconv.Itoa(i); s.Word(word) != word {
			t.Fatalf("not the word %s", word)
		}
	}
	if len(s.words.values) > maxWords {
		t.Errorf("%d strings are interned", len(s.words.values))
	}
}

// Values of annotations and of volume attributes may contain any character: a map must not be mistaken for another one.
func TestInternerDistinguishesMaps(t *testing.T) {
	var s Interner
	s.Map(map[string]string{"pool": "a\x00tier\x00gold"})
	if got := s.Map(map[string]string{"pool": "a", "tier": "gold"}); len(got) != 2 {
		t.Errorf("another volume's attributes: %q", got)
	}
}
