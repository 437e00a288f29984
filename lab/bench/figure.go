package bench

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"belay.dev/belay/lab/timeline"
)

// Names of figures.
const (
	figureAttach = "pod bound -> reported"
	figureDetach = "pod gone -> detached"
	figureMove   = "last in use -> reported on next"

	figureBurst       = "last pod bound -> last reported"
	figureBurstWhole  = "first pod made -> last reported"
	figureBurstDetach = "last pod gone -> last detached"
	figureCPUAttach   = "controller CPU per attach"
	figureCPUDetach   = "controller CPU per detach"
	figureCPUPlane    = "CPU of controller and attacher per attach and detach"
	figurePublishes   = "publish calls"

	figureShared       = "first pod made -> reported on all nodes"
	figureSharedDetach = "first pod deleted -> detached from all nodes"

	figureMemory   = "peak memory"
	figureIdle     = "CPU when nothing happens"
	figureChanged  = "attachments, nodes written"
	figureReady    = "start -> first attach"
	figureStartCPU = "CPU until then"
	figureCPUMore  = "CPU per attach at that size"

	figureRequestsAttach = "requests per attach"
	figureEventsAttach   = "events per attach"
	figureRequestsDetach = "requests per detach"
	figureEventsDetach   = "events per detach"
	figureAttacherAttach = "attacher, per attach"
	figureAttacherDetach = "attacher, per detach"
)

// Figure is one number per plane, and what is wanted of belay's.
type Figure struct {
	Name string `json:"name"`
	// Unit of all numbers: ms, s, MiB, requests and so on.
	Unit string `json:"unit"`
	// Note says what the figure was measured over.
	Note string `json:"note,omitempty"`
	// Value is the median of the samples, by plane.
	Value map[string]float64 `json:"value"`
	// Samples are all measured numbers, by plane, in the order in which they were measured.
	Samples map[string][]float64 `json:"samples"`
	// Parts says what the value is made of, where that is known, by plane.
	Parts map[string]map[string]float64 `json:"parts,omitempty"`
	// Targets of belay's value, or of that of the kubelets where no plane is at work.
	Targets []Target `json:"targets,omitempty"`
	// Spread has the text say how many samples there are, and the least and the greatest.
	Spread bool `json:"-"`
}

// Target is a limit of a value. Text says whether it is an upper or a lower one.
type Target struct {
	// Text says the limit as the project states it, "<= 2x floor".
	Text string `json:"text"`
	// Limit in the figure's unit.
	Limit float64 `json:"limit"`
	// Is says how the value compares with what the limit comes from, "1.4x", or why the target counts as missed.
	Is  string `json:"is,omitempty"`
	Met bool   `json:"met"`
}

// numbers makes a figure of samples by plane.
func numbers(name, unit string, samples map[string][]float64) *Figure {
	f := &Figure{Name: name, Unit: unit, Value: map[string]float64{}, Samples: samples}
	for plane, all := range samples {
		if len(all) > 0 {
			f.Value[plane] = timeline.Median(all)
		}
	}
	return f
}

// samples are measured values by figure and plane. The zero value is ready; several goroutines may add to it.
type samples struct {
	mu  sync.Mutex
	all map[string]map[string][]float64
}

func (s *samples) add(figure, plane string, value float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string]map[string][]float64{}
	}
	if s.all[figure] == nil {
		s.all[figure] = map[string][]float64{}
	}
	s.all[figure][plane] = append(s.all[figure][plane], value)
}

func (s *samples) milliseconds(figure, plane string, d time.Duration) { s.add(figure, plane, milli(d)) }

func (s *samples) seconds(figure, plane string, d time.Duration) { s.add(figure, plane, d.Seconds()) }

// figure has the medians of the samples of that name.
func (s *samples) figure(name, unit string) *Figure { return numbers(name, unit, s.all[name]) }

// soFar is the median of a plane's times in milliseconds, for progress.
func (s *samples) soFar(figure, plane string) string {
	return fmt.Sprintf("%.1f ms", timeline.Median(s.all[figure][plane]))
}

func milli(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// atMost wants belay's value to be at most factor times that of another plane.
func (f *Figure) atMost(plane string, factor float64) *Figure {
	text := fmt.Sprintf("<= %gx %s", factor, plane)
	if factor < 1 {
		text = fmt.Sprintf("<= %s/%g", plane, 1/factor)
	}
	other, measured := f.Value[plane]
	belay, also := f.Value[planeBelay]
	target := Target{Text: text, Limit: factor * other, Met: measured && also && belay <= factor*other}
	switch {
	case !measured || !also:
		target.Is = "not measured"
	case factor < 1 && belay > 0:
		target.Is = fmt.Sprintf("1/%.1f", other/belay)
	case other > 0:
		target.Is = fmt.Sprintf("%.2fx", belay/other)
	}
	f.Targets = append(f.Targets, target)
	return f
}

// withSpread has the text say how the samples spread.
func (f *Figure) withSpread() *Figure {
	f.Spread = true
	return f
}

// limit wants belay's value to be at most a number.
func (f *Figure) limit(text string, limit float64) *Figure {
	belay, measured := f.Value[planeBelay]
	target := Target{Text: text, Limit: limit, Met: measured && belay <= limit}
	if !measured {
		target.Is = "not measured"
	}
	f.Targets = append(f.Targets, target)
	return f
}

// limitEach wants each of belay's samples to be at most a number: of mistakes a median is of no use.
func (f *Figure) limitEach(text string, limit float64) *Figure {
	all := f.Samples[planeBelay]
	target := Target{Text: text, Limit: limit, Is: "not measured"}
	if len(all) > 0 {
		greatest := slices.Max(all)
		target.Met, target.Is = greatest <= limit, number(greatest)+" at most"
	}
	f.Targets = append(f.Targets, target)
	return f
}
