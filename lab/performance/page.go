package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"text/template"

	"belay.dev/belay/lab/bench"
	"belay.dev/belay/lab/picture"
)

//go:embed performance.md.tmpl
var pageTemplate string

// render makes all files from the figures in a folder.
func render(folder string) (files, error) {
	d, err := readData(folder)
	if err != nil {
		return nil, err
	}
	made := files{}
	if d.recovery != nil {
		if made["dead-node.svg"], err = deadNode(d.recovery); err != nil {
			return nil, err
		}
	}
	if d.drain != nil {
		if made["demo.svg"], err = d.drain.draw(); err != nil {
			return nil, err
		}
	}
	parsed, err := template.New("performance.md").Funcs(d.funcs(made)).Parse(pageTemplate)
	if err != nil {
		return nil, fmt.Errorf("parse the page: %w", err)
	}
	var out bytes.Buffer
	if err := parsed.Execute(&out, d.curves.sizes[len(d.curves.sizes)-1]); err != nil {
		return nil, fmt.Errorf("render the page: %w", err)
	}
	made["performance.md"] = []byte(reflow(out.String()))
	return made, nil
}

// funcs are those of the template. plot adds a picture to what is made.
func (d *data) funcs(made files) template.FuncMap {
	f := d.curves
	return template.FuncMap{
		"sizes": func() []size { return f.sizes }, "facts": func() []fact { return f.facts }, "fact": f.fact,
		"has": func(figure string) bool { return len(f.of(figure)) > 0 }, "ratio": ratio, "table": f.table,
		"at": f.at, "next": f.next, "number": func(n int) string { return picture.Number(float64(n)) }, "div": func(a, b float64) float64 { return a / b },
		"plot": func(name, figure string) (string, error) {
			var out bytes.Buffer
			if err := f.plot(&out, figure); err != nil {
				return "", err
			}
			made["performance/"+name+".svg"] = out.Bytes()
			return fmt.Sprintf("![%s](performance/%s.svg)", figure, name), nil
		},
		"tick": func() []measured { return d.tick }, "attacher": func() []measured { return d.attacher },
		"recovery": func() *bench.RecoveryReport { return d.recovery },
		"part":     part, "rows": table, "felt": d.felt, "worse": d.worse, "recoveries": recoveryTable, "failures": failures, "settings": settings,
		"matrix": matrix, "notes": notes, "again": again, "tuned": d.tuned, "fate": fate,
	}
}

// settings of all series, each once.
func settings(r *bench.RecoveryReport) []string {
	all := map[string]bool{}
	for _, s := range r.Series {
		for _, setting := range s.Settings {
			all[setting] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}
