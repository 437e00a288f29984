package drivers

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Words are words that several drivers pass on: those of a cloud, of a library, of the node's own tools, or what drivers themselves say alike.
type Words struct {
	Situation Situation `json:"situation"`
	Of        string    `json:"of"`              // whose words they are
	Calls     []Call    `json:"calls,omitempty"` // empty: each
	Codes     []string  `json:"codes,omitempty"` // empty: each
	// Match is an expression without regard to case. A group named where is the machine that the message says has the volume, one named what is
	// the thing that it is about.
	Match   string `json:"match"`
	Example string `json:"example"`
	Source  string `json:"source"` // places, each with its repository and revision
}

// AllWords returns the words, in the order in which they are looked for.
func AllWords() []Words { return load().Words }

// Reading is what a driver's answer says.
type Reading struct {
	Situation Situation // "" if neither the facts about the driver nor the words say
	Where     string    // the machine that the message says has the volume; "" for none
	What      string    // the thing that the message is about: an object, a program, an image
	Or        string    // what the message may mean instead
	At        int       // where in the message the words begin that say so
}

// Read reads what a driver answered to a call: the facts about the driver come first, then the words. message is the driver's alone,
// without the code and what its caller put before it.
func Read(driver string, call Call, code, message string) Reading {
	if facts, ok := Of(driver); ok && code != "" {
		for _, situation := range Situations() {
			for _, a := range facts.Answers[situation] {
				if a.Call == call && (a.Code == code || a.Code == AnyCode) && containsAll(message, a.Text) {
					return Reading{Situation: situation, Where: group(a.Where, message), Or: a.Or, At: first(message, a.Text)}
				}
			}
		}
	}
	for i, w := range AllWords() {
		if !w.fits(call, code) {
			continue
		}
		if found := expressions()[i].FindStringSubmatchIndex(message); found != nil {
			named := func(name string) string {
				if i := expressions()[i].SubexpIndex(name); i > 0 && found[2*i] >= 0 {
					return message[found[2*i]:found[2*i+1]]
				}
				return ""
			}
			return Reading{Situation: w.Situation, Where: named("where"), What: named("what"), At: found[0]}
		}
	}
	return Reading{}
}

// fits reports whether the words count in an answer to the call with the code.
func (w *Words) fits(call Call, code string) bool {
	return (len(w.Calls) == 0 || slices.Contains(w.Calls, call)) && (len(w.Codes) == 0 || slices.Contains(w.Codes, code))
}

// expressions are those of the words.
var expressions = sync.OnceValue(func() (all []*regexp.Regexp) {
	for _, w := range AllWords() {
		all = append(all, regexp.MustCompile("(?i)"+w.Match))
	}
	return all
})

// group returns what the first group of an expression matches.
func group(expression, message string) string {
	if expression == "" {
		return ""
	}
	if found := regexp.MustCompile(expression).FindStringSubmatch(message); found != nil {
		return found[1]
	}
	return ""
}

func first(message string, parts []string) int {
	if len(parts) == 0 {
		return 0
	}
	return strings.Index(message, parts[0])
}

// causes match, in an error that quotes another, the innermost message. Their group is what the cause is; the last match counts.
var causes = []*regexp.Regexp{
	regexp.MustCompile(`LocalizedMessage: \(string\) \(len=\d+\) \\*"([^"\\]+)`),         // vmware/govmomi, printed by go-spew, in quotes
	regexp.MustCompile(`api error ([\w.]+: .+)$`),                                        // aws/smithy-go@v1.27.3/errors.go:84
	regexp.MustCompile(`googleapi: Error \d+: (.+)$`),                                    // googleapis/google-api-go-client, googleapi/googleapi.go
	regexp.MustCompile(`\\?"message\\?": ?\\?"([^"\\]+)`),                                // JSON of OpenStack and Azure
	regexp.MustCompile(`('fsck' found errors on device \S+ but could not correct them)`), // k8s.io/mount-utils@v0.36.3/mount_linux.go:542
	regexp.MustCompile(`(?i)\soutput: (?:mount: )?(?:/\S+: )?(.+)$`),                     // k8s.io/mount-utils@v0.36.3/mount_linux.go:272
}

// short is the length up to which a message is shown as it is.
const short = 160

// Cause returns what of a message, on one line, is the cause: the innermost message that it quotes, else what begins with the clause, or the words,
// that it was read by. A short message is returned as a whole.
func (r Reading) Cause(message string) string {
	if len(message) <= short {
		return message
	}
	for _, c := range causes {
		if all := c.FindAllStringSubmatch(message, -1); all != nil {
			return strings.TrimSpace(all[len(all)-1][1])
		}
	}
	if r.Situation == "" || r.At >= len(message) {
		return message
	}
	if begin := strings.LastIndex(message[:r.At], ": "); begin >= 0 && len(message)-begin <= 2*short {
		return message[begin+2:]
	}
	return message[strings.LastIndexByte(message[:r.At], ' ')+1:]
}

var negations = regexp.MustCompile(`(?i)\b(?:not|no|cannot|never|without|[a-z]+n't) `)

// negation is where, between two places of a text, the last negation begins that the words behind the second may belong to; -1 for none. A text that
// lacks it would say the opposite.
func negation(text string, from, to int) int {
	begin := from
	for _, end := range []string{": ", "; ", ". "} {
		if at := strings.LastIndex(text[from:to], end); at >= 0 {
			begin = max(begin, from+at+len(end))
		}
	}
	all := negations.FindAllStringIndex(text[begin:to], -1)
	if all == nil {
		return -1
	}
	return begin + all[len(all)-1][0]
}

// Shorten leaves out the middle of a text, between words, so that about n bytes remain of it.
func Shorten(text string, n int) string {
	if len(text) <= n {
		return text
	}
	head, tail := text[:n/2], text[len(text)-n/2:]
	if at := strings.LastIndexByte(head, ' '); at > 0 {
		head = head[:at]
	}
	if at := strings.IndexByte(tail, ' '); at >= 0 {
		tail = tail[at+1:]
	}
	if at := negation(text, len(head), len(text)-len(tail)); at >= 0 {
		tail = text[at:]
		if head = head[:min(len(head), max(0, n-len(tail)))]; head != "" {
			head = head[:max(0, strings.LastIndexByte(head, ' '))]
		}
	}
	return strings.ToValidUTF8(head, "") + " ... " + strings.ToValidUTF8(tail, "")
}
