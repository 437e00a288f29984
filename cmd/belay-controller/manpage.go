//go:build manpage

package main

import (
	"belay.dev/belay/internal/manpage"
)

// init writes the man pages and completion scripts for a release, and exits.
func init() { manpage.Main(command(), manpage.Daemons, manpage.Asking) }
