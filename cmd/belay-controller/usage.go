package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// Exit statuses, the same in all of belay's programs.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is a command line that cannot be meant.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func asUsage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

// exitStatus is that of a program that ends with an error.
func exitStatus(err error) int {
	if _, usage := errors.AsType[usageError](err); usage {
		return exitUsage
	}
	return exitFailed
}

// noArguments refuses arguments that are no flags.
func noArguments(cmd *cobra.Command, args []string) error { return asUsage(cobra.NoArgs(cmd, args)) }

// flagError is what cobra calls with a flag that it cannot read.
func flagError(cmd *cobra.Command, err error) error {
	return usageError{fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
}
