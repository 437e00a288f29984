package deploy

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestCollectorConfiguration has a collector check the example, and a fault in it.
func TestCollectorConfiguration(t *testing.T) {
	program := os.Getenv("BELAY_OTELCOL")
	if program == "" {
		t.Skip("NOT RUN: the example needs a collector that checks it; `make test-long` builds it and names it in BELAY_OTELCOL")
	}
	example, err := os.ReadFile("otel/collector.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ old, new, want string }{
		"as shipped":        {},
		"unknown setting":   {"check_interval", "check_every", "check_every"},
		"unknown processor": {"[memory_limiter, batch]", "[memory_limiter, batches]", "batches"},
	} {
		t.Run(name, func(t *testing.T) {
			file := t.TempDir() + "/collector.yaml"
			content := strings.Replace(string(example), test.old, test.new, 1)
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(program, "validate", "--config", "file:"+file)
			cmd.Env = append(os.Environ(), "POD_IP=127.0.0.1", "TRACES_BACKEND=tempo.monitoring:4317")
			out, err := cmd.CombinedOutput()
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(string(out), test.want)) {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
