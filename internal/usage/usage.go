// Package usage has the exit statuses that belay's programs share, and the error for a wrong command line.
package usage

import (
	"errors"
	"fmt"
	"net"

	"github.com/spf13/cobra"
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

func is(err error) bool {
	_, wrong := errors.AsType[Error](err)
	return wrong
}

// NoArgs is [cobra.NoArgs] that returns an Error.
func NoArgs(command *cobra.Command, args []string) error { return Wrap(cobra.NoArgs(command, args)) }

// FlagError is for [cobra.Command.SetFlagErrorFunc]. The error names the help of the command.
func FlagError(command *cobra.Command, err error) error {
	return Errorf("%w; see %s --help", err, command.CommandPath())
}
