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
	words                // behind what matches, a word, and the next one if the first may be a scheme of HTTP; or a text in quotes
	rest                 // behind what matches, a text in quotes or the rest of the line
	element              // behind what matches, up to the next tag
)

const (
	// Names that begin with these words have a secret.
	secretName = `(?:passw(?:or)?d|passphrase|passcode|pwd|token|credentials?|secret|community(?: string)?|signature)[\w.-]*` //nolint:gosec // an expression
	// Names that end with these words have one too. All that end with key are among them: some, such as volumeKey, are no secrets.
	secretEnd = `(?:[\w.-]*(?:pass|pw|psk|sig|sess(?:ion)?[-_]?id)|[\w.-]+key(?:id|s)?(?:[-_][\w-]*)?)` //nolint:gosec // an expression
	// Names of options and of variables end with these words too.
	secretOption = `[\w.-]*(?:` + secretName + `|pass|pw|psk|key)`
	// is stands between a name and its value: in a query, also an encoded one, in JSON, also where %q has put backslashes before its
	// quotes, in YAML and in a Go map. %q writes the end of a line as \n.
	is = `\\*["']?\s*(?:=>|=|:|%3d)(?:\s|\\+[nrt])*`
	// next stands between a flag and its value, also in a list of arguments that Go or JSON has written.
	next = `\\*["']?(?:\s*,\s*|\s+)`
	// to stands between a flag and its value that is not in the next word either.
	to = `(?:=|` + next + `)`
	// flag begins a flag.
	flag = `(?:^|[^\w-])`
)

// nameHints are the hints of what secretName and secretEnd match.
var nameHints = []string{"pass", "pw", "psk", "token", "credential", "secret", "community", "sig", "sess", "key"}

// table is what looks like a secret in a line. A row is tried on a line that has one of its hints, in lower case.
var table = []struct {
	hints []string
	match *regexp.Regexp
	reach reach
}{
	{[]string{"://"}, regexp.MustCompile(`://([^\s/:@"'<>]*:[^\s"'<>]*|[^\s/"'<>]*)@`), group},
	{[]string{"cookie"}, regexp.MustCompile(`(?i)cookie2?` + is), rest},
	{[]string{"digest"}, regexp.MustCompile(`(?i)\bdigest\s+(\w+\s*=.*)`), group},
	{[]string{"authorization"}, regexp.MustCompile(`(?i)authorization[\w.-]*` + is + `\\*["'\[]*(?:(?:bearer|basic|digest|negotiate|ntlm|token|api-?key)\s+)?`), words},
	{[]string{"bearer", "basic", "negotiate", "ntlm"}, regexp.MustCompile(`(?i)\b(?:bearer|basic|negotiate|ntlm)\s+([A-Za-z0-9._~+/=-]{8,})`), group},
	{nameHints, regexp.MustCompile(`(?i)(?:` + secretName + `|\b` + secretEnd + `)` + is), word},
	{[]string{"key"}, regexp.MustCompile(`(?i)` + flag + `key` + is + `\\*["']?([A-Za-z0-9+/_-]{16}[^\s"',;&]*)`), group},
	{[]string{"pass", "community"}, regexp.MustCompile(`(?i)(?:password|passphrase|community(?: string)?)\s+(?:is\s+)?\\*["']([^"']+)["']`), group},
	// A word that is not one of a language: a password is wrong, or it is x7!.
	{[]string{"pass"}, regexp.MustCompile(`(?i)\bpass(?:word|phrase|code)\s+(?:(?:for|of)\s+(?:[^\s"']+\s+){1,3})?is:?\s+([^\s"']*[0-9@#$%^&*_+=~|]\S*)`), group},
	// The name and its value, each the value of a field or of a flag: of Kubernetes, iscsiadm.
	{[]string{"value"}, regexp.MustCompile(`(?i)(?:name|key)` + is + `\\*["']?` + secretOption + `\\*["']?[\s,]+\\*["']?value` + is), word},
	{nameHints, regexp.MustCompile(`(?i)` + flag + `(?:-n|--[\w-]*(?:name|key))` + to + `\\*["']?` + secretOption + `\\*["']?[\s,](?:.*?[^\w-])??(?:-v|--value)` + to), word},
	{[]string{"</"}, regexp.MustCompile(`(?i)<[\w:.-]*(?:` + secretName + `|pass|key)(?:\s[^<>]*)?>`), element},
	{nameHints, regexp.MustCompile(`(?i)` + flag + `--?` + secretOption + to), word},
	{[]string{"-p"}, regexp.MustCompile(flag + `-P(?:` + next + `)?`), word}, // of ipmitool
	// Of fence agents and sshpass: for many other programs it is a port.
	{[]string{"fence_", "sshpass"}, regexp.MustCompile(`(?:fence_\w+|sshpass)\\*["']?[\s,](?:.*?[^\w-])??-p(?:` + next + `)?`), word},
	{[]string{"-u", "--user"}, regexp.MustCompile(flag + `(?:-u|--user)` + to + `\\*["']?[^\s:"']+:`), word},           // of curl
	{[]string{"-u", "--user"}, regexp.MustCompile(flag + `(?:-U|--user)` + to + `\\*["']?[^\s%"']*[^\s%"'\d]%`), word}, // of Samba
	// Of net-snmp: the community string, and the passphrases of version 3.
	{[]string{"snmp"}, snmp("c"), word}, {[]string{"snmp"}, snmp("A"), word}, {[]string{"snmp"}, snmp("X"), word},
	// Known by their form; last, for they may be a part of a longer secret.
	{[]string{"eyj"}, regexp.MustCompile(`(eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?)`), group},
	{[]string{"akia", "asia"}, regexp.MustCompile(`\b((?:AKIA|ASIA)[A-Z0-9]{16})\b`), group},
}

