package main

import (
	"fmt"
	"slices"
	"strings"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/bench"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/picture"
)

// median is a value with its unit, and the least and the greatest of its samples where there are several.
func median(value float64, unit string, samples []float64) string {
	text := strings.TrimSpace(picture.Number(value) + " " + unit)
	if len(samples) < 2 {
		return text
	}
	return fmt.Sprintf("%s (%s to %s)", text, picture.Number(slices.Min(samples)), picture.Number(slices.Max(samples)))
}

// cell is a figure of a plane; empty if it was not measured.
func cell(f *bench.Figure, plane, unit string) string {
	value, ok := f.Value[plane]
	if !ok {
		return ""
	}
	return median(value, unit, f.Samples[plane])
}

// samples are the numbers of samples of the planes, one if they are all the same.
func samples(f *bench.Figure, planes []string) string {
	var counts []string
	for _, plane := range planes {
		if n := len(f.Samples[plane]); n > 0 {
			counts = append(counts, fmt.Sprint(n))
		}
	}
	return strings.Join(slices.Compact(counts), ", ")
}

// part is one of a report; nil if it was not measured.
func part(m measured, name string) *bench.Part {
	if i := slices.IndexFunc(m.Parts, func(p bench.Part) bool { return p.Name == name }); i >= 0 {
		return &m.Parts[i]
	}
	return nil
}

