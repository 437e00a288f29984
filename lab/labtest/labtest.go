// Package labtest is what the lab's end-to-end tests share: it skips them loudly
// where no lab can run, and checks behind each that nothing is left.
package labtest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/scenario"
)

// Needs skips a test where no lab can run, and says why.
func Needs(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("NOT RUN: a lab makes mounts, loop devices and namespaces, which needs root; run the tests as root")
	}
	if os.Getenv("BELAY_BIN") == "" {
		tb.Skip("NOT RUN: a lab needs belay's programs; `make test` builds them and names their folder in BELAY_BIN")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		tb.Skipf("NOT RUN: the lab's storage needs FUSE: %v", err)
	}
}

// Open starts a lab that ends with the test, and then checks that nothing of
// it is left on the machine.
func Open(t *testing.T, o cluster.Options) *scenario.Scene {
	t.Helper()
	Needs(t)
	scene, err := scenario.Open(t.Context(), o, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		dir := scene.Cluster.Dir()
		// The test's context has ended by now.
		if err := scene.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if left := scenario.LeftOnMachine(dir); len(left) > 0 {
			t.Errorf("the lab left on the machine:\n%s", strings.Join(left, "\n"))
		}
	})
	return scene
}

// Steady has leaders keep their leases, and calls of the driver wait, through the stalls of a busy machine. It is for tests that count
// what is done once: after a lease that was lost, or a call that was abandoned, the next leader or call does it again.
func Steady(o cluster.Options) cluster.Options {
	o.ControllerArgs = append(slices.Clone(o.ControllerArgs), "--leader-elect-lease-duration=4m", "--leader-elect-renew-deadline=3m")
	o.AttacherArgs = append(slices.Clone(o.AttacherArgs),
		"--leader-election-lease-duration=4m", "--leader-election-renew-deadline=3m", "--timeout=2m")
	return o
}

// Number is the number in an environment variable, or otherwise where there is none.
func Number(tb testing.TB, variable string, otherwise int) int {
	tb.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		tb.Fatalf("%s=%q is no number", variable, text)
	}
	return n
}

// Tally counts by row and column.
type Tally[Row, Column ~string] map[Row]map[Column]int

// Add counts one.
func (t Tally[Row, Column]) Add(row Row, column Column) {
	if t[row] == nil {
		t[row] = map[Column]int{}
	}
	t[row][column]++
}

// Table draws the rows that have counts, with the sums of the columns.
func (t Tally[Row, Column]) Table(rows []Row, columns []Column) string {
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	line := func(name string, cell func(Column) string) {
		_, _ = fmt.Fprint(table, name)
		for _, column := range columns {
			_, _ = fmt.Fprint(table, "\t", cell(column))
		}
		_, _ = fmt.Fprintln(table)
	}
	sums := map[Column]int{}
	line("", func(column Column) string { return string(column) })
	for _, row := range rows {
		if t[row] == nil {
			continue
		}
		line(string(row), func(column Column) string {
			sums[column] += t[row][column]
			return strconv.Itoa(t[row][column])
		})
	}
	line("all", func(column Column) string { return strconv.Itoa(sums[column]) })
	_ = table.Flush()
	return out.String()
}
