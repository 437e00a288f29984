// Package redact takes out of texts of other components what looks like a secret: an error of a driver may quote its request. What it
// removes in vain costs a word of a message, what it leaves may cost a password.
package redact

import (
	"regexp"
	"slices"
	"strings"
)

// Removed stands for what was taken out.
const Removed = "(removed)"

// reach is how far a secret reaches.
type reach int

const (
	group   reach = iota // it is the group of the expression
	word                 // behind what matches, a word or a text in quotes
	rest                 // behind what matches, a text in quotes or the rest of the line
	element              // behind what matches, up to the next tag
)

const (
	// Names that begin with these words have a secret.
	secretName = `(?:passw(?:or)?d|passphrase|passcode|pwd|token|credentials?|secret|community(?: string)?|signature)[\w.-]*` //nolint:gosec // an expression
	// Names that end with these words have one too. All that end with key are among them: some, such as volumeKey, are no secrets.
	secretEnd = `(?:[\w.-]*(?:pass|sig|sess(?:ion)?[-_]?id)|[\w.-]+key(?:id|s)?(?:[-_][\w-]*)?)` //nolint:gosec // an expression
	// is stands between a name and its value: in a query, also an encoded one, in JSON, also where %q has put backslashes before its
	// quotes, in YAML and in a Go map.
	is = `\\*["']?\s*(?:=>|=|:|%3d)\s*`
	// next stands between a flag and its value, also in a list of arguments that Go or JSON has written.
	next = `\\*["']?(?:\s*,\s*|\s+)`
	// flag begins a flag.
	flag = `(?:^|[^\w-])`
)

// nameHints are the hints of what secretName and secretEnd match.
var nameHints = []string{"pass", "pwd", "token", "credential", "secret", "community", "sig", "sess", "key"}

// table is what looks like a secret in a line. A row is tried on a line that has one of its hints, in lower case.
var table = []struct {
	hints []string
	match *regexp.Regexp
	reach reach
}{
	{[]string{"://"}, regexp.MustCompile(`://([^\s/:@"'<>]*:[^\s"'<>]*|[^\s/"'<>]*)@`), group},
	{[]string{"cookie"}, regexp.MustCompile(`(?i)cookie2?` + is), rest},
	{[]string{"digest"}, regexp.MustCompile(`(?i)\bdigest\s+(\w+\s*=.*)`), group},
	{[]string{"authorization"}, regexp.MustCompile(`(?i)authorization[\w.-]*` + is + `\\*["'\[]*(?:(?:bearer|basic|digest|negotiate|ntlm)\s+)?`), word},
	{[]string{"bearer", "basic", "negotiate", "ntlm"}, regexp.MustCompile(`(?i)\b(?:bearer|basic|negotiate|ntlm)\s+([A-Za-z0-9._~+/=-]{8,})`), group},
	{nameHints, regexp.MustCompile(`(?i)(?:` + secretName + `|\b` + secretEnd + `)` + is), word},
	{[]string{"key"}, regexp.MustCompile(`(?i)` + flag + `key` + is + `\\*["']?([A-Za-z0-9+/_-]{16}[^\s"',;&]*)`), group},
	{[]string{"pass", "community"}, regexp.MustCompile(`(?i)(?:password|passphrase|community(?: string)?)\s+(?:is\s+)?\\*["']([^"']+)["']`), group},
	{[]string{"value"}, regexp.MustCompile(`(?i)name` + is + `\\*["']?[\w.-]*(?:` + secretName + `|pass|key)\\*["']?[\s,]+\\*["']?value` + is), word},
	{[]string{"</"}, regexp.MustCompile(`(?i)<[\w:.-]*(?:` + secretName + `|pass|key)(?:\s[^<>]*)?>`), element},
	{nameHints, regexp.MustCompile(`(?i)` + flag + `--?[\w-]*(?:` + secretName + `|pass|key)` + next), word},
	{[]string{"-p"}, regexp.MustCompile(flag + `-P(?:` + next + `)?`), word},                                         // of ipmitool
	{[]string{"-u", "--user"}, regexp.MustCompile(flag + `(?:-u|--user)(?:=|` + next + `)\\*["']?[^\s:"']+:`), word}, // of curl
	// Of net-snmp: the community string, and the passphrases of version 3.
	{[]string{"snmp"}, snmp("c"), word}, {[]string{"snmp"}, snmp("A"), word}, {[]string{"snmp"}, snmp("X"), word},
	// Known by their form; last, for they may be a part of a longer secret.
	{[]string{"eyj"}, regexp.MustCompile(`(eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?)`), group},
	{[]string{"akia", "asia"}, regexp.MustCompile(`\b((?:AKIA|ASIA)[A-Z0-9]{16})\b`), group},
}

