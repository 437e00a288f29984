package proc

import (
	"fmt"
	"os"
	"runtime"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Program is the name of the program that a child starts as, and by which it becomes a recorded process. See Command.
const Program = "belay-lab-exec"

// Command is all of Program.
func Command() *cobra.Command {
	var shim shim
	command := &cobra.Command{
		Use:          Program + " --record FILE --name NAME -- PROGRAM ARGS...",
		Short:        "Write a record of this process, then become PROGRAM, for belay-lab",
		Args:         cobra.MinimumNArgs(1),
		SilenceUsage: true,
		RunE: func(_ *cobra.Command, args []string) error {
			return shim.become(args)
		},
	}
	flags := command.Flags()
	flags.StringVar(&shim.record, "record", "", "where to write the record")
	flags.StringVar(&shim.name, "name", "", "name of the component")
	flags.IntVar(&shim.parent, "parent", 0, "pid of the parent; if it is gone, do not start")
	flags.StringVar(&shim.hostname, "hostname", "", "hostname that PROGRAM sees, if not the machine's")
	return command
}

type shim struct {
	name     string
	record   string
	parent   int
	hostname string
}

// become writes the record and executes the program in this process. It returns only on failure.
func (s shim) become(args []string) error {
	self, err := Self(s.name, args[0])
	if err != nil {
		return err
	}
	if err := s.rename(); err != nil {
		return err
	}
	if s.record != "" {
		if err := self.Write(s.record); err != nil {
			return err
		}
	}
	// The parent may have been killed before the record was there, and the process that cleans up after it
	// may have looked by then. So first the record, then the look at the parent: if it died later
	// than this, the record was there before it died.
	if s.parent != 0 && os.Getppid() != s.parent {
		if s.record != "" {
			_ = os.Remove(s.record)
		}
		return fmt.Errorf("the parent %d of %s has gone: not started", s.parent, s.name)
	}
	if err := unix.Exec(args[0], args, os.Environ()); err != nil {
		return fmt.Errorf("starting %s: %w", args[0], err)
	}
	return nil
}

// rename gives this process a hostname of its own. A namespace belongs to a thread, and the program continues on the one that executes it.
func (s shim) rename() error {
	if s.hostname == "" {
		return nil
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
		return fmt.Errorf("making a hostname for %s: %w", s.name, err)
	}
	if err := unix.Sethostname([]byte(s.hostname)); err != nil {
		return fmt.Errorf("setting the hostname of %s: %w", s.name, err)
	}
	return nil
}
