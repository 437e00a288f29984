package nodes

import (
	"fmt"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/usage"
)

// Commands are the hidden sub-commands by which the lab's program runs a node's
// own processes: node-init, node-agent and container-exec.
func Commands() []*cobra.Command {
	var flags AgentFlags
	agent := configCommand(agentVerb, "Run belay's node agent of a lab node", func(command *cobra.Command, config Config) error {
		return runAgent(command, config, flags)
	})
	flags.register(agent)
	return []*cobra.Command{
		configCommand("node-init", "Run as process 1 of a lab node", runInit),
		agent,
		containerCommand(),
	}
}

// agentVerb is the command that runs belay's node agent.
const agentVerb = "node-agent"

// AgentFlags are the flags of belay-node that belay's nodes of the lab take as well. The lab itself sets the name of the
// node, its root directory, the credential and the addresses to serve on.
type AgentFlags struct {
	statsPeriod time.Duration
	verbosity   int
}

func (f *AgentFlags) register(command *cobra.Command) {
	flags := command.Flags()
	flags.DurationVar(&f.statsPeriod, "volume-stats-agg-period", 0, "interval of NodeGetVolumeStats calls for each volume; a negative value disables them")
	flags.IntVarP(&f.verbosity, "v", "v", 0, "log level, 0 or more (default: that of the lab)")
	command.SetFlagErrorFunc(usage.FlagError)
}

// CheckAgentArgs returns an error if belay's node agent does not have these flags.
func CheckAgentArgs(args []string) error {
	command := &cobra.Command{Use: agentVerb}
	var parsed AgentFlags
	parsed.register(command)
	err := usage.ParseError(command.ParseFlags(args))
	if err == nil {
		err = usage.CheckVerbosity("v", parsed.verbosity)
	}
	if err != nil {
		return fmt.Errorf("--node-arg: %w (on belay's nodes of the lab, the agent has the flags --v and --volume-stats-agg-period)", err)
	}
	if rest := command.Flags().Args(); len(rest) > 0 {
		return fmt.Errorf("--node-arg is %q, but must be a flag such as --v=4", rest[0])
	}
	return nil
}

// configCommand is a hidden command whose only flag names a node's configuration.
func configCommand(use, short string, run func(*cobra.Command, Config) error) *cobra.Command {
	var file string
	command := &cobra.Command{
		Use: use, Short: short, Hidden: true, Args: usage.NoArgs, SilenceUsage: true,
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
