package kubectl

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/usage"
)

const timelineLong = `Show the last move of a volume: when its pod was deleted, when it was unmounted and detached, when the next pod was created and
scheduled, when the volume was attached, reported and mounted, and when the container started; and where the time went. A step that waits
for the next status of a kubelet (nodeStatusUpdateFrequency, 10 s by default) is named.

The object is pod/NAME, pvc/NAME or pv/NAME. Times come from the objects, their managed fields, and events. The API records most in whole
seconds, and some not at all: these are listed with the reason. Events are deleted after an hour, and times with them.`

const timelineExample = `  # Why did the failover of this pod take so long?
  kubectl belay timeline pod/db-0 -n prod

  # The last move of a volume, for a script
  kubectl belay timeline pv/pvc-1a2b3c4d -o json`

func (p *plugin) timelineCommand() *cobra.Command {
	var format output
	c := &cobra.Command{
		Use: "timeline (KIND/NAME | KIND NAME)", Short: "Show the steps of a volume's last move with their durations",
		Long: timelineLong, Example: timelineExample, Args: oneObject("pod/NAME, pvc/NAME or pv/NAME"),
		ValidArgsFunction: p.completeObject("pod", "pvc", "pv"),
		RunE: func(c *cobra.Command, args []string) error {
			ref, err := p.subject(args)
			if err != nil {
				return err
			}
			if !slices.Contains([]diagnosis.Resource{diagnosis.Pods, diagnosis.Claims, diagnosis.Volumes}, ref.Resource) {
				return usage.Errorf("name a pod, a claim or a volume: pod/NAME, pvc/NAME or pv/NAME")
			}
			return p.timeline(c.Context(), ref, format)
		},
	}
	format.addTo(c, "text")
	return c
}

func (p *plugin) timeline(ctx context.Context, ref diagnosis.Ref, format output) error {
	reader, err := p.reader()
	if err != nil {
		return err
	}
	answered := p.waitsForServer()
	s := reader.History(ctx, ref)
	answered()
	t, err := diagnosis.Timelines(s, ref)
	if ctx.Err() != nil {
		return interrupted(ctx, ctx.Err())
	} else if err != nil {
		return err
	}
	return format.print(p.Out, t, func() error { return p.printTimeline(t) })
}

func (p *plugin) printTimeline(t diagnosis.Timeline) error {
	out := &page{style: p.style, now: t.Time}
	if len(t.Moves) == 0 {
		out.raw(0, t.Subject.String()+" has no volume that a CSI driver attaches or mounts, or it could not be read.")
	}
	for i := range t.Moves {
		if i > 0 {
			out.text.WriteString("\n")
		}
		out.move(&t.Moves[i])
	}
	out.unread(t.Unread)
	_, err := fmt.Fprint(p.Out, out.text.String())
	return err
}

// move prints a move: its hops with bars, where the time went, and what is not known.
func (p *page) move(m *diagnosis.Move) {
	fmt.Fprintf(&p.text, "%s\n", p.wrap(moved(m), 0))
	if len(m.Hops) == 0 {
		fmt.Fprintf(&p.text, "  No pod uses the volume, and it is not attached.\n")
		return
	}
	p.hops(m)
	p.timing(m.Timing)
	p.unknown(m)
}

// moved names the volume, its nodes and its pod.
func moved(m *diagnosis.Move) string {
	text := "Volume " + m.Volume.PersistentVolume
	if m.Volume.Claim != "" {
		text += " of claim " + m.Volume.Namespace + "/" + m.Volume.Claim
	}
	switch {
	case m.From != "" && m.To != "":
		text += ": node " + m.From + " -> node " + m.To
	case m.To != "":
		text += ": to node " + m.To
	case m.From != "":
		text += ": from node " + m.From
	}
	if m.Pod != nil {
		text += ", for pod " + m.Pod.Namespace + "/" + m.Pod.Name
	}
	if m.Start != nil && m.End != nil {
		text += ", from " + m.Start.UTC().Format(time.RFC3339)
		all := m.End.Sub(*m.Start).Seconds()
		lasted := ", " + took(all, false)
		if m.StartedBefore {
			text += " or before"
			lasted = ", at least " + took(all, false)
		}
		if slices.ContainsFunc(m.Hops, func(h diagnosis.Hop) bool { return h.State == diagnosis.HopWaiting }) {
			lasted += " so far"
		} else {
			lasted += " in all"
		}
		if !m.StartedBefore || some(&all) {
			text += lasted
		}
	}
	return text
}

