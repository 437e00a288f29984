package main

import (
	"fmt"
	"slices"
	"strings"

	"belay.dev/belay/lab/bench"
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

// part is one of a report; it is an error if it was not measured.
func part(r *bench.Report, name string) (*bench.Part, error) {
	for i := range r.Parts {
		if r.Parts[i].Name == name {
			return &r.Parts[i], nil
		}
	}
	return nil, fmt.Errorf("the report has no part %q", name)
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

// The parts of `bench attacher` and the figures of `bench tick` that a user feels.
var (
	feltParts  = []string{"one attach", "one move", "drain of 100", "driver of 10 s"}
	feltPart   = "moves"
	feltFigure = "pod deleted -> running elsewhere"
)

// felt are the rows of the first table: moves with each status tick, the kubelet's default first; a dead node; and the attacher alone.
func (d *data) felt() (string, error) {
	var out strings.Builder
	row := func(what, n, upstream, belay string) {
		fmt.Fprintf(&out, "| %s | %s | %s | %s |\n", what, n, upstream, belay)
	}
	figure := func(prefix string, f *bench.Figure) {
		row(prefix+f.Name, samples(f, []string{planeUpstream, planeBelay}), cell(f, planeUpstream, f.Unit), cell(f, planeBelay, f.Unit))
	}
	if d.tick != nil {
		moves, err := part(d.tick, feltPart)
		if err != nil {
			return "", fmt.Errorf("tick.json: %w", err)
		}
		before := out.Len()
		for _, f := range moves.Figures {
			if strings.HasPrefix(f.Name, feltFigure) {
				figure("", f)
			}
		}
		if out.Len() == before {
			return "", fmt.Errorf("tick.json: the part %q has no figure %q", feltPart, feltFigure)
		}
	}
	if d.recovery != nil {
		d.feltDeadNode(row)
	}
	if d.attacher != nil {
		for _, name := range feltParts {
			p, err := part(d.attacher, name)
			if err != nil {
				return "", fmt.Errorf("attacher.json: %w", err)
			}
			figure("the attacher alone, "+name+": ", p.Figures[0])
		}
	}
	return out.String(), nil
}

// faults are those of `bench recovery`, as a user sees them.
var faults = map[string]string{faultPowerCut: "a node loses its power", "hung": "a node hangs"}

// feltDeadNode has a row for each series of kubelets: with their default settings, the same without recovery, and with tuned ones.
func (d *data) feltDeadNode(row func(what, n, upstream, belay string)) {
	for _, profile := range []string{profileDefault, "", "fast"} {
		for _, s := range d.recovery.Series {
			if s.Nodes != nodesKubelet || s.Profile != profile {
				continue
			}
			took := median(s.Total.P50, "s", totals(s))
			what, n := faults[s.Fault]+" -> its pod writes elsewhere", fmt.Sprint(s.Total.Of)
			if profile == "" {
				row(what+", with a script that sets the out-of-service taint at NotReady", n, took, "")
			} else {
				row(what+", recovery with the profile "+profile, n, d.alone(), took)
			}
		}
	}
}

// alone is what became of the pod of a dead kubelet without recovery.
func (d *data) alone() string {
	for _, a := range d.recovery.LeftAlone {
		if a.Nodes == nodesKubelet && !a.Replaced {
			return fmt.Sprintf("not in %.0f min, left alone (n=1)", a.Seconds/60)
		}
	}
	return ""
}

// recoveryTable has a row for each series.
func recoveryTable(r *bench.RecoveryReport) string {
	var out strings.Builder
	out.WriteString("| fault | nodes | | runs | failed | p50 | p90 | max |\n|---|---|---|--:|--:|--:|--:|--:|\n")
	for _, s := range r.Series {
		how := "recovery, profile " + s.Profile
		if s.Profile == "" {
			how = "without recovery, with the script"
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %d | %d | %.1f s | %.1f s | %.1f s |\n", s.Fault, s.Nodes, how, len(s.Runs), s.Failures, s.Total.P50, s.Total.P90, s.Total.Max)
	}
	return out.String()
}

// worse are the figures in which belay takes more than upstream by a twentieth or more, of scale.csv and of the reports.
func (d *data) worse() string {
	var out strings.Builder
	row := func(what string, n int, upstream, belay string) {
		fmt.Fprintf(&out, "| %s | %d | %s | %s |\n", what, n, upstream, belay)
	}
	f := d.curves
	for _, k := range f.keys() {
		for _, s := range f.sizes {
			ours, ok := f.values[k][s.Volumes]
			theirs, also := f.values[key{planeUpstream, k.component, k.figure}][s.Volumes]
			if k.plane == planeBelay && ok && also && ours >= 1.05*theirs {
				what := fmt.Sprintf("%s, %s volumes", strings.Replace(k.figure, "CPU until then", "start: CPU until the first write", 1), picture.Number(float64(s.Volumes)))
				if k.component != "both" {
					what = k.component + ": " + what
				}
				row(what, 1, picture.Number(theirs)+" "+f.units[k.figure], picture.Number(ours)+" "+f.units[k.figure])
			}
		}
	}
	for _, r := range []*bench.Report{d.tick, d.attacher} {
		if r == nil {
			continue
		}
		for _, p := range r.Parts {
			for _, f := range p.Figures {
				ours, ok := f.Value[planeBelay]
				theirs, also := f.Value[planeUpstream]
				if ok && also && ours >= 1.05*theirs {
					row(p.Name+": "+f.Name, len(f.Samples[planeBelay]), cell(f, planeUpstream, f.Unit), cell(f, planeBelay, f.Unit))
				}
			}
		}
	}
	return out.String()
}
