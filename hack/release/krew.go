package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

var placeholder = regexp.MustCompile(`\b(VERSION|RELEASE_URL|SHA256_[A-Z0-9_]+)\b`)

// krew fills in the manifest of the plugin: the version, the address and the checksums of the archives.
func krew(_ context.Context, o options) error {
	raw, err := os.ReadFile("deploy/krew/belay.yaml")
	if err != nil {
		return err
	}
	known := map[string]string{"VERSION": o.version.tag(), "RELEASE_URL": o.base}
	for _, product := range products {
		if product.name != plugin {
			continue
		}
		for _, p := range product.platforms {
			name := product.name + "_" + p.String() + ".tar.gz"
			if p.system == "windows" {
				name = product.name + "_" + p.String() + ".zip"
			}
			sum, err := digest(o.path(name))
			if err != nil {
				return err
			}
			known[strings.ToUpper("SHA256_"+p.String())] = sum
		}
	}
	filled, err := fill(string(raw), known)
	if err != nil {
		return err
	}
	return writeFile(o.path(krewFile), func(out io.Writer) error { _, err := io.WriteString(out, filled); return err })
}

// fill replaces the placeholders of a manifest, and drops the comment that explains them.
func fill(manifest string, known map[string]string) (string, error) {
	var lines []string
	used := map[string]bool{}
	for line := range strings.Lines(manifest) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var missing error
		line = placeholder.ReplaceAllStringFunc(line, func(name string) string {
			value, found := known[name]
			if !found {
				missing = fmt.Errorf("the manifest has the placeholder %s, and the release has no such archive", name)
			}
			used[name] = true
			return value
		})
		if missing != nil {
			return "", missing
		}
		lines = append(lines, line)
	}
	for name := range known {
		if !used[name] {
			return "", fmt.Errorf("the manifest has no placeholder %s", name)
		}
	}
	return strings.Join(lines, ""), nil
}