func snmp(name string) *regexp.Regexp {
	return regexp.MustCompile(`(?i:snmp)\w*\\*["']?[\s,](?:.*?[^\w-])?-` + name + next)
}

// block is what has several lines.
var block = regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|$)`)

// Secrets takes out of a text what looks like a secret.
func Secrets(text string) string {
	if strings.Contains(text, "-----BEGIN ") {
		text = block.ReplaceAllString(text, Removed)
	}
	if !strings.Contains(text, "\n") {
		return inLine(text)
	}
	var out strings.Builder
	for line := range strings.Lines(text) {
		content, ended := strings.CutSuffix(line, "\n")
		out.WriteString(inLine(content))
		if ended {
			out.WriteByte('\n')
		}
	}
	return out.String()
}

// inLine takes secrets out of a line.
func inLine(line string) string {
	lower := strings.ToLower(line)
	for _, row := range table {
		if slices.ContainsFunc(row.hints, func(hint string) bool { return strings.Contains(lower, hint) }) {
			line = without(line, row.match, row.reach)
		}
	}
	return line
}

// without takes what a row finds out of a line.
func without(line string, match *regexp.Regexp, r reach) string {
	var out strings.Builder
	for {
		found := match.FindStringSubmatchIndex(line)
		if found == nil {
			break
		}
		var from, to int
		if r == group {
			from, to = found[2], found[3]
		} else {
			from, to = secret(line, found[1], r)
		}
		out.WriteString(line[:from])
		if from < to && line[from:to] != Removed {
			out.WriteString(Removed)
		} else {
			out.WriteString(line[from:to])
		}
		if to == 0 { // an empty match
			break
		}
		line = line[to:]
	}
	out.WriteString(line)
	return out.String()
}

// secret returns where a value begins and ends.
func secret(line string, from int, r reach) (begin, end int) {
	if r == element {
		if i := strings.IndexByte(line[from:], '<'); i >= 0 {
			return from, from + i
		}
		return from, len(line)
	}
	if strings.HasPrefix(line[from:], Removed) {
		return from, from + len(Removed)
	}
	from += len(line[from:]) - len(strings.TrimLeft(line[from:], "[")) // a list, as in the headers of Go
	slashes := len(line[from:]) - len(strings.TrimLeft(line[from:], `\`))
	if quote := from + slashes; quote < len(line) && (line[quote] == '"' || line[quote] == '\'') {
		return quote + 1, closing(line, quote+1, line[quote], slashes)
	}
	if r == rest {
		return from, len(line)
	}
	return from, wordEnd(line, from)
}

// closing returns the end of a text in quotes: where its closing quote begins, with as many backslashes as the opening one has. Those of a
// quote that is in the text are more: each level of quotes doubles them, and adds one. A text that is cut off ends with the line.
func closing(line string, from int, quote byte, slashes int) int {
	before := 0 // backslashes
	for i := from; i < len(line); i++ {
		switch {
		case line[i] == '\\':
			before++
			continue
		case line[i] == quote && before >= slashes && (before-slashes)%(2*(slashes+1)) == 0:
			return i - slashes
		}
		before = 0
	}
	return len(line)
}

// What ends a value without quotes. A password may have these characters too, so what follows decides: the end, or what cannot be one.
var (
	separated = regexp.MustCompile(`^[,;&](?:$|\s|\\*["']?[\w.-]+\\*["']?\s*[=:])`)
	closed    = regexp.MustCompile(`^(?:[\]})]|\\*["'])(?:$|[\s,;&}\])"'.:\\])`)
)

// wordEnd returns the end of a value without quotes.
func wordEnd(line string, from int) int {
	for i := from; i < len(line); i++ {
		switch line[i] {
		case ' ', '\t', '\r':
			return i
		case ',', ';', '&':
			if separated.MatchString(line[i:]) {
				return i
			}
		case ']', '}', ')', '"', '\'', '\\':
			if closed.MatchString(line[i:]) {
				return i
			}
		case '<':
			if strings.HasPrefix(line[i:], "</") {
				return i
			}
		}
	}
	return len(line)
}