// some reports whether a least duration says anything: that of two times in the same second does not.
func some(least *float64) bool { return least != nil && *least >= 1 }

// took writes a duration. The difference of two times of whole seconds is off by up to a second.
func took(seconds float64, exact bool) string {
	switch {
	case exact && seconds < 1:
		return fmt.Sprintf("%.0f ms", seconds*1000)
	case exact:
		return fmt.Sprintf("%.1f s", seconds)
	case seconds < 1:
		return "<1 s"
	case seconds < 600:
		return fmt.Sprintf("~%.0f s", seconds)
	}
	return "~" + long(seconds)
}

func long(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
}

// limit writes a bound of a duration, with its fraction.
func limit(seconds float64) string {
	if seconds < 600 {
		return fmt.Sprintf("%.3g s", seconds)
	}
	return long(seconds)
}

// The columns of the hops; the bars take what is left.
const (
	hopWidth       = 18
	componentWidth = 24
	atWidth        = 15
	tookWidth      = 8
	leastBar       = 16
	plainWidth     = 110
)

func (p *page) hops(m *diagnosis.Move) {
	width := p.width
	if width == 0 {
		width = plainWidth
	}
	bar := max(width-hopWidth-componentWidth-atWidth-tookWidth-7, leastBar)
	axis := ""
	if m.Start != nil && m.End != nil {
		end := took(m.End.Sub(*m.Start).Seconds(), false)
		axis = "0" + strings.Repeat(" ", max(bar-1-len(end), 1)) + end
	}
	header := fmt.Sprintf("  %-*s %-*s %-*s %*s  %s", hopWidth, "HOP", componentWidth, "COMPONENT", atWidth, "TIME (UTC)", tookWidth, "TOOK", axis)
	fmt.Fprintf(&p.text, "\n%s\n", strings.TrimRight(header, " "))
	for i := range m.Hops {
		h := &m.Hops[i]
		duration := ""
		if h.Seconds != nil {
			duration = took(*h.Seconds, h.Exact && exact(m.Hops, h.After))
			if h.AtLeast {
				duration = map[bool]string{true: ">" + strings.TrimPrefix(duration, "~")}[some(h.Seconds)]
			}
		}
		line := fmt.Sprintf("  %-*s %-*s %-*s %*s  %s", hopWidth, h.Name, componentWidth, shorten(h.Component, componentWidth),
			atWidth, when(h), tookWidth, duration, p.bar(m, h, bar))
		p.raw(0, strings.TrimRight(line, " "))
	}
}

func exact(hops []diagnosis.Hop, name diagnosis.HopName) bool {
	return slices.ContainsFunc(hops, func(h diagnosis.Hop) bool { return h.Name == name && h.Exact })
}

// when is the time of a hop, or its state.
func when(h *diagnosis.Hop) string {
	switch h.State {
	case diagnosis.HopDone:
		if h.Exact {
			return h.At.UTC().Format("15:04:05.000")
		}
		return h.At.UTC().Format(time.TimeOnly)
	case diagnosis.HopWaiting:
		return "waiting"
	case diagnosis.HopPending:
		return "-"
	case diagnosis.HopNotNeeded:
		return "not needed"
	case diagnosis.HopUnknown:
	}
	if h.NotAfter != nil {
		return "by " + h.NotAfter.UTC().Format(time.TimeOnly)
	}
	return "unknown"
}

