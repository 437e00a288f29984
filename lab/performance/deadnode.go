package main

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/bench"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/picture"
	"belay.dev/belay/lab/timeline"
)

// stage is what the picture shows as one bar: hops that follow each other.
type stage struct {
	name, color string
	hops        []string
}

// stages are those with recovery and those without it.
var (
	silence      = stage{"silent, until suspected", picture.Gray, []string{"suspected"}}
	proof        = stage{"power switch says Off; taint", picture.Red, []string{"isolated", "switched off by its BMC", "off confirmed", "tainted, and off again"}}
	notReady     = stage{"silent, until NotReady", picture.Gray, []string{"NotReady"}}
	script       = stage{"script sets the taint", picture.Red, []string{"off, marked out of service"}}
	replaced     = stage{"pod deleted, and a new one bound", picture.Blue, []string{"pod gone", "replacement bound"}}
	attached     = stage{"volume detached, and attached", picture.Green, []string{"old attachment gone", "attached and reported"}}
	running      = stage{"mounted, running, writing", picture.Purple, []string{"mounted", "first record written"}}
	withRecovery = []stage{silence, proof, replaced, attached, running}
	withScript   = []stage{notReady, script, replaced, attached, running}
)

// bar is a stage, and the median of its time over all runs.
type bar struct {
	stage
	seconds float64
}

// bars are the medians of the stages. It is an error if a hop belongs to none: the bars would not be the whole.
func bars(s *bench.RecoverySeries, stages []stage) ([]bar, error) {
	took := make([][]float64, len(stages))
	for _, run := range s.Runs {
		if run.Failure != "" {
			continue
		}
		sums := make([]float64, len(stages))
		for _, hop := range run.Hops {
			i := slices.IndexFunc(stages, func(st stage) bool { return slices.Contains(st.hops, hop.Name) })
			if i < 0 {
				return nil, fmt.Errorf("no stage of the picture has the hop %q", hop.Name)
			}
			sums[i] += hop.Seconds
		}
		for i, sum := range sums {
			took[i] = append(took[i], sum)
		}
	}
	var all []bar
	for i, st := range stages {
		if len(took[i]) == 0 {
			return nil, fmt.Errorf("%s of %s nodes: no run was measured", s.Fault, s.Nodes)
		}
		all = append(all, bar{st, timeline.Median(took[i])})
	}
	return all, nil
}

// totals are the times of the runs that did not fail.
func totals(s *bench.RecoverySeries) (all []float64) {
	for _, run := range s.Runs {
		if run.Failure == "" {
			all = append(all, run.Seconds)
		}
	}
	return all
}

// series finds the power cuts of kubelets with a profile, or without recovery.
func series(r *bench.RecoveryReport, profile string) (*bench.RecoverySeries, error) {
	for _, s := range r.Series {
		if s.Nodes == cluster.NodeKindKubelet && s.Fault == bench.FaultPowerCut && s.Profile == profile {
			return s, nil
		}
	}
	return nil, fmt.Errorf("recovery.json has no %s of kubelets with profile %q", bench.FaultPowerCut, profile)
}

// leastAlone is how long a dead node must have been left alone. By default its pods are deleted 300 s after it is NotReady (k8s.io/kubernetes
// v1.36.3, plugin/pkg/admission/defaulttolerationseconds/admission.go), and what a pod does before says nothing of what becomes of it.
const leastAlone = 8 * time.Minute

// leftAlone is what became of the pod of a dead kubelet without recovery.
func leftAlone(r *bench.RecoveryReport) (alone bench.LeftAlone, err error) {
	i := slices.IndexFunc(r.LeftAlone, func(a bench.LeftAlone) bool { return a.Nodes == cluster.NodeKindKubelet })
	if i < 0 {
		return alone, errors.New("recovery.json has no kubelet that was left alone")
	}
	switch alone = r.LeftAlone[i]; {
	case alone.Replaced:
		return alone, errors.New("recovery.json: the pod of a kubelet that was left alone was replaced, which the page and the picture deny")
	case alone.Seconds < leastAlone.Seconds() || alone.Terminating == nil:
		return alone, fmt.Errorf("recovery.json: a kubelet was left alone for %.0f s, and that must be %v and see its pod deleted (--upstream-wait)",
			alone.Seconds, leastAlone)
	}
	return alone, nil
}

// within says how long nothing had come of a node that was left alone.
func within(a bench.LeftAlone) string {
	return fmt.Sprintf("not within %.0f min", math.Floor(a.Seconds/60))
}

// The layout of the picture, in pixels.
const (
	deadBarLeft  = 280
	deadBarWidth = 590
	deadRow      = 22
	deadGap      = 14
)

