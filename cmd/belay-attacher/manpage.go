//go:build manpage

package main

import (
	"flag"
	"strings"

	"github.com/spf13/cobra"
	logsapi "k8s.io/component-base/logs/api/v1"

	"belay.dev/belay/internal/attacher"
	"belay.dev/belay/internal/manpage"
)

// init writes the man page and the completion scripts for a release, and exits.
func init() {
	logsapi.AddGoFlags(logsapi.NewLoggingConfiguration(), flag.CommandLine)
	attacher.RegisterFlags()
	long, examples, _ := strings.Cut(about, "\nExamples:\n")
	cmd := &cobra.Command{
		Use: "belay-attacher [flags]", Short: "Attach and detach the volumes of one CSI driver",
		Long: long, Example: strings.TrimSuffix(examples, "\nFlags:\n"), Run: func(*cobra.Command, []string) {},
	}
	cmd.Flags().AddGoFlagSet(flag.CommandLine)
	manpage.Main(cmd, manpage.Daemons, manpage.Fixed)
}
