package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/cluster"
)

func switchCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "switch", Short: "Hand attach and detach of a lab over",
		Long: "Hand attach and detach of a lab over, as on a cluster: to another controller, or to a controller or attacher that is\n" +
			"installed in the lab, for instance with Helm.",
	}
	command.AddCommand(
		switchOne("controller", "Choose the attach/detach controller: that of kube-controller-manager, belay's, or none",
			"upstream restarts kube-controller-manager with its attach/detach controller, belay and none without. belay also starts a\n"+
				"belay-controller beside the lab; none leaves that to you.",
			[]string{cluster.PlaneUpstream, cluster.PlaneBelay, cluster.PlaneNone},
			(*cluster.Remote).SwitchController),
		switchOne("attacher", "Start or stop the attachers that the lab runs beside the cluster",
			"off stops the attachers that the lab runs beside the cluster, and leaves attach and detach to one that is installed in it.",
			[]string{cluster.AttachersOn, cluster.AttachersOff},
			(*cluster.Remote).SwitchAttachers))
	return command
}

func switchOne(what, short, long string, to []string, do func(lab *cluster.Remote, ctx context.Context, to string) error) *cobra.Command {
	var name string
	command := &cobra.Command{
		Use: what + " " + strings.Join(to, "|"), Short: short, Long: short + ".\n" + long, ValidArgs: to,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(to, args[0]) {
				return usage.Errorf("switch %s wants one of %s", what, strings.Join(to, ", "))
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			lab, err := cluster.Find(name)
			if err != nil {
				return err
			}
			if err := do(lab, command.Context(), args[0]); err != nil {
				return err
			}
			say(command.OutOrStdout(), "%s of lab %s: %s\n", what, name, args[0])
			return nil
		},
	}
	nameFlag(command, &name)
	return command
}
