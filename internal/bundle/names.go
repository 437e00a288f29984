package bundle

import (
	"fmt"
	"slices"
	"strings"
)

// Pseudonyms replaces names, each by the same wherever it is.
type Pseudonyms struct {
	of map[string]string
	// lengths holds the lengths of the names that begin with a part, the longest first: a word may have a million parts.
	lengths map[string][]int
}

// wellKnown are namespaces that every cluster has, and belay's.
var wellKnown = []string{"default", "kube-system", "kube-public", "kube-node-lease", "belay-system"}

// NewPseudonyms makes pseudonyms for the names, by kind: "pod-x1" for the first name of the kind "pod". A name of several kinds has one.
func NewPseudonyms(kinds []string, names map[string][]string) *Pseudonyms {
	p := &Pseudonyms{of: map[string]string{}, lengths: map[string][]int{}}
	for _, kind := range kinds {
		sorted := slices.Compact(slices.Sorted(slices.Values(names[kind])))
		n := 0
		for _, name := range sorted {
			if p.of[name] == "" && name != "" && !slices.Contains(wellKnown, name) {
				n++
				p.of[name] = fmt.Sprintf("%s-x%d", kind, n)
				p.addLength(firstPart(name), len(name))
			}
		}
	}
	return p
}

// Replace replaces the names in a text, also where a name is part of a longer one, as in "db-0.prod.svc" or "prod-db-0-data".
func (p *Pseudonyms) Replace(text string) string { return word.ReplaceAllStringFunc(text, p.word) }

func (p *Pseudonyms) word(found string) string {
	if other := p.of[found]; other != "" {
		return other
	}
	var b strings.Builder
	for rest := found; rest != ""; {
		next, text := p.first(rest)
		b.WriteString(text)
		if next < len(rest) {
			b.WriteByte(rest[next])
			next++
		}
		rest = rest[next:]
	}
	return b.String()
}

// first returns the end of the longest name with which a part of a word begins, and its pseudonym; without one, those of the part itself.
func (p *Pseudonyms) first(rest string) (end int, text string) {
	part := firstPart(rest)
	for _, length := range p.lengths[part] {
		if length > len(rest) || length < len(rest) && !strings.ContainsRune(separators, rune(rest[length])) {
			continue
		}
		if other := p.of[rest[:length]]; other != "" {
			return length, other
		}
	}
	return len(part), part
}

func (p *Pseudonyms) addLength(part string, length int) {
	at, ok := slices.BinarySearchFunc(p.lengths[part], length, func(a, b int) int { return b - a })
	if !ok {
		p.lengths[part] = slices.Insert(p.lengths[part], at, length)
	}
}

// separators are between the parts of a name.
const separators = "-._"

func firstPart(text string) string {
	if end := strings.IndexAny(text, separators); end >= 0 {
		return text[:end]
	}
	return text
}
