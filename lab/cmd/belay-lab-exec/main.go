// Command belay-lab-exec starts the processes of a lab: each writes a record of itself before it becomes its program. It imports little, so
// that this takes milliseconds.
package main

import (
	"os"

	"belay.dev/belay/lab/proc"
)

func main() {
	if proc.Command().Execute() != nil {
		os.Exit(1)
	}
}
