package cli

import (
	"github.com/spf13/cobra"

	"belay.dev/belay/lab/demo"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/nodes"
	"belay.dev/belay/lab/proc"
)

// mount adds the commands of the lab's other parts.
func mount(root *cobra.Command) {
	root.AddCommand(proc.Command(), demo.Command(), labdisk.Command())
	root.AddCommand(nodes.Commands()...)
}
