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

Examples:
  # In the driver's Deployment, with the arguments of the csi-attacher container.
  belay-attacher --csi-address=/csi/csi.sock --leader-election --http-endpoint=:8080

  # Outside the cluster, for one driver whose socket is on this machine.
  belay-attacher --kubeconfig=$HOME/.kube/config --csi-address=/run/csi/socket --v=4

Flags:
`

// printUsage prints the help.
func printUsage() {
	_, _ = fmt.Fprint(flag.CommandLine.Output(), about)
	flag.PrintDefaults()
}