// bar draws a hop on the axis of its move: from the hop before it to its end. A hop that waits is drawn to now.
func (p *page) bar(m *diagnosis.Move, h *diagnosis.Hop, width int) string {
	if m.Start == nil || m.End == nil || h.Seconds == nil {
		return ""
	}
	end := m.End
	if h.At != nil {
		end = h.At
	}
	total := max(m.End.Sub(*m.Start).Seconds(), 0.001)
	column := func(seconds float64) int { return min(max(int(seconds*float64(width)/total), 0), width) }
	to := end.Sub(*m.Start).Seconds()
	first, last := column(to-*h.Seconds), column(to)
	if last == first { // shorter than a column
		first = min(first, width-1)
		last = first + 1
	}
	done, waits := "#", "."
	if p.blocks {
		done, waits = "█", "░"
	}
	if h.State == diagnosis.HopWaiting {
		done = waits
	}
	return strings.Repeat(" ", first) + strings.Repeat(done, last-first)
}

// timing prints where the time went.
func (p *page) timing(timing []diagnosis.Interval) {
	const name, measured = 44, 29
	fmt.Fprintf(&p.text, "\n  %-*s %-*s %s\n", name, "WHERE THE TIME WENT", measured, "MEASURED", "USUAL (AMAZON EBS)")
	for i := range timing {
		v := &timing[i]
		fmt.Fprintf(&p.text, "  %-*s %-*s %s\n", name, v.Name, measured, intervalText(v), v.Usual)
	}
	fmt.Fprintf(&p.text, "\n  %s\n", p.wrap("Most times of the API have whole seconds: durations with ~, < or > are off by up to a second.", 2))
}

// intervalText is how long an interval took, has lasted, or can have taken.
func intervalText(v *diagnosis.Interval) string {
	switch {
	case v.Seconds != nil:
		return took(*v.Seconds, v.Exact)
	case v.SoFar != nil && v.AtLeast == nil:
		return took(*v.SoFar, false) + " so far"
	case v.SoFar != nil && some(v.AtLeast):
		return "at least " + took(*v.SoFar, false) + " so far"
	case v.AtMost != nil && some(v.AtLeast) && *v.AtLeast > *v.AtMost: // the clocks contradict each other
		return "unknown"
	case v.AtMost != nil && some(v.AtLeast):
		least, most := limit(*v.AtLeast), limit(*v.AtMost)
		if strings.HasSuffix(most, " s") {
			least = strings.TrimSuffix(least, " s")
		}
		return "unknown, ~" + least + " to " + most
	case v.AtMost != nil:
		return "unknown, at most " + limit(*v.AtMost)
	case some(v.AtLeast):
		return "at least " + took(*v.AtLeast, false)
	case strings.HasPrefix(v.Unknown, "not "):
		return "-"
	}
	return "unknown"
}

// note is why a name has no value.
type note struct{ name, why string }

// unknown lists what the move waits for, what has no time, and why.
func (p *page) unknown(m *diagnosis.Move) {
	var waits, notes []note
	for i := range m.Hops {
		switch h := &m.Hops[i]; {
		case h.Why == "":
		case h.State == diagnosis.HopWaiting:
			waits = append(waits, note{string(h.Name), h.Why})
		default:
			notes = append(notes, note{string(h.Name), h.Why})
		}
	}
	for i := range m.Timing {
		v := &m.Timing[i]
		repeats := func(n note) bool { return strings.HasSuffix(v.Unknown, n.why) }
		if v.Unknown != "" && !slices.ContainsFunc(waits, repeats) && !slices.ContainsFunc(notes, repeats) && v.Unknown != diagnosis.NotYet {
			notes = append(notes, note{v.Name, v.Unknown})
		}
	}
	p.notes("Waits for:", waits)
	p.notes("No time:", notes)
}

// notes prints reasons, each once with the names that it is for.
func (p *page) notes(title string, notes []note) {
	if len(notes) == 0 {
		return
	}
	fmt.Fprintf(&p.text, "\n  %s\n", title)
	for i, n := range notes {
		if slices.ContainsFunc(notes[:i], func(before note) bool { return before.why == n.why }) {
			continue
		}
		names := []string{n.name}
		for _, later := range notes[i+1:] {
			if later.why == n.why {
				names = append(names, later.name)
			}
		}
		fmt.Fprintf(&p.text, "    %s\n", p.wrap(strings.Join(names, ", ")+": "+n.why, 6))
	}
}
