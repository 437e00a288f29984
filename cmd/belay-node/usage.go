package main

import (
	"errors"

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

// exitStatus is that of a program that ends with an error.
func exitStatus(err error) int {
	if _, usage := errors.AsType[usageError](err); usage {
		return exitUsage
	}
	return exitFailed
}

// flagError is what cobra calls with a flag that it cannot read.
func flagError(_ *cobra.Command, err error) error { return usageError{err} }
