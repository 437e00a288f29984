package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"belay.dev/belay/internal/manpage"
)

// program is one of belay's programs.
type program struct {
	name, upstream, about string
	// groups sort the flags of a program whose help does not: a flag is in the first group with a prefix of its name.
	groups []group
}

type group struct {
	name     string
	prefixes []string
}

var programs = []program{
	{name: "belay-controller", upstream: "kube-controller-manager", about: `belay-controller replaces kube-controller-manager's attach/detach controller and, with ` +
		"`--controllers=recovery`" + `, moves volumes from dead nodes. In the Helm chart, ` + "`controller.extraArgs` and `recovery.extraArgs`" + ` add flags.`},
	{name: "belay-attacher", upstream: "csi-attacher", about: `belay-attacher replaces csi-attacher in the Deployment of a CSI driver. It has every flag of csi-attacher v4.12, and accepts
the logging flags of older versions. [Flags that differ](../adopt-attacher.md#flags-that-differ) says why.`, groups: []group{
		{"Leader election", []string{"leader-election"}},
		{"API server", []string{"kube"}},
		{"Metrics and health", []string{"http-endpoint", "metrics-"}},
		{"Log", []string{"log-", "logging-format", "v", "vmodule", "max-grpc"}},
		{"Driver", []string{"csi-", "timeout", "worker-", "retry-", "reconcile-", "max-entries", "default-fstype"}},
		{"Other", []string{""}},
	}},
	{name: "belay-node", upstream: "kubelet", about: `belay-node mounts CSI volumes on a node without a kubelet.`},
	{name: "kubectl-belay", about: `Exit statuses and permissions are described in [kubectl belay](../kubectl-belay.md).`},
}

// kinds are the types of values, spelled out; the others are shown as they are.
var kinds = map[string]string{
	"boolFunc": "boolean", "bool": "boolean", "duration": "duration", "stringSlice": "list, separated by commas", "stringArray": "string, may be repeated",
	"mapStringBool": "list of key=value", "stringMap": "list of key=value", "float": "number", "float32": "number", "float64": "number",
	"int": "whole number", "int64": "whole number", "uint": "whole number, at least 0", "Level": "whole number, at least 0", "quantity": "quantity, such as 512 or 1Ki", "pattern=N,...": "list of pattern=N",
}

const ignored = "Deprecated: ignored. Logs are written to stderr."

func page(p program, commands []manpage.Command, upstream flagsOf) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Flags of %s\n\n<!-- Written by `make flags` (hack/flags). Do not edit. -->\n\n%s\n", commands[0].Name, wrap(p.about, ""))
	for i, c := range commands {
		if i > 0 && len(c.Flags) > 0 {
			fmt.Fprintf(&b, "\n## %s\n\n%s.\n", c.Name, strings.TrimSuffix(c.About, "."))
		}
		switch {
		case p.upstream == "" && i == 0:
			b.WriteString("\n## All commands\n\nThese are kubectl's own.\n")
			short(&b, c.Flags)
		case i > 0:
			short(&b, c.Flags)
		default:
			long(&b, p, c.Flags, upstream)
		}
	}
	return b.Bytes()
}

// long writes the flags by group, each with a heading that can be linked.
func long(b *bytes.Buffer, p program, flags []manpage.Flag, upstream flagsOf) {
	groups, level := []string{}, "##"
	byGroup := map[string][]manpage.Flag{}
	var dropped []string
	for _, f := range flags {
		if f.Usage == ignored {
			dropped = append(dropped, "`--"+f.Name+"`")
			continue
		}
		name := p.groupOf(f)
		if _, ok := byGroup[name]; !ok {
			groups = append(groups, name)
		}
		byGroup[name] = append(byGroup[name], f)
	}
	slices.SortStableFunc(groups, func(a, b string) int { return order[a] - order[b] })
	for _, name := range groups {
		if name != "" {
			fmt.Fprintf(b, "\n## %s\n", name)
			level = "###"
		}
		for _, f := range byGroup[name] {
			fmt.Fprintf(b, "\n%s --%s\n\n%s\n\n%s\n", level, f.Name, wrap(value(f)+upstream.origin(f.Name), ""), wrap(sentence(f.Usage), ""))
		}
	}
	if len(dropped) > 0 {
		fmt.Fprintf(b, "\n## Deprecated\n\nThese are accepted and ignored: logs are written to stderr.\n\n%s\n", wrap(strings.Join(dropped, ", "), ""))
	}
}

func (p program) groupOf(f manpage.Flag) string {
	for _, g := range p.groups {
		for _, prefix := range g.prefixes {
			if strings.HasPrefix(f.Name, prefix) && (prefix != "v" || f.Name == "v") {
				return g.name
			}
		}
	}
	return f.Group
}

// order are the groups that come first, and those that come last.
var order = map[string]int{
	"Driver": -3, "Controllers": -3, "Attach and detach": -2, "Recovery of volumes from dead nodes": -1, "Log": 1, "Other": 2,
}

// short writes the flags as a list.
func short(b *bytes.Buffer, flags []manpage.Flag) {
	if len(flags) > 0 {
		b.WriteString("\n")
	}
	for _, f := range flags {
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		fmt.Fprintf(b, "- %s\n", wrap(fmt.Sprintf("%s (%s): %s", name, lower(strings.TrimSuffix(value(f), ".")), sentence(f.Usage)), "  "))
	}
}

// value describes the value of a flag: "Duration, default `6m0s`.".
func value(f manpage.Flag) string {
	kind, ok := kinds[f.Type]
	if !ok {
		kind = f.Type
	}
	kind = strings.ToUpper(kind[:1]) + kind[1:]
	switch f.Default {
	case "", "[]", "map[]":
		return kind + ", empty by default."
	}
	return fmt.Sprintf("%s, default `%s`.", kind, strings.Trim(f.Default, "[]"))
}

// sentence is the description of a flag with a capital, a full stop and without quotes that Markdown would take for code.
func sentence(usage string) string {
	usage = strings.Join(strings.Fields(strings.ReplaceAll(usage, "`", "")), " ")
	usage = strings.NewReplacer("<", "&lt;", "*", `\*`).Replace(usage)
	if first, _, _ := strings.Cut(usage, " "); first != "kubeconfig" && first == strings.ToLower(first) {
		usage = strings.ToUpper(usage[:1]) + usage[1:]
	}
	return strings.TrimSuffix(usage, ".") + "."
}

func lower(text string) string { return strings.ToLower(text[:1]) + text[1:] }

// width is the length of a line, in characters.
const width = 120

func wrap(text, indent string) string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return strings.Join(append(lines, line), "\n"+indent)
}
