package explain

import (
	"regexp"
	"slices"
	"strings"
)

var harmless = regexp.MustCompile(`^[A-Za-z0-9_./:@%+=,-]+$`)

// ShellWord returns a text as one word for a POSIX shell.
func ShellWord(text string) string {
	if harmless.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// Steps returns what to do in a situation, with commands that are safe to copy: the API server takes any text as the name of an owner, of
// a claim in a pod, or of the holder of a lease.
func (g Guide) Steps(s Situation) []Step {
	if g.Next == nil {
		return nil
	}
	for _, name := range []*string{
		&s.Pod, &s.Namespace, &s.Claim, &s.Volume, &s.Driver, &s.Node, &s.Wanted, &s.Attachment, &s.HolderNamespace, &s.HolderName,
		&s.LeaseNamespace, &s.AttacherPod, &s.NodeID, &s.Container, &s.ZoneKey,
		&s.Class, &s.AClass, &s.Provisioner, &s.ProvisionerPod, &s.ProvisionerNamespace, &s.SourceKind, &s.SourceName, &s.SourceNamespace, &s.Workload, &s.OffNode,
	} {
		if *name != "" {
			*name = ShellWord(*name)
		}
	}
	if kind, name, found := strings.Cut(s.HolderOwner, "/"); found {
		s.HolderOwner = kind + "/" + ShellWord(name)
	}
	steps := ofBarePod(g.Next(s), s)
	for i := range steps {
		if placeholder.MatchString(steps[i].Command) {
			steps[i].Command = ""
		}
	}
	return steps
}

// ofBarePod changes steps for a pod that no controller has created: it has no template, and nothing creates it again.
func ofBarePod(steps []Step, s Situation) []Step {
	if !s.Bare || s.Pod == "" {
		return steps
	}
	deletes := func(step Step) bool { return step.Command == deletePod(s) }
	said, deleted := false, slices.ContainsFunc(steps, deletes)
	for i := range steps {
		text := strings.ReplaceAll(steps[i].Text, "the pod's template", "the pod's manifest")
		switch {
		case said, strings.Contains(text, noController):
		case deletes(steps[i]):
			text, said = text+" "+noController+": apply its manifest after that.", true
		case text != steps[i].Text && !deleted:
			text, said = text+" "+noController+": delete it, then apply the corrected manifest.", true
		}
		steps[i].Text = text
	}
	return steps
}

// noController begins what else has to be done about a pod that no controller has created.
const noController = "This pod has no controller"

// placeholder matches what guides write in place of a name that is not known. A command that lacks a name is not printed: who copies it would have
// to know the name, and what else to replace.
var placeholder = regexp.MustCompile(`(^|[ /=])(NAME|ID)( |$)`)
