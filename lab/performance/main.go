// Command performance writes docs/performance.md, its plots and the pictures docs/dead-node.svg and docs/demo.svg from what the benches
// and the demo measured, which is stored in docs/performance:
//
//	go run ./performance ../docs
//
// scale.csv is of `belay-lab bench scale`; tick.json, attacher.json and recovery.json are of the benches of these names with -o json, and
// drain.json is a move of the demo. Parts of a bench that were measured apart, with --only, may be in files such as tick-moves.json and
// tick-cost.json. The sections and pictures of a file that is missing are left out; figures of --quick are refused.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

func main() {
	check := flag.Bool("check", false, "write nothing, and fail if a file is not what its figures give")
	demo := flag.String("demo", "", "first store the drain of this report of `belay-lab demo -o json`")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: performance [--check] [--demo FILE] FOLDER")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *demo, *check); err != nil {
		fmt.Fprintln(os.Stderr, "performance:", err)
		os.Exit(1)
	}
}

func run(docs, demo string, check bool) error {
	if demo != "" {
		if err := storeDrain(demo, filepath.Join(docs, "performance", "drain.json")); err != nil {
			return err
		}
	}
	made, err := render(filepath.Join(docs, "performance"))
	if err != nil {
		return err
	}
	if check {
		return made.compare(docs)
	}
	return made.write(docs)
}

// files are what is made, by its path in docs.
type files map[string][]byte

func (f files) write(docs string) error {
	for name, content := range f {
		if err := os.WriteFile(filepath.Join(docs, name), content, 0o644); err != nil {
			return fmt.Errorf("write a document: %w", err)
		}
	}
	return nil
}

// compare fails if a file is not as it would be written, or a picture in the folder of the figures is not made any more.
func (f files) compare(docs string) error {
	var failed []error
	for _, name := range slices.Sorted(maps.Keys(f)) {
		is, err := os.ReadFile(filepath.Join(docs, name))
		if err == nil && !bytes.Equal(is, f[name]) {
			err = fmt.Errorf("%s is not what its figures give", name)
		}
		failed = append(failed, err)
	}
	pictures, err := filepath.Glob(filepath.Join(docs, "performance", "*.svg"))
	for _, picture := range pictures {
		if name := "performance/" + filepath.Base(picture); f[name] == nil {
			failed = append(failed, fmt.Errorf("%s is made from no figure", name))
		}
	}
	return errors.Join(append(failed, err)...)
}
