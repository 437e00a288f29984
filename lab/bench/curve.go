package bench

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/timeline"
)

const (
	// curvePerNode is how many volumes each node has. A node also has half as many pods without a volume.
	curvePerNode = 20
	// PlaneBelayGC is belay with the garbage collector set as Go's default is, and so as upstream's programs run.
	PlaneBelayGC = "belay, GOGC=100"
	// curveWindow is how long a plane is left alone: a comparison with the driver's list comes every minute.
	curveWindow = 65 * time.Second
	// curveAttaches are made one at a time.
	curveAttaches = 20
	// shippedVolumes is for how many volumes the controller's memory limit is shipped, and largeLimit what docs/adopt-controller.md has
	// an operator set for up to twice as many.
	shippedVolumes, largeLimit = 50_000, "1800MiB"
	// curveLimit bounds the start, and the burst.
	curveLimit = 10 * time.Minute
)

// Names of the curve's figures, as in its file.
const (
	curveList      = "time to list all objects"
	curveFirst     = "start -> first write"
	curveStartCPU  = "CPU until then"
	curveMemory    = "peak memory"
	curveIdle      = "CPU when nothing happens"
	curveCompare   = "idle CPU per comparison with the driver's list"
	CurveAttach    = "pod bound -> reported"
	curveLeast     = "pod bound -> reported, least"
	curveGreatest  = "pod bound -> reported, greatest"
	curveBurst     = "burst: first pod made -> last reported"
	curveBurstCPU  = "burst: CPU per attach"
	curveBurstPeak = "peak memory after the burst"
)

// curve measures both planes at one size after the other.
type curve struct {
	*rig

	// extras are the volumes of the burst.
	extras  int
	volumes int
	out     curveOut
}

const curveLong = `Starts upstream's and belay's controller and attacher over clusters of growing size, in turn, and measures what each costs:
time from the start to the first write, beside the time that listing the objects takes; peak memory; CPU when nothing happens, in
all and per comparison with the driver's list; the latency of one attach; and a burst of attaches on top.

A size is a number of attached volumes. There are 20 of them on each node, and half as many pods without a volume as with one:
100000 volumes are 5000 nodes and 150000 pods, as objects in a real API server and etcd, which need about 16 GiB. The API server makes
the first node with its objects, which are then copied in etcd.

Upstream's clients are not throttled. Belay runs as shipped (beyond 50,000 volumes with the memory limit that docs/adopt-controller.md
names for 100,000), and a second time with GOGC=100, which is what upstream's run with.

The figures are written as CSV, after comments that name the versions, the machine and the flags. With --file F they are written to
F.partial, which replaces F when it is complete: a run that fails or is interrupted leaves F as it was. "make scale" also draws them and
writes docs/performance.md.`

// scaleCommand is `belay-lab bench scale`.
func scaleCommand() *cobra.Command {
	var sizes []int
	var name, file string
	var extras int
	command := &cobra.Command{
		Use: "scale", Short: "Measure both planes at growing sizes, up to 100,000 volumes on 5,000 nodes", Long: curveLong,
		Example: `  belay-lab bench scale --file scale.csv                   all sizes, about 40 minutes
  belay-lab bench scale --sizes 200,2000 --extras 200      two small ones, to see that it works (10 minutes)`,
		Args: usage.NoArgs, SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error {
			for i, size := range sizes {
				if size < curvePerNode || i > 0 && size <= sizes[i-1] {
					return usage.Errorf("--sizes must grow, from %d volumes, not be %v", curvePerNode, sizes)
				}
			}
			if extras < curveAttaches {
				return usage.Errorf("--extras must be at least %d, not %d", curveAttaches, extras)
			}
			if err := cluster.CheckName(name); err != nil {
				return err
			}
			measure := func(out io.Writer) error {
				to := curveOut{to: out, rows: csv.NewWriter(out)}
				if err := to.machineFacts(usage.Version(command.Root().Version)); err != nil {
					return err
				}
				return runCurve(command.Context(), name, sizes, extras, to, command.PrintErrf)
			}
			if file == "" {
				return measure(command.OutOrStdout())
			}
			return replaceFile(file, measure)
		},
	}
	flags := command.Flags()
	flags.StringVar(&name, "name", "bench-scale", "name of the lab")
	flags.IntSliceVar(&sizes, "sizes", []int{200, 20000, 100000}, "numbers of attached volumes, growing")
	flags.IntVar(&extras, "extras", 2000, "how many volumes are attached at once on top of each size")
	flags.StringVar(&file, "file", "", "file that the figures replace, as CSV, when all are measured (default stdout)")
	return command
}

