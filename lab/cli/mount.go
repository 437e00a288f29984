package cli

import (
	"github.com/spf13/cobra"

	"belay.dev/belay/lab/bench"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/demo"
	"belay.dev/belay/lab/drivercheck"
	"belay.dev/belay/lab/field"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/nodes"
)

// mount adds the commands of the lab's other parts.
func mount(root *cobra.Command) {
	root.AddCommand(demo.Command(), bench.Command(), labdisk.Command(), faultCommand(), drivercheck.Command(), field.Command())
	root.AddCommand(nodes.Commands()...)
}

// faultCommand steers the storage of a running lab, which it finds by name.
func faultCommand() *cobra.Command {
	var name string
	command := labdisk.FaultCommand(func(*cobra.Command) (*labdisk.Client, error) {
		lab, err := cluster.Find(name)
		if err != nil {
			return nil, err
		}
		return labdisk.Dial(lab.FabricSocket())
	})
	command.PersistentFlags().StringVar(&name, "name", "lab", "name of the lab")
	return command
}
