package cli

import (
	"strings"

	"github.com/spf13/cobra"

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
			func(command *cobra.Command, lab *cluster.Remote, to string) error {
				return lab.SwitchController(command.Context(), to)
			}),
		switchOne("attacher", "Start or stop the attachers that the lab runs beside the cluster",
			"off stops the attachers that the lab runs beside the cluster, and leaves attach and detach to one that is installed in it.",
			[]string{"on", "off"},
			func(command *cobra.Command, lab *cluster.Remote, to string) error {
				return lab.SwitchAttachers(command.Context(), to == "on")
			}))
	return command
}

func switchOne(what, short, long string, to []string, do func(*cobra.Command, *cluster.Remote, string) error) *cobra.Command {
	var name string
	command := &cobra.Command{
		Use: what + " " + strings.Join(to, "|"), Short: short, Long: short + ".\n" + long, ValidArgs: to,
		Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		RunE: func(command *cobra.Command, args []string) error {
			lab, err := cluster.Find(name)
			if err != nil {
				return err
			}
			return do(command, lab, args[0])
		},
	}
	nameFlag(command, &name)
	return command
}
