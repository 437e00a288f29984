// Command flags writes docs/flags: the flags of belay's programs, as the programs themselves list them.
//
//	go run ./hack/flags [--check]
//
// With --check it changes nothing, and exits with status 1 if a page is not current.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"belay.dev/belay/internal/manpage"
)

const folder = "docs/flags"

func main() {
	check := len(os.Args) == 2 && os.Args[1] == "--check"
	if len(os.Args) > 1 && !check {
		fmt.Fprintln(os.Stderr, "usage: go run ./hack/flags [--check]")
		os.Exit(2)
	}
	pages, err := render()
	if err == nil {
		err = write(pages, check)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "flags:", err)
		os.Exit(1)
	}
}

// render returns the pages by the names of their files.
func render() (map[string][]byte, error) {
	at, err := os.MkdirTemp("", "flags")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the programs: %w", err)
	}
	defer func() { _ = os.RemoveAll(at) }()
	upstream, err := readUpstream()
	if err != nil {
		return nil, err
	}
	pages := map[string][]byte{}
	for _, p := range programs {
		commands, err := list(p, at)
		if err != nil {
			return nil, err
		}
		pages[p.name+".md"] = page(p, commands, upstream[p.upstream])
	}
	return pages, nil
}

// list builds a program that lists its flags (internal/manpage), and asks it.
func list(p program, at string) (commands []manpage.Command, err error) {
	binary := filepath.Join(at, p.name)
	build := exec.Command("go", "build", "-tags", "manpage", "-ldflags", "-s -w", "-o", binary, "./cmd/"+p.name)
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("build %s: %w", p.name, err)
	}
	ask := exec.Command(binary, "--flags")
	ask.Env, ask.Stderr = append(os.Environ(), "HOME=~"), os.Stderr // a default is below it
	answer, err := ask.Output()
	if err == nil {
		err = json.Unmarshal(answer, &commands)
	}
	if err != nil {
		return nil, fmt.Errorf("list the flags of %s: %w", p.name, err)
	}
	return commands, nil
}

// write writes the pages, or reports the first that is not current.
func write(pages map[string][]byte, check bool) error {
	for name, text := range pages {
		path := filepath.Join(folder, name)
		if !check {
			if err := os.WriteFile(path, text, 0o644); err != nil {
				return fmt.Errorf("write %s: %w", path, err)
			}
			continue
		}
		if current, err := os.ReadFile(path); err != nil || !bytes.Equal(current, text) {
			return fmt.Errorf("%s is not what the program lists: run 'make flags'", path)
		}
	}
	return nil
}
