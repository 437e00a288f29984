package bench

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"belay.dev/belay/lab/cluster"
)

// Names of the attacher's figures.
const (
	figureAllAttached = "all attached"
	figureAllDetached = "all detached"
	figurePublish     = "publishes per attach"
	figureUnpublish   = "unpublishes per detach"
	figureOverlaps    = "calls that overlapped"
	figureSecondNode  = "publishes to a second node"
	figureSidecarIn   = "CPU per attach"
	figureSidecarOut  = "CPU per detach"
	figureAllMoved    = "all moved"
	figureWritten     = "attachments written at the start"
	figureSidecarOn   = "start -> first attach"
)

// attacherPlanes are the planes that have an attacher, in the order in which they take turns.
func attacherPlanes() []string { return []string{planeUpstream, planeBelay} }

// tunedFlags raise what bounds an attacher so far that it does not; belay's leaves a quarter of its worker threads to attaches.
// Both attachers take them.
func tunedFlags(s Size) []string {
	return append([]string{"--worker-threads=" + strconv.Itoa(2*s.AttachVolumes)}, cluster.Unthrottled()...)
}

func attacherParts() []part {
	return []part{
		{"one", func(s Size) string {
			return fmt.Sprintf("one volume at a time, with a pause of %v and more before each step: attached, then moved; %d of them with a driver that answers at once, %d with one of %s",
				stepPause, s.Rounds*s.OneVolumes, s.SlowVolumes, spaced(s.SlowLatency))
		}, attacherOne, rigOptions{later: true}},
		{"drain", func(s Size) string {
			return fmt.Sprintf("all %d volumes of a node go to other nodes; upstream as shipped %d times side by side; the others in turn, medians of %d, or of %d with a driver of %s",
				s.DrainVolumes, shippedDrains, s.Rounds, s.slowRounds(), spaced(s.SlowLatency))
		}, attacherDrain, rigOptions{later: true}},
		{"shipped", func(s Size) string {
			return fmt.Sprintf("%d attachments made at once, then deleted at once, flags as shipped, and %d with a driver of %s; upstream once, its latencies side by side; belay's medians of %d, or of %d with a driver of %s",
				s.AttachVolumes, s.DrainVolumes, spaced(s.SlowLatency), s.Rounds, s.slowRounds(), spaced(s.SlowLatency))
		}, shipped, rigOptions{later: true}},
		{"tuned", func(s Size) string {
			return fmt.Sprintf("the same with %s; medians of %d", strings.Join(tunedFlags(s), " "), s.Rounds)
		}, tuned, rigOptions{later: true}},
		{"requests", func(s Size) string {
			return fmt.Sprintf("API requests, counted in the audit log over %d attaches and detaches at once; leases and watches left out", s.FewVolumes)
		}, attacherRequests, rigOptions{audit: true, later: true}},
		{"moves", func(s Size) string {
			return fmt.Sprintf("%d attached volumes: the attachment deleted and another one made, for the next node, in the same moment; a call takes %s",
				s.FewVolumes, spaced(moveLatency))
		}, attacherMoves, rigOptions{later: true}},
		{"shared", func(s Size) string {
			return fmt.Sprintf("one ReadWriteMany volume attached to %s nodes at once, then detached, with %s; a driver that answers at once; medians of %d",
				strings.Trim(strings.ReplaceAll(fmt.Sprint(s.AttachNodes), " ", " and "), "[]"), strings.Join(tunedFlags(s), " "), s.Rounds)
		}, attacherShared, rigOptions{later: true}},
		{"memory", func(s Size) string {
			return fmt.Sprintf("started %d times over %d attached volumes on %d nodes, then left alone for %v", s.Rounds, s.ScaleVolumes, s.ScaleNodes, s.idleTime())
		}, attacherMemory, rigOptions{later: true}},
	}
}

// idleTime is how long each start over a large state is left alone.
func (s Size) idleTime() time.Duration { return s.Idle / time.Duration(max(s.Rounds, 1)) }

const attacherLong = `Sets two attachers side by side, in turn (upstream, belay, upstream, ...), over one API server and a CSI driver in
memory whose calls take a given time:

  upstream  csi-attacher v4.12
  belay     belay-attacher

There is no attach/detach controller: the bench makes and deletes the VolumeAttachments itself, and sees in the API
server when each is attached, and gone. The driver counts the calls for each volume, those that overlap, and publishes
to a node while another one holds the volume. PersistentVolumes are as new in each turn: without the attacher's finalizer.
Only those of a drain have it, as they were attached before.

Parts, each with a lab of its own:

  one       one volume at a time, with a driver that answers at once and one whose calls take 10 s. An attach: from
            creating the VolumeAttachment until status.attached. A move: the VolumeAttachment is deleted, and the next
            one is created as soon as it is gone, until that is attached. belay-attacher as shipped against csi-attacher
            as shipped, and against csi-attacher with the flags of the part tuned. A pause of a second before each step
            keeps upstream's API rate limit from binding
  drain     100 volumes leave one node: their VolumeAttachments are deleted at once, and the next one of each is created
            as soon as it is gone. Measured until the last and until the median volume is attached elsewhere, with a
            driver that takes 0 s, 2 s and 10 s; the same two comparisons
  shipped   500 attachments at once, flags as shipped, with a driver that takes 0 ms, 200 ms and 2 s, 200 with 2 s, and
            100 with 10 s. Upstream's API rate limit (5 a second), or with 10 s its ten worker threads, makes each of these
            last minutes, in which it uses next to nothing: so upstream is measured once, the five of them side by side,
            each with a driver and a csi-attacher of its own. belay's are measured one after the other
  tuned     the first three with --worker-threads and --kube-api-qps and -burst so high that they do not bind, for both; and the
            sidecar's CPU time per attach and detach
  requests  what one attach and one detach cost the API server, counted in its audit log
  moves     200 volumes go to another node: the new attachment is there before the old one is detached, as after a
            forced detach, with two controllers, or with a restored backup. No exclusive volume may be published twice
  shared    one ReadWriteMany volume that 500 nodes, and then 2000, use at once, with the flags of tuned: CPU per attach
            and per detach must not grow with the nodes
  memory    20000 attached volumes on 1000 nodes: peak memory since the start, CPU when nothing happens, and
            that the start writes one object at most, which a new leader's caches must have seen

Each figure is printed with its target and whether belay met it. The exit code is 1 if one was missed. Run it on a
machine with nothing else to do: whatever else runs takes its share of the same processors.`

func attacherCommand() *cobra.Command {
	o := options{parts: attacherParts(), planes: attacherPlanes()}
	return o.command(&cobra.Command{
		Use: "attacher", Short: "Measure belay-attacher: one attach, moves, drains, throughput, calls, API requests, CPU, memory", Long: attacherLong,
		Example: `  belay-lab bench attacher                       all parts, roughly 35 minutes, a third of it upstream as shipped
  belay-lab bench attacher --only one,drain      two parts, roughly 11 minutes
  belay-lab bench attacher --quick --no-targets  small sizes, to see that it works (3 minutes)
  belay-lab bench attacher -o json > bench.json  all samples, for a chart`,
	}, "bench-attacher", `all parts but requests; upstream as shipped has one turn in "shipped" and three in "drain"; with a driver of 10 s there are half as many, and a single one in "one"`)
}
