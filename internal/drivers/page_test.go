package drivers

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the facts into docs/drivers.md")

const (
	page  = "../../docs/drivers.md"
	begin = "<!-- The facts from here on are rendered from internal/drivers/facts.yaml: make drivers -->\n"
)

// TestPage compares docs/drivers.md with the facts; with -update it writes them.
func TestPage(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	rules, _, found := strings.Cut(string(text), begin)
	if !found {
		t.Fatalf("%s has no line %q", page, begin)
	}
	want := rules + begin + render(All())
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(text) != want {
		t.Errorf("%s is not current: run 'make drivers'", page)
	}
}

// headings are those of the tables of answers.
var headings = map[Situation]string{
	AttachedElsewhere: "Attached to another node", NodeFull: "The node is full", UnknownNode: "A node ID that the driver does not know",
	VolumeGone: "A volume that is gone", Busy: "Another operation is under way", RateLimit: "Too many requests",
}

func render(all []Facts) string {
	var out strings.Builder
	out.WriteString("\n### An abandoned publish\n\n")
	out.WriteString("Whether an unpublish is answered OK although a publish before it, which its caller has abandoned, may still take effect; and after\nwhich time such a publish has ended for sure.\n\n")
	table(&out, "driver", "read in", "OK too early", "has ended after", "", "source")
	for _, f := range all {
		row(&out, f.Title+" `"+f.Driver+"`", fmt.Sprintf("[%s](%s)", f.Version, f.link("")), yesNo(f.Late.TooEarly), f.ended(), f.Late.Note, f.sources(f.Late.Source))
	}
	out.WriteString("\n### Node IDs and lists\n\n")
	table(&out, "driver", "node ID", "example", "source")
	for _, f := range all {
		if f.NodeID.Form != "" {
			row(&out, f.Title, f.NodeID.Form, "`"+f.NodeID.Example+"`", f.sources(f.NodeID.Source))
		}
	}
	out.WriteString("\n")
	table(&out, "driver", "lists volumes", "and the nodes that have them", "", "source")
	for _, f := range all {
		row(&out, f.Title, yesNo(f.Lists.Volumes), yesNo(f.Lists.PublishedNodes), f.Lists.Note, f.sources(f.Lists.Source))
	}
	for _, situation := range Situations() {
		renderSituation(&out, situation, all)
	}
	renderAsk(&out, all)
	renderWords(&out)
	return out.String()
}

func renderAsk(out *strings.Builder, all []Facts) {
	out.WriteString("\n### Where the storage has a volume attached\n\n")
	table(out, "driver", "command", "documentation")
	for _, f := range all {
		switch {
		case f.Ask.Place != "":
			row(out, f.Title, strings.TrimSuffix(f.Ask.Place, ","), "")
		case f.Ask.Command != "":
			row(out, f.Title, "`"+f.Ask.Command+"`", "["+strings.Fields(f.Ask.Command)[0]+"]("+f.Ask.Documentation+")")
		}
	}
}

// said are the situations as the table of words has them.
var said = map[Situation]string{
	AttachedElsewhere: "attached to another node", NodeFull: "the node is full", UnknownNode: "unknown node", VolumeGone: "volume gone", Busy: "busy", RateLimit: "too many requests",
	Quota: "quota", Credentials: "credentials or rights of the driver", WrongZone: "another zone", Damaged: "damaged file system", WrongFileSystem: "wrong file system",
	ServerFailing: "the server does not answer the node, or refuses it", NotPermitted: "ownership not changed", Unsupported: "not supported",
	KeyUnusable: "key of an encrypted volume", Vanished: "gone right after its creation", Repeated: "an earlier attempt with other parameters", PolicyMissing: "no such storage policy",
	NoDatastore: "no datastore fits", ExportDenied: "export not writable", Unreachable: "storage not reached", Certificate: "certificate not trusted", DeviceName: "device name taken",
	DeviceMissing: "no device on the node", DeviceBusy: "device held on the node", MountBusy: "another mount in the way", ReadOnly: "read-only device", StaleMount: "dead mount",
	NoSpace: "no space", OpenFiles: "too many open files", NFSVersion: "NFS version", Blocklisted: "node on a blocklist", ImageInUse: "image open at another client",
	SourceMissing: "object missing", ProviderMissing: "provider missing", ModuleMissing: "kernel module missing", DaemonMissing: "daemon missing", TokenMissing: "service account token missing",
	VolumeError: "volume in an error state", NotReady: "volume not ready", NoCredentials: "no credentials", HostProgram: "program missing on the node",
	DriverProgram: "program missing in the driver", Passphrase: "passphrase of an encrypted volume",
}

