package explain

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"belay.dev/belay/internal/decision"
)

// PodVolume is a volume as the spec of a pod has it.
type PodVolume struct {
	// Name is that in spec.volumes.
	Name string
	// Kind is the field of its source, "configMap" or "nfs"; for a claim that of its PersistentVolume. It is empty if that is unknown.
	Kind string
	// Objects are what it refers to: "ConfigMap app-config", "Claim data".
	Objects []string
	// Folders are the subPaths of the container that waits; empty if they are unknown.
	Folders []string
}

// The words before a name in Objects.
const (
	objectConfigMap, objectSecret, objectClaim = "ConfigMap", "Secret", "claim"
)

// ObjectOf is an entry of Objects.
func ObjectOf(kind, name string) string { return kind + " " + name }

// ConfigMapOf is the entry for a ConfigMap.
func ConfigMapOf(name string) string { return ObjectOf(objectConfigMap, name) }

// SecretOf is the entry for a Secret.
func SecretOf(name string) string { return ObjectOf(objectSecret, name) }

// ClaimOf is the entry for a claim.
func ClaimOf(name string) string { return ObjectOf(objectClaim, name) }

// MountCause is what a text of kubelet means.
type MountCause struct {
	Reason decision.Reason
	text   *kubeletText
	groups []string
}

// kubeletText is a text of kubelet about a volume that it cannot set up. In why and steps {1} is what the pattern matched, {object} the one that
// the volume refers to, {folder} the subPath, and {node}, {namespace}, {pod}, {pv} are the situation's.
type kubeletText struct {
	// kinds are the volumes whose plugin writes it. Without any, kubelet writes it of all volumes.
	kinds   []string
	pattern *regexp.Regexp
	reason  decision.Reason
	why     string
	steps   []Step
	// said has the steps of what drivers say alike, in place of steps.
	said string
	// cause is which of several causes of the reason it is.
	cause Cause
	// names is set if the first two groups are the kind and name of an object: the text counts only if the volume refers to it.
	names bool
	// nameless is set if the text names no volume.
	nameless bool
}

// ReadMount returns what kubelet means by a cause that it reports for a volume. What follows "rpc error: code =" are the words of a CSI driver,
// or of a container runtime, and not kubelet's. Of a volume whose kind is unknown, a text that is of all kinds comes first.
func ReadMount(cause string, v PodVolume) (MountCause, bool) {
	texts := slices.Concat(hostPathTexts, mountTexts, storageTexts)
	if v.Kind == "" {
		slices.SortStableFunc(texts, func(a, b kubeletText) int { return min(len(a.kinds), 1) - min(len(b.kinds), 1) })
	}
	return read(texts, cause, v)
}

// ReadContainer is ReadMount for the message of a container that cannot be created or started.
func ReadContainer(message string, v PodVolume) (MountCause, bool) {
	return read(containerTexts, message, v)
}

func read(texts []kubeletText, cause string, v PodVolume) (MountCause, bool) {
	own, _, _ := strings.Cut(cause, rpcError)
	for i := range texts {
		t := &texts[i]
		if v.Kind != "" && len(t.kinds) > 0 && !slices.Contains(t.kinds, v.Kind) {
			continue
		}
		groups := t.pattern.FindStringSubmatch(own)
		if groups == nil || t.names && !v.refersTo(groups[1], groups[2]) {
			continue
		}
		return MountCause{Reason: t.reason, text: t, groups: groups}, true
	}
	return MountCause{}, false
}

// rpcError begins an error that another program answered (google.golang.org/grpc internal/status/status.go Error).
const rpcError = "rpc error: code ="

// refersTo reports whether the volume refers to an object, or may. The kind is written in any case.
func (v PodVolume) refersTo(kind, name string) bool {
	return len(v.Objects) == 0 || slices.ContainsFunc(v.Objects, func(o string) bool { return strings.EqualFold(o, ObjectOf(kind, name)) })
}

// words is the volume in a sentence: "volume data (claim data-0)".
func (v PodVolume) words() string {
	if v.Name == "" {
		return "a volume"
	}
	if len(v.Objects) == 1 {
		return "volume " + v.Name + " (" + v.Objects[0] + ")"
	}
	return "volume " + v.Name
}

// Clean applies a function to what is printed of the text.
func (c *MountCause) Clean(clean func(string) string) {
	for i := range c.groups {
		c.groups[i] = clean(c.groups[i])
	}
}

// Nameless reports whether the text names no volume: it is about one of the pod's.
func (c *MountCause) Nameless() bool { return c.text.nameless }

// Driver is the CSI driver that the text names, empty for none.
func (c *MountCause) Driver() string {
	if c.Reason == DriverNotOnNode && len(c.groups) > 1 {
		return c.groups[1]
	}
	return ""
}

// Longest is the longest part of the text that the sentence about it repeats.
func (c *MountCause) Longest() (longest string) {
	for _, group := range c.groups[1:] {
		if text := strings.Join(strings.Fields(group), " "); len(text) > len(longest) {
			longest = text
		}
	}
	return longest
}