// deadNode draws what happens after a node has lost its power, with recovery and without it, on one axis.
func deadNode(r *bench.RecoveryReport) ([]byte, error) {
	with, err := series(r, fencing.Default.Name)
	if err != nil {
		return nil, err
	}
	without, err := series(r, "")
	if err != nil {
		return nil, err
	}
	ours, err := bars(with, withRecovery)
	if err != nil {
		return nil, err
	}
	theirs, err := bars(without, withScript)
	if err != nil {
		return nil, err
	}
	alone, err := leftAlone(r)
	if err != nil {
		return nil, err
	}
	d := deadDrawing{Card: picture.New("A node loses its power: when does the StatefulSet's pod write on another node?", fmt.Sprintf(
		"Kubelets with their defaults. Each bar is the median of its step, and so is the time of the whole (least to greatest): n=%s with recovery "+
			"(profile %s, beside the attach/detach controller of %s), n=%s with the script. Measured %s in a lab on %s; its power switches are simulated, and its driver attaches at once.",
		counted(with), with.Profile, with.Plane, counted(without), r.Date, r.Machine))}
	d.axis = max(with.Total.P50, without.Total.P50, end(ours), end(theirs)) * 1.1
	return d.draw(with, without, ours, theirs, alone)
}

// deadDrawing is the picture; y is where its next line begins.
type deadDrawing struct {
	*picture.Card
	axis, y float64
}

func (d *deadDrawing) draw(with, without *bench.RecoverySeries, ours, theirs []bar, alone bench.LeftAlone) ([]byte, error) {
	d.y = d.Top
	rows := len(ours) + len(theirs) + 2
	bottom := d.y + float64(rows*deadRow) + 4*(deadRow+deadGap)
	for _, mark := range picture.Times(time.Duration(d.axis*float64(time.Second)), 9) {
		d.Line(d.x(mark.Value), d.Top+4, d.x(mark.Value), bottom, picture.Grid)
		d.Text(d.x(mark.Value), bottom+18, picture.Middle, picture.Pale, mark.Label)
	}
	d.head("With belay's recovery: " + outcome(with))
	d.bars(ours)
	d.head("Kubernetes by itself: " + within(alone))
	d.bars(theirs[:1])
	d.open(theirs[0].seconds, alone)
	d.head("Kubernetes, with a script that trusts NotReady and sets the out-of-service taint at once: " + outcome(without))
	d.bars(theirs)
	var out bytes.Buffer
	err := d.Write(&out, bottom+30)
	return out.Bytes(), err
}

func (d *deadDrawing) x(seconds float64) float64 {
	return deadBarLeft + deadBarWidth*seconds/d.axis
}

func (d *deadDrawing) head(text string) {
	d.y += deadRow + deadGap
	d.Bold(picture.Margin, d.y-deadGap/2, text)
}

// bars draws a row for each, one after the other in time.
func (d *deadDrawing) bars(all []bar) {
	at := 0.0
	for _, b := range all {
		d.Text(picture.Margin+12, d.y+15, picture.Start, picture.Ink, b.name)
		d.Rect(d.x(at), d.y+4, max(d.x(at+b.seconds)-d.x(at), 2), 14, b.color, 1)
		d.Text(picture.Width-picture.Margin, d.y+15, picture.End, picture.Ink, fmt.Sprintf("%.1f s", b.seconds))
		at += b.seconds
		d.y += deadRow
	}
}

// open draws the bar of a node that was left alone, which begins at a time and has no end on the axis.
func (d *deadDrawing) open(from float64, alone bench.LeftAlone) {
	d.Text(picture.Margin+12, d.y+15, picture.Start, picture.Ink, "pod waits for a person")
	left, right := d.x(from), float64(deadBarLeft+deadBarWidth)
	d.Rect(left, d.y+4, right-left-14, 14, picture.Red, 0.25)
	d.Draw(`<polygon points="%[1]g,%[2]g %[3]g,%[4]g %[1]g,%[5]g" fill="%[6]s" fill-opacity="0.25"/>`, right-14, d.y, right, d.y+11, d.y+22, picture.Red)
	d.Text(picture.Width-picture.Margin, d.y+15, picture.End, picture.Red, fmt.Sprintf("> %.0f min", math.Floor(alone.Seconds/60)))
	d.y += deadRow
	d.Text(deadBarLeft, d.y+15, picture.Start, picture.Red, "n=1, nothing was done: "+fate(alone))
	d.y += deadRow
}

// fate is what became of the pod of a node that was left alone.
func fate(a bench.LeftAlone) string {
	switch {
	case a.Replaced:
		return fmt.Sprintf("the pod was replaced within %.0f s", a.Seconds)
	case a.Terminating == nil:
		return fmt.Sprintf("the pod was not deleted within %.0f s", a.Seconds)
	default:
		return fmt.Sprintf("the pod was deleted after %.0f s, and was still Terminating after %.0f s", *a.Terminating, a.Seconds)
	}
}

// end is the end of the last bar.
func end(all []bar) (seconds float64) {
	for _, b := range all {
		seconds += b.seconds
	}
	return seconds
}
