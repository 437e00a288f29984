// Command licences copies the licences and notices of all modules that a program of belay links, from the module cache. A release, a package and
// an image have them beside the program: most licences ask for that.
//
//	go run ./hack/licences -out DIR PROGRAM...
//
// It writes DIR/PROGRAM/MODULE@VERSION/FILE. It fails for a module that has no licence.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// terms are files with a licence or a notice. They are looked for in the folder of each linked package, and above it.
var terms = regexp.MustCompile(`(?i)^(licen[cs]es?|copying|notice|copyright|patents)([.-].*)?$`)

func main() {
	out := flag.String("out", "", "folder")
	platforms := flag.String("platforms", runtime.GOOS+"/"+runtime.GOARCH, "platforms, separated by commas: each may link other modules")
	flag.Parse()
	for _, program := range flag.Args() {
		found := map[string]string{}
		for platform := range strings.SplitSeq(*platforms, ",") {
			if err := collect(program, platform, found); err != nil {
				fmt.Fprintln(os.Stderr, "licences:", err)
				os.Exit(1)
			}
		}
		if err := write(filepath.Join(*out, program), found); err != nil {
			fmt.Fprintln(os.Stderr, "licences:", err)
			os.Exit(1)
		}
	}
}

// collect adds the files of a program, by the path at which it writes them.
func collect(program, platform string, found map[string]string) error {
	system, arch, _ := strings.Cut(platform, "/")
	const format = `{{if .Standard}}{{else if .Module.Main}}{{else}}{{.Dir}}|{{.Module.Dir}}|{{.Module.Path}}@{{.Module.Version}}{{end}}`
	list := exec.Command("go", "list", "-deps", "-f", format, "./cmd/"+program) //nolint:noctx // it ends by itself
	list.Env, list.Stderr = append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+arch), os.Stderr
	packages, err := list.Output()
	if err != nil {
		return fmt.Errorf("list the packages of %s on %s: %w", program, platform, err)
	}
	root, err := exec.Command("go", "env", "GOROOT").Output() //nolint:noctx // it ends by itself
	if err != nil {
		return fmt.Errorf("find Go: %w", err)
	}
	goes := strings.TrimSpace(string(root))
	for line := range strings.Lines(string(packages) + goes + "|" + goes + "|go@" + runtime.Version() + "\n") {
		at := strings.Split(strings.TrimSpace(line), "|")
		if len(at) != 3 {
			continue
		}
		if err := ofPackage(at[0], at[1], at[2], found); err != nil {
			return err
		}
	}
	return nil
}

// ofPackage adds the files of one package's folder and of those above it in its module.
func ofPackage(folder, root, module string, found map[string]string) error {
	licensed := false
	for {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(root, folder)
		if err != nil || strings.HasPrefix(inside, "..") {
			return errors.Join(err, fmt.Errorf("%s is not in %s", folder, root))
		}
		for _, e := range entries {
			if e.Type().IsRegular() && terms.MatchString(e.Name()) && filepath.Ext(e.Name()) != ".go" {
				found[filepath.Join(module, inside, e.Name())] = filepath.Join(folder, e.Name())
				licensed = true
			}
		}
		if inside == "." {
			break
		}
		folder = filepath.Dir(folder)
	}
	if !licensed {
		return fmt.Errorf("%s has no licence", module)
	}
	return nil
}

func write(folder string, found map[string]string) error {
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		content, err := os.ReadFile(found[name])
		if err != nil {
			return err
		}
		to := filepath.Join(folder, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, content, fs.FileMode(0o644))); err != nil { //nolint:gosec // the names are the licences of modules
			return err
		}
	}
	return nil
}
