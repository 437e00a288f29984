package field

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// onTerminal runs a command whose standard output is a terminal of a width, and returns what it printed there.
func onTerminal(command *exec.Cmd, width int) (printed string, err error) {
	screen, line, err := openTerminal(width)
	if err != nil {
		return "", err
	}
	defer func() { _ = screen.Close() }()
	command.Stdout = line
	if err := command.Start(); err != nil {
		return "", errors.Join(err, line.Close())
	}
	if err := line.Close(); err != nil { // the command has its own
		return "", fmt.Errorf("closing the terminal: %w", err)
	}
	all, err := io.ReadAll(screen)
	if err != nil && !errors.Is(err, unix.EIO) { // EIO: the last program with the terminal has ended
		return "", fmt.Errorf("reading the terminal: %w", err)
	}
	return string(all), command.Wait()
}

// openTerminal opens a pseudoterminal: the side of the screen, and that of the program (pty(7)).
func openTerminal(width int) (screen, line *os.File, err error) {
	screen, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("opening a terminal: %w", err)
	}
	fd := int(screen.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		line, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err == nil {
		_, err = term.MakeRaw(int(line.Fd())) // else each end of a line gets a carriage return
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(line.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: uint16(width)})
	}
	if err != nil {
		return nil, nil, fmt.Errorf("setting the terminal up: %w", errors.Join(err, screen.Close()))
	}
	return screen, line, nil
}
