package bench

import (
	"context"
	"encoding/csv"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"belay.dev/belay/lab/labtest"
)

const earlier = "the earlier figures\n"

// TestFileIsReplacedWhenComplete: the figures of an interrupted run are beside the earlier ones, which stay as they were.
func TestFileIsReplacedWhenComplete(t *testing.T) {
	path := filepath.Join(t.TempDir(), "scale.csv")
	must(t, os.WriteFile(path, []byte(earlier), 0o644))
	interrupted := errors.New("interrupted")
	for _, end := range []error{interrupted, nil} {
		err := replaceFile(path, func(out io.Writer) error {
			to := curveOut{to: out, rows: csv.NewWriter(out)}
			must(t, errors.Join(to.fact("CPUs", "2"), to.row("200", "10")))
			assertHolds(t, path, earlier)
			assertHolds(t, path+partialSuffix, "# CPUs: 2\n200,10\n")
			return end
		})
		if !errors.Is(err, end) {
			t.Errorf("%v became %v", end, err)
		}
		if end != nil {
			assertHolds(t, path, earlier)
			assertHolds(t, path+partialSuffix, "# CPUs: 2\n200,10\n")
			if !strings.Contains(err.Error(), path+partialSuffix) {
				t.Errorf("the error does not name the file with the figures: %v", err)
			}
		}
	}
	assertHolds(t, path, "# CPUs: 2\n200,10\n")
	if _, err := os.Stat(path + partialSuffix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the partial file is left: %v", err)
	}
}

func assertHolds(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("%s holds %q (%v), want %q", path, got, err, want)
	}
}

// TestFileThatCannotBeWritten ends the bench before it starts a lab.
func TestFileThatCannotBeWritten(t *testing.T) {
	for path, want := range map[string]string{
		filepath.Join(t.TempDir(), "missing", "scale.csv"): "no such file or directory",
		t.TempDir(): "is a directory",
		"/dev/full": "writing the figures: write /dev/full: no space left on device",
	} {
		err := executeScale(t.Context(), t.Output(), "--file", path)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// TestScaleInterrupted ends the bench while its lab starts, as Ctrl-C does.
func TestScaleInterrupted(t *testing.T) {
	labtest.Needs(t)
	path := filepath.Join(t.TempDir(), "scale.csv")
	must(t, os.WriteFile(path, []byte(earlier), 0o644))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	atWork := &signalWriter{out: t.Output(), word: "s]", signal: cancel}
	if err := executeScale(ctx, atWork, "--file", path, "--name", "scale-ended"); !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	assertHolds(t, path, earlier)
	assertGone(t, "scale-ended")
}

func executeScale(ctx context.Context, progress io.Writer, args ...string) error {
	command := scaleCommand()
	command.SetArgs(args)
	command.SetOut(progress)
	command.SetErr(progress)
	command.SilenceErrors = true
	return command.ExecuteContext(ctx)
}
