package bench

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func nodeParts() []part {
	return []part{
		{"latency", func(s Size) string {
			return fmt.Sprintf("one volume at a time; medians of %d, with driver calls of %s", s.NodeCycles, spacedList(s.NodeLatencies))
		}, nodeLatency, rigOptions{later: true}},
		{"parallel", func(s Size) string {
			return fmt.Sprintf("one volume, and %d of as many pods, reported in one write -> the last published, with driver calls of %s; medians of %d",
				s.NodeParallel, spacedList(s.ParallelLatencies), s.Rounds)
		}, nodeParallel, rigOptions{later: true}},
		{"memory", func(s Size) string {
			return fmt.Sprintf("%d pods with %d volumes each on one belay-node, then left alone for %v", s.NodePods, volumesPerPod, s.Idle)
		}, nodeMemory, rigOptions{later: true}},
		{"agents", func(s Size) string {
			return fmt.Sprintf("%d agents of %d volumes each in one process, with the driver in it, then left alone for %v", s.Agents, s.AgentVolumes, s.Idle)
		}, nodeAgents, rigOptions{later: true}},
	}
}

func spacedList(all []time.Duration) string {
	var words []string
	for _, d := range all {
		words = append(words, spaced(d))
	}
	return strings.Join(words, ", ")
}

const nodeLong = `Measures the node agent with a CSI driver in memory that mounts nothing and whose calls take a given time. The
bench plays the controller and the attacher: it makes VolumeAttachments that are attached and reports volumes on the Node.
The agent is belay-node as shipped, with the rights of its node and no others; it writes and syncs its records to the
disk as usual. There is no other plane to compare with: kubelet publishes volumesInUse every 10 s, and looks at its
volumes every 100 ms.

Parts, each with a lab of its own:

  latency   one volume at a time: pod made -> in use; reported -> published; pod deleted -> taken out of volumesInUse.
            The last two are counted from the moment at which the request is sent, so what the API server takes is in
            them; what the driver takes is not
  parallel  100 volumes of as many pods are reported in one write -> the last is published, against one volume, the
            driver's time included. A driver that answers at once leaves nothing to do side by side but processor time,
            of which 100 volumes need 100 times as much: that figure has no target
  memory    500 pods with two volumes each: peak memory, and CPU when nothing happens but what
            kubelet does, too, at its intervals: stats are asked for, and claims read in case one grew
  agents    1000 agents of 10 volumes each in one process, through the Go API, as a scale test runs them, with
            their driver: peak memory

Each figure is printed with its target and whether it was met. The exit code is 1 if one was missed. Run it on a
machine with nothing else to do.`

func nodeCommand() *cobra.Command {
	o := options{parts: nodeParts(), planes: []string{planeBelay}}
	return o.command(&cobra.Command{
		Use: "node", Short: "Measure the node agent: latency, parallel mounts, CPU, memory", Long: nodeLong,
		Example: `  belay-lab bench node                        all parts, about 8 minutes
  belay-lab bench node --only latency         one part
  belay-lab bench node --quick --no-targets   small sizes, to see that it works (1 minute)
  belay-lab bench node -o json > bench.json   all samples, for a chart`,
	}, "bench-node", "parallel")
}
