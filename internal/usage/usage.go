// Package usage has the exit statuses that belay's programs share, and the error for a wrong command line.
package usage

import (
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The exit statuses of every program that ends with an error.
const (
	StatusFailed = 1
	StatusWrong  = 2
)

// Error is a wrong command line: an unknown command, argument or flag, or an invalid value.
type Error struct{ error }

// Unwrap returns what is wrong.
func (e Error) Unwrap() error { return e.error }

// Wrap returns err as an Error, and nil for nil.
func Wrap(err error) error {
	if err == nil || is(err) {
		return err
	}
	return Error{err}
}

// Errorf is [fmt.Errorf] for an Error.
func Errorf(format string, args ...any) error { return Error{fmt.Errorf(format, args...)} }

// Status returns the exit status for an error.
func Status(err error) int {
	if is(err) {
		return StatusWrong
	}
	return StatusFailed
}

// CheckAddress returns an Error unless the value of a flag is host:port, :port, or empty or "0" for none.
func CheckAddress(flag, value string) error {
	if value == "" || value == "0" {
		return nil
	}
	_, port, err := net.SplitHostPort(value)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return Errorf("--%s is %q, but must be host:port, :port, or 0 for none", flag, value)
	}
	return nil
}

// CheckVerbosity returns an Error unless the value of a flag is a log level.
func CheckVerbosity(flag string, value int) error {
	if value < 0 || value > math.MaxInt32 {
		return Errorf("--%s is %d, but must be a log level: 0 or more", flag, value)
	}
	return nil
}

// LeaseTimes are the values of the flags PREFIX-lease-duration, PREFIX-renew-deadline and PREFIX-retry-period.
type LeaseTimes struct {
	Prefix                               string
	Duration, RenewDeadline, RetryPeriod time.Duration
}

// Check returns an Error for times with which client-go's leader election does not start, or the API server refuses the
// Lease.
func (l LeaseTimes) Check() error {
	switch {
	case l.RetryPeriod <= 0:
		return Errorf("--%s-retry-period is %v, but must be above 0", l.Prefix, l.RetryPeriod)
	case l.RenewDeadline <= l.RetryPeriod*6/5: // leaderelection.JitterFactor
		return Errorf("--%s-renew-deadline is %v, but must be more than 1.2 times the retry period of %v", l.Prefix, l.RenewDeadline, l.RetryPeriod)
	case l.Duration <= l.RenewDeadline:
		return Errorf("--%s-lease-duration is %v, but must be more than the renew deadline of %v, or two processes could lead at once", l.Prefix, l.Duration, l.RenewDeadline)
	case l.Duration < time.Second:
		return Errorf("--%s-lease-duration is %v, but must be at least 1s: a Lease counts whole seconds", l.Prefix, l.Duration)
	}
	return nil
}

func is(err error) bool {
	_, wrong := errors.AsType[Error](err)
	return wrong
}

// NoArgs refuses all arguments. [cobra.NoArgs] calls each of them an unknown command, also where there are no commands.
func NoArgs(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var commands []string
	for _, child := range command.Commands() {
		if child.IsAvailableCommand() && child.Name() != "help" {
			commands = append(commands, child.Name())
		}
	}
	path := command.CommandPath()
	if len(commands) == 0 {
		return Errorf("%s accepts no arguments, received %q; see %s --help", path, args[0], path)
	}
	return Errorf("%s accepts no arguments except a command (%s), received %q; see %s --help", path, strings.Join(commands, ", "), args[0], path)
}

// FlagError is for [cobra.Command.SetFlagErrorFunc]. The error names the help of the command.
func FlagError(command *cobra.Command, err error) error {
	return Errorf("%w; see %s --help", ParseError(err), command.CommandPath())
}

// forms are the values that a flag accepts, by the type that pflag reports.
var forms = map[string]string{
	"bool": "true or false", "duration": "a duration such as 90s or 1m30s",
	"int": "a whole number", "int32": "a whole number", "int64": "a whole number", "uint": "a whole number of at least 0",
	"float32": "a number", "float64": "a number", "Level": "a whole number of at least 0",
}

// ParseError returns an error of pflag without the text of package strconv or time, if the value of a flag cannot be parsed.
func ParseError(err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	flag := invalid.GetFlag()
	form, known := forms[flag.Value.Type()]
	switch {
	case !known:
		return err
	case errors.Is(err, strconv.ErrRange):
		return fmt.Errorf("--%s is %q, which is out of range", flag.Name, invalid.GetValue())
	default:
		return fmt.Errorf("--%s is %q, but must be %s", flag.Name, invalid.GetValue(), form)
	}
}

// Commit is the commit of the build, set at build time.
var Commit = "unknown"

// Version returns what --version prints of a build: its tag (or the nearest description of the commit), the commit and the version of Go. A build
// without the Makefile has what go build records of the clone.
func Version(version string) string {
	commit := Commit
	if info, ok := debug.ReadBuildInfo(); ok && version == "unknown" {
		version, commit = recorded(info, version, commit)
	}
	return fmt.Sprintf("%s (commit %s, %s)", version, commit, runtime.Version())
}

// recorded is the version and the commit of a build's record, or those given if it has none.
func recorded(info *debug.BuildInfo, version, commit string) (string, string) {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		version = v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			commit = s.Value
		}
	}
	return version, commit
}
