// Package manpage writes the man pages and the completion scripts of a program. The programs link it only with the build tag manpage, with which they
// do nothing else: what users run carries neither.
package manpage

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// The sections of the manual.
const (
	Commands = "1"
	Daemons  = "8"
)

// Completions returns the completion scripts of a program, by file name.
type Completions func(cmd *cobra.Command) (map[string][]byte, error)

// Main writes everything into the folder that is the program's only argument, or prints the flags as JSON with the argument --flags, and exits.
func Main(cmd *cobra.Command, section string, completions Completions) {
	if len(os.Args) != 2 {
		fmt.Fprintf(os.Stderr, "usage: %[1]s DIR\n       %[1]s --flags\n", os.Args[0])
		os.Exit(2)
	}
	write := func() error { return Write(cmd, os.Args[1], section, completions) }
	if os.Args[1] == "--flags" {
		write = func() error { return json.NewEncoder(os.Stdout).Encode(Flags(cmd)) }
	}
	if err := write(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Write writes dir/man/manSECTION and dir/completions. Its time is SOURCE_DATE_EPOCH, if that is set.
func Write(cmd *cobra.Command, dir, section string, completions Completions) error {
	pages, scripts := filepath.Join(dir, "man", "man"+section), filepath.Join(dir, "completions")
	for _, d := range []string{pages, scripts} {
		if err := os.MkdirAll(d, 0o755); err != nil { //nolint:gosec // for everyone
			return fmt.Errorf("make %s: %w", d, err)
		}
	}
	cmd.DisableAutoGenTag = true
	cmd.InitDefaultCompletionCmd()
	header := &doc.GenManHeader{Section: section, Source: "belay", Manual: "belay"}
	if err := doc.GenManTree(cmd, header, pages); err != nil {
		return fmt.Errorf("write the man pages of %s: %w", cmd.Name(), err)
	}
	files, err := completions(cmd)
	if err != nil {
		return fmt.Errorf("write the completions of %s: %w", cmd.Name(), err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(scripts, name), text, 0o644); err != nil { //nolint:gosec // for everyone
			return fmt.Errorf("write the completions of %s: %w", cmd.Name(), err)
		}
	}
	return nil
}

// Asking are scripts that ask the program, as cobra's programs can be asked.
func Asking(cmd *cobra.Command) (map[string][]byte, error) {
	var bash, zsh, fish, powershell bytes.Buffer
	for _, err := range []error{
		cmd.GenBashCompletionV2(&bash, true), cmd.GenZshCompletion(&zsh), cmd.GenFishCompletion(&fish, true), cmd.GenPowerShellCompletionWithDesc(&powershell),
	} {
		if err != nil {
			return nil, err
		}
	}
	return byShell(cmd.Name(), bash.Bytes(), zsh.Bytes(), fish.Bytes(), powershell.Bytes()), nil
}

// Fixed are scripts that list the flags, for a program that cannot be asked.
func Fixed(cmd *cobra.Command) (map[string][]byte, error) {
	name := cmd.Name()
	var words []string
	var zsh, fish strings.Builder
	fmt.Fprintf(&zsh, "#compdef %s\n_arguments", name)
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		words = append(words, "--"+f.Name)
		about := strings.NewReplacer("'", "", "[", "(", "]", ")", "`", "", "\n", " ", ":", " ").Replace(f.Usage)
		value := "="
		if f.NoOptDefVal != "" {
			value = ""
		}
		fmt.Fprintf(&zsh, " \\\n  '--%s%s[%s]%s'", f.Name, value, about, map[string]string{"=": ":value:_files", "": ""}[value])
		fmt.Fprintf(&fish, "complete -c %s -l %s -d '%s'\n", name, f.Name, about)
	})
	zsh.WriteString("\n")
	list := strings.Join(words, " ")
	bash := fmt.Sprintf("complete -o default -W '%s' %s\n", list, name)
	powershell := fmt.Sprintf("Register-ArgumentCompleter -Native -CommandName '%s' -ScriptBlock {\n  param($word)\n  '%s' -split ' ' | Where-Object { $_ -like \"$word*\" }\n}\n", name, list)
	return byShell(name, []byte(bash), []byte(zsh.String()), []byte(fish.String()), []byte(powershell)), nil
}

func byShell(name string, bash, zsh, fish, powershell []byte) map[string][]byte {
	return map[string][]byte{name + ".bash": bash, "_" + name: zsh, name + ".fish": fish, name + ".ps1": powershell}
}
