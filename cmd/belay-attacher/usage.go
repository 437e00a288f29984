package main

import (
	"flag"
	"fmt"
)

const about = `Attaches and detaches the volumes of one CSI driver, in the place of csi-attacher
and with its flags.

Exit status:
  0  it was stopped by SIGTERM, without leader election
  1  it failed; also, as with csi-attacher, it was stopped by SIGTERM with leader
     election: then the log ends with "Shut down"
  2  wrong usage: an unknown flag or argument, or an invalid value

Flags:
`

// printUsage is what --help prints.
func printUsage() {
	_, _ = fmt.Fprint(flag.CommandLine.Output(), about)
	flag.PrintDefaults()
}
