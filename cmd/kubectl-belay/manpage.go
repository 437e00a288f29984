//go:build manpage

package main

import (
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"belay.dev/belay/internal/kubectl"
	"belay.dev/belay/internal/manpage"
)

// init writes the man pages and completion scripts for a release, and exits.
func init() {
	manpage.Main(kubectl.NewCommand(genericiooptions.IOStreams{}, version), manpage.Commands, manpage.Asking)
}
