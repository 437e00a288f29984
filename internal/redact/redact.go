// Package redact takes out of texts of other components what looks like a secret: an error of a driver may quote its request.
package redact

import (
	"regexp"
	"slices"
	"strings"
)

// Removed stands for what was taken out.
const Removed = "(removed)"

// What looks like a secret in a text, with what stays of it.
var patterns = []struct {
	match *regexp.Regexp
	keep  string
}{
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]+-----.*?(-----END [A-Z ]+-----|$)`), Removed},
	{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(\.[A-Za-z0-9_-]*)?`), Removed},
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}`), "${1} " + Removed},
	{regexp.MustCompile(`://[^/\s:@]*:[^/\s@]+@`), "://" + Removed + "@"},
	// A name and its value: as JSON, also where %q has put backslashes before its quotes, as a Go map, and as a flag.
	{regexp.MustCompile(`(?i)((?:pass(?:word|wd|phrase)|token|credentials?|authorization)[\w-]*\\*["']?\s*[:=]\s*\\*["']?)[^\s"',;&}\])]+`), "${1}" + Removed},
	// userKey, secretKey and all others that end so: some, such as volumeKey, are no secrets, and are removed too.
	{regexp.MustCompile(`(?i)(\b[\w-]+key(?:[-_][\w-]*)?\\*["']?\s*[:=]\s*\\*["']?)[^\s"',;&}\])]+`), "${1}" + Removed},
	{regexp.MustCompile(`(?i)(secret[\w-]*(?:=|\\*["']\s*:)\s*\\*["']?)[^\s"',;&}\])]+`), "${1}" + Removed},
}

// suspicious reports whether one of the patterns may match: most strings of an object are short and none does.
func suspicious(text string) bool {
	lower := strings.ToLower(text)
	return slices.ContainsFunc([]string{"-----begin", "eyj", "bearer", "basic", "://", "pass", "token", "credential", "key", "authorization", "secret"},
		func(part string) bool { return strings.Contains(lower, part) })
}

// Secrets takes out of a text what looks like a secret.
func Secrets(text string) string {
	if suspicious(text) {
		for _, p := range patterns {
			text = p.match.ReplaceAllString(text, p.keep)
		}
	}
	return text
}
