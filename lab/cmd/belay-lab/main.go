// Command belay-lab runs the lab: a real control plane, nodes and a storage on one machine.
package main

import (
	"os"

	"belay.dev/belay/lab/cli"
)

// version is set at link time.
var version = "devel"

func main() {
	os.Exit(cli.Main(version, os.Args[1:]))
}