// fill puts the names into a text of the table. Guide.Steps has made the situation's own names words of a shell; word does that for the others.
func (c *MountCause) fill(text string, s Situation, word func(string) string) string {
	object := ""
	if len(s.Own.Objects) == 1 {
		object = s.Own.Objects[0][strings.LastIndex(s.Own.Objects[0], " ")+1:]
	}
	folder := "its subPath"
	if len(s.Own.Folders) > 0 {
		folder = "folder " + strings.Join(s.Own.Folders, ", ") + " (subPath)"
	}
	pairs := []string{"{object}", word(object), "{folder}", folder, "{plugin}", word(pluginPath(object)), "{upstream}", upstream(s), "{makes}", makes(s), "{deletes}", deletesVolume(s)}
	for name, value := range map[string]string{"{node}": s.Wanted, "{namespace}": s.Namespace, "{pod}": s.Pod, "{pv}": s.Volume} {
		if value == "" {
			value = word(value)
		}
		pairs = append(pairs, name, value)
	}
	for i, group := range c.groups[1:] {
		pairs = append(pairs, "{"+strconv.Itoa(i+1)+"}", word(strings.Join(strings.Fields(group), " ")))
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

func same(text string) string { return text }

// pluginPath is where the program of a FlexVolume driver is in kubelet's directory for them (k/k v1.36.3 pkg/volume/flexvolume/probe.go:
// vendor~driver/driver).
func pluginPath(driver string) string {
	return strings.ReplaceAll(driver, "/", "~") + "/" + driver[strings.LastIndex(driver, "/")+1:]
}

// upstream says whether kube-controller-manager runs.
func upstream(s Situation) string {
	if s.UpstreamRuns {
		return "It holds its lease, so it runs."
	}
	return "It may not run: its lease kube-system/kube-controller-manager shows when it was renewed last."
}

// makes is how a PersistentVolume gets another path.
func makes(s Situation) string {
	if s.MadeBy != "" {
		return "correct it in the configuration of the provisioner " + s.MadeBy
	}
	return "create another PersistentVolume with that path"
}

// mountCause is the sentence of the reasons that a text of kubelet has.
func mountCause(s Situation) string {
	if s.Mount == nil {
		return "node " + s.Wanted + " cannot set up " + s.Own.words() + because(s.Detail)
	}
	why := s.Mount.fill(s.Mount.text.why, s, same)
	return "node " + s.Wanted + " cannot set up " + s.Own.beside(why) + ": " + why
}

// beside is words without what the rest of the sentence names.
func (v PodVolume) beside(rest string) string {
	if len(v.Objects) == 1 && strings.HasPrefix(v.Objects[0], objectClaim+" ") {
		return v.words()
	}
	words := strings.FieldsFunc(rest, func(r rune) bool { return strings.ContainsRune(" ,;:", r) })
	if len(v.Objects) == 1 && slices.Contains(words, v.Objects[0][strings.LastIndex(v.Objects[0], " ")+1:]) {
		v.Objects = nil
	}
	return v.words()
}

// mountSteps are the steps of the text. One whose command lacks a name has none.
func mountSteps(s Situation) []Step {
	if s.Mount == nil {
		return said(s, describeMount)
	}
	if s.Mount.text.said != "" {
		s.Said = s.Mount.text.said
		return said(s, describeMount)
	}
	steps := slices.Clone(s.Mount.text.steps)
	for i := range steps {
		steps[i].Text = s.Mount.fill(steps[i].Text, s, same)
		steps[i].Danger = s.Mount.fill(steps[i].Danger, s, same)
		if steps[i].Command = s.Mount.fill(steps[i].Command, s, orMissing); strings.Contains(steps[i].Command, missingWord) {
			steps[i].Command = ""
		}
	}
	return steps
}

// serverSteps are mountSteps where kubelet's text names the server, and those of each server where a driver quotes the node's programs.
func serverSteps(s Situation) []Step {
	if s.Mount != nil || s.Said != "" {
		return mountSteps(s)
	}
	return append([]Step{{
		Text: "Make sure that the server that the message names runs and has what the volume names, that node " + s.Wanted + " reaches it, and that it lets the node in: " +
			"a file server by the node's address, an iSCSI target by its initiator name or CHAP secret. The addresses of the node:",
		Command: "kubectl get node " + s.Wanted + " -o wide",
	}}, describeMount(s)...)
}

// missingWord stands in a command for a name that is not known.
const missingWord = "\x00"

func orMissing(name string) string {
	if name == "" || strings.HasPrefix(name, "-") { // an option is no name
		return missingWord
	}
	return ShellWord(name)
}

func describeMount(s Situation) []Step {
	return []Step{{
		Text:    "Read the events of the pod, kubelet's log, and the driver's node pod on that node.",
		Command: in(s.Namespace, "kubectl describe pod "+s.Pod) + "; kubectl get pods -A -o wide --field-selector spec.nodeName=" + s.Wanted,
	}}
}
