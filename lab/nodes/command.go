package nodes

import (
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Commands are the hidden sub-commands by which the lab's program runs a node's
// own processes: node-init, node-agent and container-exec.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		configCommand("node-init", "Run as process 1 of a lab node", runInit),
		configCommand("node-agent", "Run belay's node agent of a lab node", runAgent),
		containerCommand(),
	}
}

// configCommand is a hidden command whose only flag names a node's configuration.
func configCommand(use, short string, run func(*cobra.Command, Config) error) *cobra.Command {
	var file string
	command := &cobra.Command{
		Use: use, Short: short, Hidden: true, Args: cobra.NoArgs, SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error {
			config, err := ReadConfig(file)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(command.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			command.SetContext(ctx)
			return run(command, config)
		},
	}
	command.Flags().StringVar(&file, "config", "", "file with the node's configuration (JSON)")
	if err := command.MarkFlagRequired("config"); err != nil {
		panic(err) // the flag was added one line above
	}
	return command
}
