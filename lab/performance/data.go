package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"belay.dev/belay/lab/bench"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/demo"
	"belay.dev/belay/lab/timeline"
)

// The names of planes, as the benches write them.
const planeUpstream, planeBelay = cluster.PlaneUpstream, cluster.PlaneBelay

// data is what was measured; nil where a file is missing.
type data struct {
	curves         *figures
	tick, attacher []measured
	recovery       *bench.RecoveryReport
	drain          *drain
}

// measured is a report, and the name of its file.
type measured struct {
	*bench.Report
	File string
}

// When says when and where the figures are from.
func (m measured) When() string {
	if m.Date == "" {
		return "Measured on " + m.Machine
	}
	return fmt.Sprintf("Measured %s at commit %s, on %s", m.Date, m.Commit, m.Machine)
}

// drain is one move of the demo, and with what it was made.
type drain struct {
	Plane    string         `json:"plane"`
	NodeKind string         `json:"nodeKind"`
	Move     *timeline.Move `json:"move"`
}

// draw draws the move with what a reader must know of it.
func (d *drain) draw() ([]byte, error) {
	note := fmt.Sprintf("One drain through %s's plane, on %s nodes. Each step has its owner and its own time; the pale part of a bar is the wait for its call.", d.Plane, d.NodeKind)
	if d.NodeKind == cluster.NodeKindKubelet {
		note += fmt.Sprintf(` "out of volumesInUse" is the kubelet's next status: every %g s in this lab, every %g s by default.`,
			demo.StatusTick.Seconds(), bench.DefaultTick.Seconds())
	}
	var out bytes.Buffer
	err := timeline.SVG(&out, d.Move, note)
	return out.Bytes(), err
}

func readData(folder string) (*data, error) {
	curves, err := read(filepath.Join(folder, "scale.csv"))
	if err != nil {
		return nil, err
	}
	d := &data{curves: curves}
	err = errors.Join(
		readReports(folder, "tick", &d.tick), readReports(folder, "attacher", &d.attacher),
		readJSON(folder, "recovery.json", &d.recovery), readJSON(folder, "drain.json", &d.drain))
	if err == nil && d.recovery != nil {
		err = checkFlags("recovery.json", d.recovery.Stamp)
	}
	return d, err
}

// checkFlags: the page says how each report is measured again.
func checkFlags(file string, stamp bench.Stamp) error {
	if stamp.Flags == nil {
		return fmt.Errorf("%s does not say with which flags it was measured: it is of an older bench", file)
	}
	return nil
}

// again is the command that repeats a bench.
func again(name string, flags []string) string {
	var args []string
	for _, flag := range flags {
		if name, value, _ := strings.Cut(flag, "="); strings.Contains(value, " ") {
			flag = fmt.Sprintf("%s=%q", name, value)
		}
		args = append(args, flag)
	}
	if len(args) == 0 {
		return "make bench-" + name
	}
	return fmt.Sprintf("make bench-%s ARGS='%s'", name, strings.Join(args, " "))
}

// readReports reads what a bench has measured: all of it in NAME.json, or parts of it in files such as NAME-PART.json.
func readReports(folder, name string, into *[]measured) error {
	paths, err := filepath.Glob(filepath.Join(folder, name+"-*.json"))
	if err != nil {
		return fmt.Errorf("find the figures of the bench %s: %w", name, err)
	}
	measuredBy := map[string]string{}
	for _, path := range append([]string{filepath.Join(folder, name+".json")}, paths...) {
		m := measured{File: filepath.Base(path)}
		if err := readJSON(folder, m.File, &m.Report); err != nil {
			return err
		}
		if m.Report == nil {
			continue
		}
		if err := checkFlags(m.File, m.Stamp); err != nil {
			return err
		}
		if m.Quick {
			return fmt.Errorf("the figures of %s are of --quick, and mean little: measure again without it", m.File)
		}
		for _, p := range m.Parts {
			if other := measuredBy[p.Name]; other != "" && other != m.File {
				return fmt.Errorf("%s and %s both have the part %q: remove one of them", other, m.File, p.Name)
			}
			measuredBy[p.Name] = m.File
		}
		*into = append(*into, m)
	}
	return nil
}

// readJSON leaves into as it is if there is no such file.
func readJSON(folder, name string, into any) error {
	raw, err := os.ReadFile(filepath.Join(folder, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		return fmt.Errorf("read the figures of %s: %w", name, err)
	}
	return nil
}

// storeDrain takes the first drain out of the demo's report.
func storeDrain(from, file string) error {
	var report struct {
		Results []*demo.Result `json:"results"`
	}
	raw, err := os.ReadFile(from)
	if err == nil {
		err = json.Unmarshal(raw, &report)
	}
	if err != nil {
		return fmt.Errorf("read the demo's report %s: %w", from, err)
	}
	for _, result := range report.Results {
		for _, move := range result.Moves() {
			if move.Title != demo.TitleDrain {
				continue
			}
			raw, err := json.MarshalIndent(drain{result.Plane, result.NodeKind, move}, "", "  ")
			if err == nil {
				err = os.WriteFile(file, append(raw, '\n'), 0o644)
			}
			if err != nil {
				return fmt.Errorf("store the demo's drain: %w", err)
			}
			return nil
		}
	}
	return fmt.Errorf("store the demo's drain: %s has none", from)
}
