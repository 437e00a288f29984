package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Differences reads the pages of docs/differences, one after the other. It is used by tests
// that run in a folder two below the module's.
func Differences() (string, error) {
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "differences", "*.md"))
	if err != nil {
		return "", fmt.Errorf("list docs/differences: %w", err)
	}
	if len(pages) == 0 {
		return "", errors.New("list docs/differences: no page found")
	}
	document := &strings.Builder{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return "", fmt.Errorf("read a page of docs/differences: %w", err)
		}
		document.WriteByte('\n')
		document.Write(text)
	}
	return document.String(), nil
}