// runCurve measures all sizes in one lab, which grows, and writes each figure when it is known.
func runCurve(ctx context.Context, name string, sizes []int, extras int, out curveOut, progress func(string, ...any)) (err error) {
	began := time.Now()
	say := func(format string, args ...any) {
		progress("[%6.1fs] %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	r, err := openRig(ctx, rigOptions{name: name, later: true, say: say})
	if err != nil {
		return err
	}
	defer func() { err = stopped(ctx, errors.Join(err, r.close(ctx))) }()
	c := &curve{rig: r, extras: extras, out: out}
	size := quickSize()
	size.AttachVolumes = extras / 20 // the flags that limit nothing
	r.ownAttacher = map[string][]string{planeUpstream: tunedFlags(size)}
	if err := r.equip(ctx); err != nil {
		return err
	}
	r.driver.lists = true
	err = errors.Join(out.runFacts(filepath.Dir(r.lab.Kubectl()), r.ownAttacher[planeUpstream], extras),
		out.row("volumes", "nodes", "pods", "plane", "component", "figure", "unit", "value"))
	if err != nil {
		return err
	}
	if err := c.makeExtras(ctx); err != nil {
		return err
	}
	var failed []error
	for i, size := range sizes {
		if err := c.grow(ctx, size); err != nil {
			return err
		}
		if err := c.list(ctx); err != nil {
			return err
		}
		for _, plane := range turns([]string{planeUpstream, planeBelay, PlaneBelayGC}, i) {
			if err := c.turn(ctx, plane); err != nil {
				// What another plane cannot do at this size says nothing about the next one, and making the objects took long.
				err = fmt.Errorf("%d volumes, %s: %w", size, plane, err)
				c.say("%v", err)
				failed = append(failed, err)
				if ctx.Err() != nil || errors.Is(err, errNotWritten) {
					return errors.Join(failed...)
				}
			}
		}
	}
	return errors.Join(failed...)
}

// figure writes one figure.
func (c *curve) figure(plane, component, figure, unit string, value float64) error {
	err := c.out.row(strconv.Itoa(c.volumes), strconv.Itoa(c.nodes()), strconv.Itoa(c.volumes+c.volumes/2), plane, component, figure, unit,
		strconv.FormatFloat(value, 'f', 3, 64))
	if err != nil {
		return err
	}
	c.say("%d volumes: %s %s: %s %.3f %s", c.volumes, plane, component, figure, value, unit)
	return nil
}

func (c *curve) nodes() int { return c.volumes / curvePerNode }

func (c *curve) makeExtras(ctx context.Context) error {
	return each(ctx, c.extras, func(ctx context.Context, i int) error {
		if i%extrasPerNode != 0 {
			return c.volume(ctx, extraVolume(i))
		}
		return errors.Join(c.node(ctx, extraNode(i)), c.volume(ctx, extraVolume(i)))
	})
}

// grow makes nodes with attached volumes and pods, until there are so many: the first one by the API server, the others by copying it.
func (c *curve) grow(ctx context.Context, volumes int) (err error) {
	began, first := time.Now(), c.nodes()
	if first == 0 {
		if err := c.oldNode(ctx, 0); err != nil {
			return err
		}
		first = 1
	}
	copies, err := copiesOf(ctx, c.lab, nodeName(0), volumeName(0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, copies.etcd.Close()) }()
	for node := first; node < volumes/curvePerNode; node++ {
		on := volumesOn(node)
		if err := copies.copyNode(ctx, nodeName(node), on); err != nil {
			return err
		}
		for k, volume := range on {
			err := errors.Join(copies.copyVolume(ctx, volume, nodeName(node)), c.driver.hold(volume, nodeName(node)))
			if k%2 == 0 {
				err = errors.Join(err, copies.copyPlain(ctx, plainPod(volume), nodeName(node)))
			}
			if err != nil {
				return err
			}
		}
	}
	if err := copies.flush(ctx); err != nil {
		return err
	}
	c.volumes = volumes
	c.say("%d volumes are stored (%.0f s)", volumes, time.Since(began).Seconds())
	return pause(ctx, rest) // the API server reads them
}

// volumesOn are the names of a node's volumes.
func volumesOn(node int) (names []string) {
	for k := range curvePerNode {
		names = append(names, volumeName(node*curvePerNode+k))
	}
	return names
}

// oldNode makes a node with attached volumes and pods.
func (c *curve) oldNode(ctx context.Context, node int) error {
	old, on := objects{client: c.client, labels: map[string]string{labelOld: ""}}, volumesOn(node)
	if err := old.node(ctx, nodeName(node), on...); err != nil {
		return err
	}
	for k, volume := range on {
		err := errors.Join(old.attachedPod(ctx, volume, nodeName(node)), c.driver.hold(volume, nodeName(node)))
		if k%2 == 0 {
			err = errors.Join(err, old.plainPod(ctx, plainPod(volume), nodeName(node)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func oldPod(volume string) string   { return "old-" + volume }
func plainPod(volume string) string { return "plain-" + volume }

// attachedPod makes a volume that was attached long ago, and its pod.
func (o objects) attachedPod(ctx context.Context, volume, node string) error {
	if err := o.volume(ctx, volume, kube.AttacherFinalizer(driverName)); err != nil {
		return err
	}
	if err := o.pod(ctx, oldPod(volume), volume, node); err != nil {
		return err
	}
	return o.attached(ctx, driverName, volume, node)
}

// plainPod makes a pod that has no volume.
func (o objects) plainPod(ctx context.Context, name, node string) error {
	pod := podOf(name, "")
	pod.Spec.NodeName, pod.Spec.Volumes, pod.Spec.Containers[0].VolumeMounts = node, nil, nil
	return o.createPod(ctx, pod)
}

// list measures how long a client needs that fills caches of what a controller reads, and does nothing else.
func (c *curve) list(ctx context.Context) error {
	config := restclient.CopyConfig(c.lab.RESTConfig())
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = config.ContentType
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	ctx, stop := context.WithTimeoutCause(ctx, curveLimit, fmt.Errorf("listing took more than %v", curveLimit))
	defer stop()
	factory := informers.NewSharedInformerFactory(client, 0)
	core, storage := factory.Core().V1(), factory.Storage().V1()
	core.Pods().Informer()
	core.Nodes().Informer()
	core.PersistentVolumes().Informer()
	core.PersistentVolumeClaims().Informer()
	storage.VolumeAttachments().Informer()
	storage.CSINodes().Informer()
	storage.CSIDrivers().Informer()
	began := time.Now()
	factory.StartWithContext(ctx)
	if result := factory.WaitForCacheSyncWithContext(ctx); result.Err != nil {
		return fmt.Errorf("listing all objects: %w", result.Err)
	}
	took := time.Since(began)
	stop()
	factory.Shutdown()
	return c.figure("client", "", curveList, "s", took.Seconds())
}

// turn is one turn of one plane at the present size; it leaves nothing of the plane behind.
func (c *curve) turn(ctx context.Context, plane string) error {
	var environment []string
	runs := plane
	switch {
	case plane == PlaneBelayGC:
		runs, environment = planeBelay, []string{"GOGC=100", "GOMEMLIMIT=off"}
	case plane == planeBelay && c.volumes > shippedVolumes:
		environment = []string{"GOMEMLIMIT=" + largeLimit}
	}
	began := time.Now()
	err := c.start(runs, environment...)
	if err == nil {
		err = c.measure(ctx, plane, began)
	}
	if err != nil {
		err = errors.Join(err, c.withoutPods(ctx))
	}
	return errors.Join(err, c.stop(ctx))
}

// withoutPods deletes what pods a failed turn left; the next plane detaches their volumes.
func (c *curve) withoutPods(ctx context.Context) error {
	added := metav1.ListOptions{LabelSelector: "!" + labelOld}
	err := c.client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, added)
	if err != nil {
		return fmt.Errorf("deleting the pods of a failed turn: %w", err)
	}
	return nil
}

// measure takes the figures of a plane that was started.
func (c *curve) measure(ctx context.Context, plane string, began time.Time) error {
	if err := c.first(ctx, plane, began); err != nil {
		return err
	}
	if err := c.alone(ctx, plane); err != nil {
		return err
	}
	if plane == PlaneBelayGC { // the rest hardly depends on the collector
		return nil
	}
	if err := c.latency(ctx, plane); err != nil {
		return err
	}
	return c.burst(ctx, plane)
}

// first waits for the plane's first write.
func (c *curve) first(ctx context.Context, plane string, began time.Time) error {
	ready, err := c.probe(ctx, began)
	if err != nil {
		return err
	}
	used, err := c.cpu()
	if err != nil {
		return err
	}
	return errors.Join(c.figure(plane, "both", curveFirst, "s", ready.Seconds()), c.figure(plane, "both", curveStartCPU, "s", used.Seconds()))
}

// alone measures memory and CPU while nothing happens.
func (c *curve) alone(ctx context.Context, plane string) error {
	if err := pause(ctx, rest); err != nil {
		return err
	}
	before, compared, from := map[string]time.Duration{}, c.driver.comparisons(), time.Now()
	for _, component := range c.running {
		used, err := c.cpuOfComponent(component)
		if err != nil {
			return err
		}
		before[component] = used
	}
	if err := pause(ctx, curveWindow); err != nil {
		return err
	}
	elapsed := time.Since(from)
	compared = c.driver.comparisons() - compared
	for _, component := range c.running {
		used, err := c.cpuOfComponent(component)
		if err != nil {
			return err
		}
		used -= before[component]
		is := c.role(component)
		if err := c.figure(plane, is, curveIdle, "% of a core", 100*used.Seconds()/elapsed.Seconds()); err != nil {
			return err
		}
		if is == "attacher" && compared > 0 {
			if err := c.figure(plane, is, curveCompare, "ms", milli(used)/float64(compared)); err != nil {
				return err
			}
		}
	}
	return c.memory(plane, curveMemory)
}

func (c *curve) role(component string) string {
	if component == attacherComponent {
		return "attacher"
	}
	return "controller"
}

func (c *curve) cpuOfComponent(component string) (time.Duration, error) {
	pid, err := c.pidOf(component)
	if err != nil {
		return 0, err
	}
	return cpuTime(pid)
}

func (c *curve) memory(plane, figure string) error {
	for _, component := range c.running {
		pid, err := c.pidOf(component)
		if err != nil {
			return err
		}
		peak, err := peakMemory(pid)
		if err != nil {
			return err
		}
		if err := c.figure(plane, c.role(component), figure, "MiB", float64(peak)/(1<<20)); err != nil {
			return err
		}
	}
	return nil
}

// latency attaches and detaches one volume more at a time.
func (c *curve) latency(ctx context.Context, plane string) error {
	var all []float64
	for i := range curveAttaches {
		if err := c.breathe(ctx); err != nil {
			return err
		}
		pod, err := c.newPod(ctx, extraVolume(i))
		if err != nil {
			return err
		}
		if err := c.breathe(ctx); err != nil {
			return err
		}
		took, err := c.attach(ctx, pod, extraVolume(i), extraNode(i))
		if err != nil {
			return err
		}
		all = append(all, milli(took))
		if _, err := c.detach(ctx, pod, extraVolume(i), extraNode(i)); err != nil {
			return err
		}
	}
	return errors.Join(c.figure(plane, "both", CurveAttach, "ms", timeline.Median(all)),
		c.figure(plane, "both", curveLeast, "ms", slices.Min(all)), c.figure(plane, "both", curveGreatest, "ms", slices.Max(all)))
}

// burst attaches many volumes more at once.
func (c *curve) burst(ctx context.Context, plane string) error {
	pods := c.podNames(c.extras)
	all := &samples{}
	used, err := c.atOnce(ctx, all, step{
		n: c.extras, within: curveLimit, whole: curveBurst, tail: figureBurst, cpu: curveBurstCPU,
		do:     func(ctx context.Context, i int) error { return c.pod(ctx, pods[i], extraVolume(i), extraNode(i)) },
		begins: func(i int) fact { return podBound(pods[i]) },
		ends:   func(i int) fact { return volumeReported(extraNode(i), extraVolume(i)) },
	})
	if err != nil {
		return err
	}
	if err := errors.Join(
		c.figure(plane, "both", curveBurst, "ms", timeline.Median(all.all[curveBurst][c.plane])), c.figure(plane, "both", curveBurstCPU, "ms", milli(used)),
		c.memory(plane, curveBurstPeak),
	); err != nil {
		return err
	}
	if err := c.withoutExtras(ctx, pods); err != nil {
		return err
	}
	// The next plane's attacher finds the volumes as new: without its finalizer.
	return each(ctx, c.extras, func(ctx context.Context, i int) error { return c.unprotect(ctx, extraVolume(i)) })
}
