package proc

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// ExecVerb is the hidden sub-command that the binary holding this package must offer: it is how
// a child becomes a recorded process. See Command.
const ExecVerb = "proc-exec"

// Command is the hidden sub-command ExecVerb.
func Command() *cobra.Command {
	var shim shim
	command := &cobra.Command{
		Use:    ExecVerb + " --record FILE --name NAME -- PROGRAM ARGS...",
		Short:  "Write a record of this process, then become PROGRAM",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return shim.become(args)
		},
	}
	flags := command.Flags()
	flags.StringVar(&shim.record, "record", "", "where to write the record")
	flags.StringVar(&shim.name, "name", "", "name of the component")
	flags.IntVar(&shim.parent, "parent", 0, "pid of the parent; if it is gone, do not start")
	flags.StringArrayVar(&shim.binds, "bind", nil, "FROM:TO, a file shown at another place to this process alone")
	return command
}

type shim struct {
	name   string
	record string
	parent int
	binds  []string
}

// become writes the record and executes the program in this process. It returns only on failure.
func (s shim) become(args []string) error {
	self, err := Self(s.name, args[0])
	if err != nil {
		return err
	}
	if s.record != "" {
		if err := self.Write(s.record); err != nil {
			return err
		}
	}
	// The parent may have been killed before the record was there, and whoever cleans up after it
	// may have looked by then. So first the record, then the look at the parent: if it died later
	// than this, the record was there before it died.
	if s.parent != 0 && os.Getppid() != s.parent {
		if s.record != "" {
			_ = os.Remove(s.record)
		}
		return fmt.Errorf("the parent %d of %s has gone: not started", s.parent, s.name)
	}
	// Namespaces belong to the thread; exec keeps those of the thread that calls it.
	runtime.LockOSThread()
	if err := s.bindFiles(); err != nil {
		return err
	}
	if err := unix.Exec(args[0], args, os.Environ()); err != nil {
		return fmt.Errorf("starting %s: %w", args[0], err)
	}
	return nil
}

// bindFiles gives this process a mount namespace in which some files show other files' content.
func (s shim) bindFiles() error {
	if len(s.binds) == 0 {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("making a mount namespace for %s: %w", s.name, err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mounts of %s private: %w", s.name, err)
	}
	for _, bind := range s.binds {
		from, to, ok := strings.Cut(bind, ":")
		if !ok {
			return fmt.Errorf("--bind wants FROM:TO, not %q", bind)
		}
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("showing %s at %s to %s: %w", from, to, s.name, err)
		}
	}
	return nil
}
