package upstream

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestOwnProgramIsOfItsSource: a program whose source has changed is another one, beside the one that another lab may still start.
func TestOwnProgramIsOfItsSource(t *testing.T) {
	dir := smallLab(t, helloCode)
	source := filepath.Join(dir, "greet", "greet.go")
	if err := os.MkdirAll(filepath.Dir(source), 0o755); err != nil {
		t.Fatal(err)
	}
	request := Request{Cache: t.TempDir()}
	build := func(word string) string {
		t.Helper()
		if err := os.WriteFile(source, []byte(strings.ReplaceAll(helloCode, "hello", word)), 0o600); err != nil {
			t.Fatal(err)
		}
		program, err := EnsureOwn(t.Context(), request, "./greet")
		if err != nil {
			t.Fatal(err)
		}
		return program
	}
	hello, bye := build("hello"), build("bye")
	for program, word := range map[string]string{hello: "hello", bye: "bye"} {
		if said, err := exec.Command(program).CombinedOutput(); err != nil || string(said) != word+"\n" {
			t.Errorf("%s says %q (%v), want %q", program, said, err, word)
		}
	}
	before, err := os.Stat(hello)
	if err != nil {
		t.Fatal(err)
	}
	again := build("hello")
	after, err := os.Stat(again)
	if err != nil || again != hello || !os.SameFile(before, after) {
		t.Errorf("the program that was there, %s, was built again: %s (%v)", hello, again, err)
	}
	removed, err := Prune(request.Cache, 1)
	if err != nil || !slices.Equal(removed, []string{filepath.Dir(bye)}) {
		t.Errorf("pruned %q (%v), want the one that was not used last, %s", removed, err, bye)
	}
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() { greet() }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := EnsureOwn(t.Context(), request, "./greet"); err == nil || !strings.Contains(err.Error(), "undefined: greet") {
		t.Errorf("a program that does not compile: %v", err)
	}
}
