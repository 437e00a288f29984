package fenceagent

import (
	"context"
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// metadata is what an agent says about itself (the action metadata).
type metadata struct {
	Parameters []struct {
		Name      string `xml:"name,attr"`
		Obsoletes string `xml:"obsoletes,attr"`
	} `xml:"parameters>parameter"`
	Actions []struct {
		Name string `xml:"name,attr"`
	} `xml:"actions>action"`
}

func (m *metadata) has(option string) bool {
	for _, p := range m.Parameters {
		if p.Name == option || p.Obsoletes == option {
			return true
		}
	}
	return false
}

func (m *metadata) does(action string) bool {
	for _, a := range m.Actions {
		if a.Name == action {
			return true
		}
	}
	return false
}

// known has the metadata by path and version of the file.
var known sync.Map

type version struct {
	path     string
	modified time.Time
}

func metadataOf(ctx context.Context, path string) (*metadata, error) {
	name := filepath.Base(path)
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("find agent %s: %w", name, err)
	}
	key := version{path, info.ModTime()}
	if m, ok := known.Load(key); ok {
		return m.(*metadata), nil
	}
	exit, text, err := execute(ctx, "action=metadata\n", path)
	if err != nil {
		return nil, fmt.Errorf("ask agent %s for its metadata: %w", name, err)
	}
	m := &metadata{}
	start := max(strings.Index(text, "<resource-agent"), 0)
	if err := xml.Unmarshal([]byte(text[start:]), m); exit != 0 || err != nil || !m.does("off") || !m.does("status") {
		return nil, fmt.Errorf("agent %s gave no metadata with the actions off and status: exit status %d (%w)", name, exit, err)
	}
	known.Store(key, m)
	return m, nil
}

// releases has what agents call their version, by path and version of the file.
var releases sync.Map

// release is the version of an agent of Debian: the last line of what it prints.
var release = regexp.MustCompile(`(?m)^([0-9]+\.[0-9][0-9A-Za-z.]*)\s*\z`)

// releaseOf asks an agent for its version; empty if it gives none.
func releaseOf(ctx context.Context, path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("find agent %s: %w", filepath.Base(path), err)
	}
	key := version{path, info.ModTime()}
	if r, ok := releases.Load(key); ok {
		return r.(string), nil
	}
	exit, text, err := execute(ctx, "", path, "--version")
	if err != nil {
		return "", fmt.Errorf("ask agent %s for its version: %w", filepath.Base(path), err)
	}
	found := ""
	if m := release.FindStringSubmatch(text); m != nil && exit == 0 {
		found = m[1]
	}
	releases.Store(key, found)
	return found, nil
}
