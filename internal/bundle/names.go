package bundle

import (
	"fmt"
	"slices"
	"strings"
)

// Pseudonyms replaces names, each by the same wherever it is.
type Pseudonyms struct{ of map[string]string }

// wellKnown are namespaces that every cluster has, and belay's.
var wellKnown = []string{"default", "kube-system", "kube-public", "kube-node-lease", "belay-system"}

// NewPseudonyms makes pseudonyms for the names, by kind: "pod-x1" for the first name of the kind "pod". A name of several kinds has one.
func NewPseudonyms(kinds []string, names map[string][]string) *Pseudonyms {
	p := &Pseudonyms{of: map[string]string{}}
	for _, kind := range kinds {
		sorted := slices.Compact(slices.Sorted(slices.Values(names[kind])))
		n := 0
		for _, name := range sorted {
			if p.of[name] == "" && name != "" && !slices.Contains(wellKnown, name) {
				n++
				p.of[name] = fmt.Sprintf("%s-x%d", kind, n)
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
	var parts, separators []string
	for rest := found; ; {
		i := strings.IndexAny(rest, "-._")
		if i < 0 {
			parts = append(parts, rest)
			break
		}
		parts, separators, rest = append(parts, rest[:i]), append(separators, rest[i:i+1]), rest[i+1:]
	}
	join := func(from, to int) string {
		var b strings.Builder
		for i := from; i < to; i++ {
			b.WriteString(parts[i])
			if i+1 < to {
				b.WriteString(separators[i])
			}
		}
		return b.String()
	}
	var b strings.Builder
	for i := 0; i < len(parts); {
		next, text := i+1, parts[i]
		for j := len(parts); j > i; j-- { // the longest name that begins here
			if other := p.of[join(i, j)]; other != "" {
				next, text = j, other
				break
			}
		}
		b.WriteString(text)
		if next < len(parts) {
			b.WriteString(separators[next-1])
		}
		i = next
	}
	return b.String()
}