// table has a row for each figure of a part, and a column for each plane that has one, upstream first.
func table(p *bench.Part) string {
	var planes []string
	for _, f := range p.Figures {
		for plane := range f.Value {
			if !slices.Contains(planes, plane) {
				planes = append(planes, plane)
			}
		}
	}
	slices.Sort(planes)
	slices.Reverse(planes) // upstream, belay
	var out strings.Builder
	fmt.Fprintf(&out, "| | n | %s |\n|---|--:|%s\n", strings.Join(planes, " | "), strings.Repeat("--:|", len(planes)))
	for _, f := range p.Figures {
		fmt.Fprintf(&out, "| %s, %s | %s |", f.Name, f.Unit, samples(f, planes))
		for _, plane := range planes {
			fmt.Fprintf(&out, " %s |", cell(f, plane, ""))
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// every is what is between the name of a figure of `bench tick` and the settings of its kubelets.
const every = ", status every "

// matrix has a row for each figure, and a column for each setting of the kubelets. There is no room for more than the medians.
func matrix(p *bench.Part) (string, error) {
	var names, settings []string
	cells := map[[2]string]string{}
	for _, f := range p.Figures {
		name, setting, ok := strings.Cut(f.Name, every)
		if !ok || len(f.Value) != 1 {
			return "", fmt.Errorf("the figure %q is not of one tick and one plane", f.Name)
		}
		if name += ", " + f.Unit; !slices.Contains(names, name) {
			names = append(names, name)
		}
		if !slices.Contains(settings, setting) {
			settings = append(settings, setting)
		}
		for _, value := range f.Value {
			cells[[2]string{name, setting}] = picture.Number(value)
		}
	}
	var out strings.Builder
	fmt.Fprintf(&out, "| status every | %s |\n|---|%s\n", strings.Join(settings, " | "), strings.Repeat("--:|", len(settings)))
	for _, name := range names {
		fmt.Fprintf(&out, "| %s |", name)
		for _, setting := range settings {
			fmt.Fprintf(&out, " %s |", cells[[2]string{name, setting}])
		}
		out.WriteByte('\n')
	}
	return out.String(), nil
}

// notes are those of the figures.
func notes(p *bench.Part) (all []string) {
	for _, f := range p.Figures {
		if f.Note != "" {
			all = append(all, f.Name+": "+f.Note+".")
		}
	}
	return all
}

// feltMove is the whole of a move, as `bench tick` names it.
const feltMove = "pod deleted -> running elsewhere" + every

// feltAttacher picks what a user feels of the figures of `bench attacher`: one volume and the whole of a drain, with flags as shipped.
func feltAttacher(name string) bool {
	whole := strings.HasPrefix(name, "one attach, ") || strings.HasPrefix(name, "one move, ") || strings.HasSuffix(name, ": last attached elsewhere")
	return whole && strings.Contains(name, ", as shipped")
}

// felt are the rows of the first table: moves with each status tick, the kubelet's default first; a dead node; and the attacher alone.
func (d *data) felt() (string, error) {
	var out strings.Builder
	row := func(what, n, upstream, belay string) {
		fmt.Fprintf(&out, "| %s | %s | %s | %s |\n", what, n, upstream, belay)
	}
	figures := func(reports []measured, prefix string, parts []string, fits func(name string) bool) error {
		for _, m := range reports {
			for _, p := range m.Parts {
				if !slices.Contains(parts, p.Name) {
					continue
				}
				before := out.Len()
				for _, f := range p.Figures {
					if fits(f.Name) {
						row(prefix+f.Name, samples(f, []string{planeUpstream, planeBelay}), cell(f, planeUpstream, f.Unit), cell(f, planeBelay, f.Unit))
					}
				}
				if out.Len() == before {
					return fmt.Errorf("the part %q of %s has no figure that a user feels", p.Name, m.File)
				}
			}
		}
		return nil
	}
	if err := figures(d.tick, "", []string{"moves"}, func(name string) bool { return strings.HasPrefix(name, feltMove) }); err != nil {
		return "", err
	}
	if d.recovery != nil {
		if err := d.feltDeadNode(row); err != nil {
			return "", err
		}
	}
	err := figures(d.attacher, "the attacher alone: ", []string{"one", "drain"}, feltAttacher)
	return out.String(), err
}

// faults are those of `bench recovery`, as a user sees them.
var faults = map[string]string{bench.FaultPowerCut: "a node loses its power", bench.FaultHung: "a node hangs"}

// feltDeadNode has a row for each series of kubelets: with their default settings, the same without recovery, and with tuned ones.
func (d *data) feltDeadNode(row func(what, n, upstream, belay string)) error {
	alone, err := leftAlone(d.recovery)
	if err != nil {
		return err
	}
	for _, profile := range []string{fencing.Default.Name, "", fencing.Fast.Name} {
		for _, s := range d.recovery.Series {
			if s.Nodes != cluster.NodeKindKubelet || s.Profile != profile {
				continue
			}
			took := outcome(s)
			what, n := faults[s.Fault]+" -> its pod writes elsewhere", counted(s)
			if profile == "" {
				row(what+", with a script that sets the out-of-service taint at NotReady", n, took, "")
			} else {
				row(fmt.Sprintf("%s, recovery with the profile %s beside %s's controller", what, profile, s.Plane), n, within(alone)+", left alone (n=1)", took)
			}
		}
	}
	return nil
}

// outcome is the median of the runs that did not fail, and how many did.
func outcome(s *bench.RecoverySeries) string {
	failed := fmt.Sprintf("%d of %d failed", s.Failures, len(s.Runs))
	switch {
	case s.Total.Of == 0:
		return failed
	case s.Failures > 0:
		return median(s.Total.P50, "s", totals(s)) + ", " + failed
	default:
		return median(s.Total.P50, "s", totals(s))
	}
}

// counted is how many runs the median is of.
func counted(s *bench.RecoverySeries) string {
	if s.Failures > 0 {
		return fmt.Sprintf("%d of %d", s.Total.Of, len(s.Runs))
	}
	return fmt.Sprint(s.Total.Of)
}

// failures says why runs failed.
func failures(r *bench.RecoveryReport) (all []string) {
	for _, s := range r.Series {
		for _, run := range s.Runs {
			if run.Failure != "" {
				all = append(all, fmt.Sprintf("%s, %s: %s", faults[s.Fault], how(s), run.Failure))
			}
		}
	}
	return all
}

// how a pod of a series came to another node.
func how(s *bench.RecoverySeries) string {
	if s.Profile == "" {
		return "without recovery, with the script"
	}
	return fmt.Sprintf("recovery, profile %s, beside %s's controller", s.Profile, s.Plane)
}

// tuned says whether the first table has kubelets with the settings that the profile fast assumes.
func (d *data) tuned() bool {
	return d.recovery != nil && slices.ContainsFunc(d.recovery.Series, func(s *bench.RecoverySeries) bool {
		return s.Nodes == cluster.NodeKindKubelet && s.Profile == fencing.Fast.Name
	})
}

// recoveryTable has a row for each series.
func recoveryTable(r *bench.RecoveryReport) string {
	var out strings.Builder
	out.WriteString("| fault | nodes | | runs | failed | p50 | p90 | max |\n|---|---|---|--:|--:|--:|--:|--:|\n")
	for _, s := range r.Series {
		times := " | | "
		if s.Total.Of > 0 {
			times = fmt.Sprintf("%.1f s | %.1f s | %.1f s", s.Total.P50, s.Total.P90, s.Total.Max)
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %d | %d | %s |\n", s.Fault, s.Nodes, how(s), len(s.Runs), s.Failures, times)
	}
	return out.String()
}

// worse are the figures in which belay takes more than upstream by a twentieth or more, of scale.csv and of the reports.
func (d *data) worse() (string, error) {
	out, err := d.curves.worse()
	if err != nil {
		return "", err
	}
	reports := func(all []measured, prefix string) {
		for _, m := range all {
			for _, p := range m.Parts {
				for _, f := range p.Figures {
					ours, ok := f.Value[planeBelay]
					theirs, also := f.Value[planeUpstream]
					if ok && also && ours >= 1.05*theirs && ours > 0 {
						out += fmt.Sprintf("| %s | %s | %s | %s |\n", prefix+f.Name, samples(f, []string{planeUpstream, planeBelay}),
							cell(f, planeUpstream, f.Unit), cell(f, planeBelay, f.Unit))
					}
				}
			}
		}
	}
	reports(d.tick, "")
	reports(d.attacher, "the attacher alone: ")
	return out, nil
}

// worse are the rows of scale.csv, of belay as shipped and with other settings.
func (f *figures) worse() (string, error) {
	attaches, err := f.fact("attaches one at a time")
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, k := range f.keys() {
		for _, s := range f.sizes {
			ours, ok := f.values[k][s.Volumes]
			theirs, also := f.values[key{planeUpstream, k.component, k.figure}][s.Volumes]
			if !strings.HasPrefix(k.plane, planeBelay) || !ok || !also || ours < 1.05*theirs {
				continue
			}
			n := "1"
			if strings.HasPrefix(k.figure, bench.CurveAttach) {
				n = attaches
			}
			unit := f.units[k.figure]
			fmt.Fprintf(&out, "| %s | %s | %s %s | %s %s |\n", k.of(s), n, picture.Number(theirs), unit, picture.Number(ours), unit)
		}
	}
	return out.String(), nil
}

// of names a value at a size.
func (k key) of(s size) string {
	figure := strings.Replace(k.figure, "CPU until then", "start: CPU until the first write", 1)
	what := fmt.Sprintf("%s, %s volumes", figure, picture.Number(float64(s.Volumes)))
	if k.component != "both" {
		what = k.component + ": " + what
	}
	if k.plane != planeBelay {
		what += " (" + k.plane + ")"
	}
	return what
}
