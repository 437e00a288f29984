package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/cluster"
)

func bmcCommand() *cobra.Command {
	var name string
	command := &cobra.Command{
		Use: "bmc NODE FAULT", Short: "Break the BMC of a node, or repair it",
		Long: "Break the BMC of a node, or repair it. FAULT is\n\n" +
			"  ok         no fault\n" +
			"  ignore     it accepts commands and does not carry them out\n" +
			"  lie        it says that the machine is off, also when it is on\n" +
			"  off-fails  it answers the command to switch off with an error; it says rightly whether the machine is on\n" +
			"  hang       it takes a minute for an answer\n" +
			"  dead       it does not answer\n\n" +
			"The lab has BMCs if it was started with --bmc or --recovery; belay-lab status shows their addresses.",
		Example: "  belay-lab bmc node-1 ignore\n  echo \"action=status\nip=127.0.0.1\nipport=PORT\nlanplus=1\ncipher=3\nusername=" + cluster.BMCUser + "\npassword=" +
			cluster.BMCPassword + "\" | fence_ipmilan",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage.Errorf("bmc wants a node and a fault, such as: belay-lab bmc node-1 ignore")
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			fault, err := cluster.ParseBMCFault(args[1])
			if err != nil {
				return err
			}
			lab, err := cluster.Find(name)
			if err != nil {
				return err
			}
			return lab.FaultBMC(command.Context(), args[0], fault)
		},
	}
	nameFlag(command, &name)
	return command
}

// chassisWithin bounds one answer of a BMC; a hanging one takes as long.
const chassisWithin = time.Minute

// chassisCommand is what the BMC of a node runs.
func chassisCommand() *cobra.Command {
	var name, node string
	command := &cobra.Command{
		Use: cluster.ChassisVerb + " get|set PROPERTY [VALUE]", Short: "Answer the BMC of a node", Hidden: true, Args: cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			lab, err := cluster.Find(name)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(command.Context(), chassisWithin)
			defer cancel()
			answer, err := lab.Chassis(ctx, node, args)
			if answer != "" {
				say(command.OutOrStdout(), "%s\n", answer)
			}
			return err
		},
	}
	nameFlag(command, &name)
	command.Flags().StringVar(&node, "node", "", "the node")
	return command
}
