package main

import (
	"flag"
	"fmt"

	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
)

const about = `Attaches and detaches the volumes of one CSI driver. Replaces csi-attacher and accepts
its flags.

Exit status:
  0  stopped by SIGTERM, without leader election
  1  failed; also, as with csi-attacher, stopped by SIGTERM with leader election: the
     log then ends with "Shut down"
  2  wrong usage: an unknown flag or argument, or an invalid value

Flags:
`

// printUsage prints the help.
func printUsage() {
	_, _ = fmt.Fprint(flag.CommandLine.Output(), about)
	flag.PrintDefaults()
}
