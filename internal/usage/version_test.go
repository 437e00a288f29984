package usage

import (
	"runtime/debug"
	"testing"
)

// TestRecordedVersion: a plugin that was built by go build alone says which commit it is.
func TestRecordedVersion(t *testing.T) {
	info := &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "4b6c9366"}}}
	info.Main.Version = "v0.0.0-20261128204453-4b6c9366"
	if version, commit := recorded(info, "unknown", "unknown"); version != info.Main.Version || commit != "4b6c9366" {
		t.Errorf("got %s, commit %s", version, commit)
	}
	info.Main.Version, info.Settings = "(devel)", nil // as without a repository
	if version, commit := recorded(info, "unknown", "unknown"); version != "unknown" || commit != "unknown" {
		t.Errorf("got %s, commit %s", version, commit)
	}
}
