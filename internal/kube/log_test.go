package kube

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"k8s.io/klog/v2/textlogger"

	"belay.dev/belay/internal/decision"
)

// TestLogLinesAreLimited: a line has no more of a text of others than MaxText, and names the place of the call.
func TestLogLinesAreLimited(t *testing.T) {
	type reason string
	long := strings.Repeat("x", 1<<20)
	var out bytes.Buffer
	logger := LimitLog(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&out))))
	for name, write := range map[string]func(){
		"error":        func() { logger.Error(errors.New(long), "Failed") },
		"error value":  func() { logger.Info("Waiting", "err", errors.New(long)) },
		"value":        func() { logger.Info("Waiting", "volume", long, "reason", reason(long)) },
		"with a value": func() { logger.WithValues("volume", long).WithName("a").WithCallDepth(0).Info("Waiting") },
		"short":        func() { logger.Info("Waiting", "volume", "pv-1", "err", errors.New("no space"), "n", 3) },
	} {
		out.Reset()
		write()
		line := out.String()
		if most := 2*decision.MaxText + 200; len(line) > most {
			t.Errorf("%s: the line has %d bytes, want at most %d", name, len(line), most)
		}
		if !strings.Contains(line, "log_test.go") {
			t.Errorf("%s: the line does not name the place of the call: %.100s", name, line)
		}
		if name == "short" && !strings.Contains(line, `"Waiting" volume="pv-1" err="no space" n=3`) {
			t.Errorf("%s: the line is %s", name, line)
		}
	}
}
