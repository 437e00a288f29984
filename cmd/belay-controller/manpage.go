//go:build manpage

package main

import (
	logsapi "k8s.io/component-base/logs/api/v1"

	"belay.dev/belay/internal/manpage"
)

// init writes the man pages and completion scripts for a release, or the flags, and exits.
func init() {
	cmd := command()
	sets := (&options{logging: logsapi.NewLoggingConfiguration()}).flags()
	for _, name := range sets.Order {
		manpage.SetGroup(cmd, name, sets.FlagSets[name])
	}
	manpage.Main(cmd, manpage.Daemons, manpage.Asking)
}