func renderWords(out *strings.Builder) {
	out.WriteString("\n### Words that several drivers pass on\n\nThey are looked for in this order in an answer that the tables above do not have. [The expressions](../internal/drivers/facts.yaml) are in the file.\n\n")
	table(out, "meaning", "words of", "calls", "codes", "source")
	for _, w := range AllWords() {
		var calls []string
		for _, c := range w.Calls {
			calls = append(calls, string(c))
		}
		row(out, said[w.Situation], w.Of, strings.Join(calls, ", "), strings.Join(w.Codes, ", "), Facts{}.sources(w.Source))
	}
}

func renderSituation(out *strings.Builder, situation Situation, all []Facts) {
	fmt.Fprintf(out, "\n### %s\n\n", headings[situation])
	table(out, "driver", "call", "answer", "its message contains", "", "source")
	var never, notRead []string
	for _, f := range all {
		if len(f.Answers[situation]) == 0 {
			notRead = append(notRead, f.Title)
		}
		for _, a := range f.Answers[situation] {
			switch {
			case a.Never:
				never = append(never, f.Title)
			default:
				parts := ""
				if len(a.Text) > 0 {
					parts = "`" + strings.Join(a.Text, "`, `") + "`"
				}
				row(out, f.Title, string(a.Call), "`"+a.Code+"`", parts, a.Note, f.sources(a.Source))
			}
		}
	}
	if len(never) > 0 {
		fmt.Fprintf(out, "\nNo such answer: %s.\n", strings.Join(never, ", "))
	}
	if len(notRead) > 0 {
		fmt.Fprintf(out, "\nNot read: %s.\n", strings.Join(notRead, ", "))
	}
}

func table(out *strings.Builder, columns ...string) {
	row(out, columns...)
	row(out, strings.Split(strings.Repeat("--- ", len(columns)-1)+"---", " ")...)
}

func row(out *strings.Builder, cells ...string) {
	out.WriteString("|")
	for _, cell := range cells {
		if cell == "" {
			out.WriteString(" |")
			continue
		}
		out.WriteString(" " + cell + " |")
	}
	out.WriteString("\n")
}

func yesNo(b *bool) string {
	switch {
	case b == nil:
		return NotRead
	case *b:
		return "yes"
	}
	return "no"
}

func (f Facts) ended() string {
	if after, known := f.EndsAfter(); known {
		return after.String()
	}
	return "not known"
}

// sources links the places of a fact.
func (f Facts) sources(source string) string {
	if source == NotRead {
		return ""
	}
	var links []string
	for place := range strings.SplitSeq(source, " ") {
		links = append(links, fmt.Sprintf("[%s](%s)", path.Base(place), f.link(place)))
	}
	return strings.Join(links, ", ")
}

// link returns where a place is on GitHub, of the driver's repository as a whole for "".
func (f Facts) link(place string) string {
	repository, revision := f.Repository, cmp.Or(f.Commit, f.Version)
	if other, number, ok := strings.Cut(place, "#"); ok {
		return "https://github.com/" + other + "/issues/" + number
	}
	if other, rest, ok := strings.Cut(place, "@"); ok {
		repository = other
		revision, place, _ = strings.Cut(rest, "/")
	}
	if place == "" {
		return "https://github.com/" + repository + "/tree/" + revision
	}
	file, line, _ := strings.Cut(place, ":")
	return "https://github.com/" + repository + "/blob/" + revision + "/" + file + "#L" + line
}
