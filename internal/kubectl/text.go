package kubectl

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/printable"
)

// words are the verdicts as the first words of the output.
var words = map[diagnosis.Verdict]string{
	diagnosis.Clear: "CLEAR", diagnosis.InProgress: "IN PROGRESS", diagnosis.Blocked: "BLOCKED", diagnosis.Unsafe: "BLOCKED, UNSAFE TO FORCE", diagnosis.Unknown: "UNKNOWN",
	diagnosis.NotVolume: "NOT A VOLUME",
}

// label is the width of the first column.
const label = 10

// page collects the lines of an output.
type page struct {
	style
	now  time.Time
	text strings.Builder
}

func (p *page) line(name, format string, args ...any) {
	fmt.Fprintf(&p.text, "%s %s\n", p.paint(printable.Bold, fmt.Sprintf("%-*s", label-1, name)), p.wrap(fmt.Sprintf(format, args...), label))
}

// raw is a line that is not wrapped, so that it can be copied.
func (p *page) raw(indent int, text string) {
	fmt.Fprintf(&p.text, "%s%s\n", strings.Repeat(" ", indent), printable.Line(text))
}

// ago is how long ago something was.
func (p *page) ago(t *time.Time) string {
	if t == nil {
		return "at an unknown time"
	}
	return duration.HumanDuration(p.now.Sub(*t)) + " ago"
}

func (p *page) lasting(t *time.Time) string {
	if t == nil {
		return ""
	}
	return " for " + duration.HumanDuration(p.now.Sub(*t))
}

// explanation prints an explanation as text.
func (p *plugin) explanation(e diagnosis.Explanation) error { return writeText(p.Out, p.style, e) }

func (p *page) finding(f *diagnosis.Finding) {
	fmt.Fprintf(&p.text, "%s%s: %s\n", p.verdict(f.Verdict, words[f.Verdict]), p.lasting(f.Since), p.wrap(waits(f), 0))
	p.line("Why", "%s (%s)", f.Summary, f.Reason)
	if f.Volume != nil {
		p.volume(f.Volume)
	}
	for i := range f.Holders {
		name := "Holder"
		if f.Volume != nil && f.Volume.WantedOn == f.Holders[i].Node.Name {
			name = "Target" // the pod that waits is there
		}
		p.holder(name, &f.Holders[i])
	}
	p.facts(f.Facts)
	for i, text := range f.Clock {
		p.line(first(i, "By itself"), "%s", text)
	}
	p.steps(f.Next)
	if f.Verdict != diagnosis.Clear && f.Runbook != "" {
		p.line("More", "%s", f.Runbook)
	}
}

// facts prints what the components did last.
func (p *page) facts(facts []diagnosis.Fact) {
	for i, fact := range facts {
		at := ""
		if fact.At != nil {
			at = " (" + p.ago(fact.At) + ")"
		}
		p.line(first(i, "Last"), "%s: %s%s", fact.Component, fact.Message, at)
	}
}

// waits names what waits, and for which volume.
func waits(f *diagnosis.Finding) string {
	kind := map[diagnosis.Resource]string{
		diagnosis.Pods: "pod", diagnosis.Claims: "claim", diagnosis.Volumes: "volume", diagnosis.Attachments: "VolumeAttachment", diagnosis.Nodes: "node",
	}[f.Subject.Resource]
	name := f.Subject.Name
	if f.Subject.Namespace != "" {
		name = f.Subject.Namespace + "/" + name
	}
	text := kind + " " + name
	if f.Subject.Resource == diagnosis.Pods && f.Volume != nil && f.Volume.PersistentVolume != "" {
		verb := " waits for volume "
		if uses(f) {
			verb = " uses volume "
		}
		text += verb + f.Volume.PersistentVolume
	}
	return text
}

// first is the label of the first line of several.
func first(i int, name string) string {
	if i == 0 {
		return name
	}
	return ""
}

func (p *page) volume(v *diagnosis.Volume) {
	var parts []string
	if v.Claim != "" {
		parts = append(parts, "claim "+v.Namespace+"/"+v.Claim)
	}
	if v.PersistentVolume != "" {
		parts = append(parts, "volume "+v.PersistentVolume)
	}
	if v.Driver != "" {
		driver := v.Driver
		if v.InTree {
			driver += " (migrated from an in-tree plugin)"
		}
		parts = append(parts, driver)
	}
	if len(v.AccessModes) > 0 {
		parts = append(parts, strings.Join(v.AccessModes, ", "))
	}
	if v.WantedOn != "" {
		parts = append(parts, "wanted on node "+v.WantedOn)
	}
	p.line("Volume", "%s", strings.Join(parts, ", "))
}

func (p *page) holder(name string, h *diagnosis.Holder) {
	node := fmt.Sprintf("node %s is %s%s", h.Node.Name, h.Node.State, p.lasting(h.Node.Since))
	if h.Node.State == diagnosis.NodeDeleted {
		node = "the Node of " + h.Node.Name + " was deleted"
	}
	if beat := h.Node.LastHeartbeat; beat != nil && (h.Node.State != diagnosis.NodeReady || p.now.Sub(*beat) > 20*time.Second) {
		node += ", last heartbeat " + p.ago(h.Node.LastHeartbeat)
	}
	if h.Node.OutOfService {
		node += ", has the out-of-service taint"
	}
	p.line(name, "%s; volumesInUse: %s, volumesAttached: %s", node, h.InUse, h.Reported)
	if h.Attachment != "" {
		state := "not attached"
		if h.Attached {
			state = "attached"
		}
		if h.Deleting != nil {
			state += ", being deleted" + p.lasting(h.Deleting)
		}
		p.line("", "VolumeAttachment %s, %s, created %s", h.Attachment, state, p.ago(h.Since))
	}
	for _, pod := range h.Pods {
		owner := ""
		if pod.Owner != "" {
			owner = " of " + pod.Owner
		}
		p.line("", "pod %s/%s%s, %s%s", pod.Namespace, pod.Name, owner, pod.State, p.lasting(pod.Since))
	}
	if h.HiddenPods > 0 {
		p.line("", "%d pods in namespaces that you may not read", h.HiddenPods)
	}
	if h.PodsUnknown {
		p.line("", "the pods there could not be read")
	}
}

func (p *page) steps(steps []explain.Step) {
	for i, s := range steps {
		p.line(first(i, "Next"), "%d. %s", i+1, s.Text)
		if s.Danger != "" {
			p.line("", "   Danger: %s", s.Danger)
		}
		if s.Command != "" {
			p.raw(label+3, s.Command)
		}
	}
}

func (p *page) unread(unread []diagnosis.Unread) {
	if len(unread) == 0 {
		return
	}
	fmt.Fprintf(&p.text, "\n%s\n", p.wrap("Not all could be read; the answer may lack what these would show:", 0))
	for _, u := range unread {
		p.raw(2, u.Rule()+": "+u.Message)
	}
}

// uses reports whether the pod of a finding has the volume, and does not wait for it.
func uses(f *diagnosis.Finding) bool {
	return slices.ContainsFunc(f.Holders, func(h diagnosis.Holder) bool {
		return h.Node.Name != f.Volume.WantedOn && slices.ContainsFunc(h.Pods, func(p diagnosis.PodState) bool {
			return p.Namespace == f.Subject.Namespace && p.Name == f.Subject.Name
		})
	})
}
