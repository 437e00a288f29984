package bench

import (
	"debug/buildinfo"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"belay.dev/belay/lab/cluster"
)

// partialSuffix follows the name of the file of figures while it is not complete.
const partialSuffix = ".partial"

// replaceFile has write fill a file beside the one at path, and puts it in its place once it is complete: a run that fails or is
// interrupted leaves the earlier figures as they were, and its own beside them. A device or a pipe is written to directly.
func replaceFile(path string, write func(io.Writer) error) (err error) {
	if named, err := filepath.EvalSymlinks(path); err == nil {
		path = named // what a link names is replaced, not the link
	}
	found, err := os.Stat(path)
	exists, partial := err == nil, path+partialSuffix
	if exists { // write-protected, or a folder: that must not show only after an hour
		out, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("writing the figures: %w", err)
		}
		defer func() { _ = out.Close() }()
		if !found.Mode().IsRegular() {
			return write(out)
		}
	}
	out, err := os.Create(partial)
	if err != nil {
		return fmt.Errorf("writing the figures: %w", err)
	}
	err = write(out)
	if failed := errors.Join(out.Sync(), out.Close()); failed != nil && err == nil {
		err = fmt.Errorf("writing the figures: %w", failed)
	}
	switch {
	case err == nil:
		if err = os.Rename(partial, path); err != nil {
			err = fmt.Errorf("the figures are complete, but in %s: %w", partial, err)
		}
		return err
	case exists:
		return fmt.Errorf("%w; %s is as it was, and the figures so far are in %s", err, path, partial)
	default:
		return fmt.Errorf("%w; the figures so far are in %s", err, partial)
	}
}

// errNotWritten ends the bench: no other turn could write its figures either.
var errNotWritten = errors.New("writing the figures")

// curveOut writes facts about the run, as comments, and then the figures.
type curveOut struct {
	to   io.Writer
	rows *csv.Writer
}

// fact writes a comment that docs/performance.md prints.
func (o curveOut) fact(key, value string) error {
	if _, err := fmt.Fprintf(o.to, "# %s: %s\n", key, value); err != nil {
		return fmt.Errorf("%w: %w", errNotWritten, err)
	}
	return nil
}

// row writes a row at once: an interrupted run leaves what it has measured.
func (o curveOut) row(fields ...string) error {
	err := o.rows.Write(fields)
	o.rows.Flush()
	if err = errors.Join(err, o.rows.Error()); err != nil {
		return fmt.Errorf("%w: %w", errNotWritten, err)
	}
	return nil
}

// machineFacts are read before the lab starts, which is a load of its own.
func (o curveOut) machineFacts(version string) error {
	return errors.Join(
		o.fact("date", time.Now().UTC().Format("2006-01-02 15:04 MST")), o.fact("belay", version),
		o.fact("CPUs", strconv.Itoa(runtime.NumCPU())), o.fact("load at the start", loadAverage()))
}

// runFacts are what a reader needs to repeat the run; programs is the folder of upstream's.
func (o curveOut) runFacts(programs string, attacherFlags []string, extras int) error {
	var errs []error
	for _, p := range [][2]string{{"Kubernetes", "kube-controller-manager"}, {"csi-attacher", "csi-attacher"}, {"etcd", "etcd"}} {
		version := "unknown"
		if info, err := buildinfo.ReadFile(filepath.Join(programs, p[1])); err == nil {
			version = info.Main.Version + " (" + info.GoVersion + ")"
		}
		errs = append(errs, o.fact(p[0], version))
	}
	return errors.Join(slices.Concat(errs, []error{
		o.fact("flags of kube-controller-manager", strings.Join(cluster.Unthrottled(), " ")),
		o.fact("flags of csi-attacher", strings.Join(attacherFlags, " ")),
		o.fact("attaches one at a time", strconv.Itoa(curveAttaches)), o.fact("attaches in the burst", strconv.Itoa(extras)),
	})...)
}
