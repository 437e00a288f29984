package upstream

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOwnProgramIsCurrent: a program that is built already is built again when its source has changed.
func TestOwnProgramIsCurrent(t *testing.T) {
	dir := smallLab(t, helloCode)
	source := filepath.Join(dir, "greet", "greet.go")
	if err := os.MkdirAll(filepath.Dir(source), 0o755); err != nil {
		t.Fatal(err)
	}
	request := Request{Cache: t.TempDir()}
	for _, word := range []string{"hello", "bye"} {
		if err := os.WriteFile(source, []byte(strings.ReplaceAll(helloCode, "hello", word)), 0o600); err != nil {
			t.Fatal(err)
		}
		program, err := EnsureOwn(t.Context(), request, "./greet")
		if err != nil {
			t.Fatal(err)
		}
		if said, err := exec.Command(program).CombinedOutput(); err != nil || string(said) != word+"\n" {
			t.Errorf("the program says %q (%v), want %q", said, err, word)
		}
	}
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() { greet() }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := EnsureOwn(t.Context(), request, "./greet"); err == nil || !strings.Contains(err.Error(), "greet") {
		t.Errorf("a program that does not compile: %v", err)
	}
}