// A value may come before its name: the order of flags is free. With other programs, -v is how much they report.
var (
	valueHints = []string{"iscsiadm", "--op", "--value"}
	valueFlag  = regexp.MustCompile(flag + `(?:-v|--value)` + to)
	valueFirst = regexp.MustCompile(`(?i)` + flag + `(?:-v|--value)` + to + `.*[^\w-](?:-n|--[\w-]*(?:name|key))` + to + `\\*["']?` + secretOption)
)

func snmp(name string) *regexp.Regexp {
	return regexp.MustCompile(`(?i:snmp)\w*\\*["']?[\s,](?:.*?[^\w-])??-` + name + next)
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
	var below below
	for line := range strings.Lines(text) {
		content, ended := strings.CutSuffix(line, "\n")
		if from := below.value(content); from < 0 {
			out.WriteString(inLine(content))
		} else {
			out.WriteString(content[:from] + Removed)
		}
		if ended {
			out.WriteByte('\n')
		}
	}
	return out.String()
}

var (
	// named is a line that ends with the name of a secret, whose value is in the next ones: in YAML, with | or > also if it has several.
	named = regexp.MustCompile(`(?i)(?:` + secretName + `|\b` + secretEnd + `)\\*["']?\s*:\s*([|>][-+\d]*)?\s*$`)
	// field is a line of an object or of a list of objects, which has a secret if it says so itself.
	field = regexp.MustCompile(`^\s*(?:-\s+)*["']?[\w./-]+["']?\s*:(?:\s|$)`)
	// item begins a line of a list.
	item = regexp.MustCompile(`^\s*-\s+`)
)

// below knows, from one line to the next, whether the value of a secret follows.
type below struct {
	name, text bool // a line has named a secret, and its value is a text of several lines
	indent     int  // of that line
}

// value returns where the value begins that a line is, for which an earlier line has the name; -1 for another line.
func (b *below) value(line string) int {
	from := len(line) - len(strings.TrimLeft(line, " \t"))
	listed := b.name && !b.text && from == b.indent && item.MatchString(line)
	if strings.TrimSpace(line) == "" {
		return -1
	}
	if b.name && (from > b.indent || listed) && (b.text || !field.MatchString(line)) {
		if !b.text {
			from = max(from, len(item.FindString(line)))
		}
		return from
	}
	found := named.FindStringSubmatchIndex(line)
	*b = below{name: found != nil, text: found != nil && found[2] >= 0, indent: from}
	return -1
}

// inLine takes secrets out of a line.
func inLine(line string) string {
	lower := strings.ToLower(line)
	for _, row := range table {
		if slices.ContainsFunc(row.hints, func(hint string) bool { return strings.Contains(lower, hint) }) {
			line = without(line, row.match, row.reach)
		}
	}
	if slices.ContainsFunc(valueHints, func(hint string) bool { return strings.Contains(lower, hint) }) && valueFirst.MatchString(line) {
		line = without(line, valueFlag, word)
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
	end = wordEnd(line, from)
	if r == words && end < len(line) && line[end] == ' ' && scheme.MatchString(line[from:end]) {
		end = wordEnd(line, end+1)
	}
	return from, end
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

// scheme is what may be a scheme of authentication.
var scheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]*$`)

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
