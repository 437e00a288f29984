package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// extraPrefix begins the names of the nodes on which planes attach more volumes.
	extraPrefix = "hollow-extra-"
	// extrasPerNode is how many volumes more each of those gets.
	extrasPerNode = 10
	// readyLimit bounds the time until a plane attaches over a large state.
	readyLimit = 5 * time.Minute
	// rest is the time between the probe and the measurement of what a plane costs when nothing happens.
	rest = 10 * time.Second
)

func extraNode(i int) string   { return fmt.Sprintf("%s%04d", extraPrefix, i/extrasPerNode) }
func extraVolume(i int) string { return fmt.Sprintf("vol-extra-%05d", i) }

// scale starts the planes over a large state in which nothing is to be done.
func scale(ctx context.Context, size Size, r *rig) ([]*Figure, error) {
	if err := r.seed(ctx, size); err != nil {
		return nil, err
	}
	if err := r.equip(ctx); err != nil {
		return nil, err
	}
	before, err := r.versions(ctx)
	if err != nil {
		return nil, err
	}
	got := &samples{}
	for _, plane := range []string{planeUpstream, planeBelay} {
		if err := r.scaleOf(ctx, size, plane, got); err != nil {
			return nil, fmt.Errorf("scale of %s: %w", plane, err)
		}
		after, err := r.versions(ctx)
		if err != nil {
			return nil, err
		}
		got.add(figureChanged, plane, float64(differences(before, after)))
		before = after
	}
	return scaleFigures(size, got), nil
}

// seed makes nodes, volumes, pods and attachments that have been there for long.
func (r *rig) seed(ctx context.Context, size Size) error {
	began := time.Now()
	perNode := size.ScaleVolumes / size.ScaleNodes
	if err := each(ctx, size.ScaleNodes, func(ctx context.Context, i int) error {
		volumes := make([]string, perNode)
		for k := range volumes {
			volumes[k] = volumeName(i*perNode + k)
		}
		return r.node(ctx, nodeName(i), volumes...)
	}); err != nil {
		return err
	}
	if err := each(ctx, size.ScaleExtras, func(ctx context.Context, i int) error {
		if i%extrasPerNode != 0 {
			return r.volume(ctx, extraVolume(i))
		}
		return errors.Join(r.node(ctx, extraNode(i)), r.volume(ctx, extraVolume(i)))
	}); err != nil {
		return err
	}
	r.say("scale: %d nodes are there (%.0f s); now %d volumes, attached, with their pods", size.ScaleNodes, time.Since(began).Seconds(), size.ScaleVolumes)
	interval := max(size.ScaleVolumes/5, 1)
	return each(ctx, size.ScaleVolumes, func(ctx context.Context, i int) error {
		volume, node := volumeName(i), nodeName(i/perNode)
		if err := r.volume(ctx, volume); err != nil {
			return err
		}
		if err := r.pod(ctx, "old-"+volume, volume, node); err != nil {
			return err
		}
		if err := r.attached(ctx, driverName, volume, node); err != nil {
			return err
		}
		if (i+1)%interval == 0 {
			r.say("scale: %d of %d volumes (%.0f s)", i+1, size.ScaleVolumes, time.Since(began).Seconds())
		}
		return nil
	})
}

// versions are those of all attachments and nodes, but for those of the nodes that get more.
func (r *rig) versions(ctx context.Context) (map[string]string, error) {
	found := map[string]string{}
	options := metav1.ListOptions{Limit: 2000}
	for {
		page, err := r.client.StorageV1().VolumeAttachments().List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("listing attachments: %w", err)
		}
		for i := range page.Items {
			if va := &page.Items[i]; !strings.HasPrefix(va.Spec.NodeName, extraPrefix) {
				found["attachment "+va.Name] = va.ResourceVersion
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	nodes, err := r.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	for i := range nodes.Items {
		if node := &nodes.Items[i]; !strings.HasPrefix(node.Name, extraPrefix) {
			found["node "+node.Name] = node.ResourceVersion
		}
	}
	return found, nil
}

// differences counts what is not in both, or not in the same version.
func differences(before, after map[string]string) int {
	n := 0
	for name, version := range before {
		if after[name] != version {
			n++
		}
	}
	for name := range after {
		if _, ok := before[name]; !ok {
			n++
		}
	}
	return n
}

// scaleOf starts one plane over the state, sees it attach and detach one volume more, and
// measures what it costs when nothing happens, and what each of many attaches more costs.
func (r *rig) scaleOf(ctx context.Context, size Size, plane string, into *samples) error {
	began := time.Now()
	if err := r.start(plane); err != nil {
		return err
	}
	ready, err := r.probe(ctx, began)
	if err != nil {
		return err
	}
	into.seconds(figureReady, plane, ready)
	used, err := r.cpu()
	if err != nil {
		return err
	}
	into.seconds(figureStartCPU, plane, used)
	r.say("scale: %s attached one more %.1f s after its start; now it is left alone for %v", plane, ready.Seconds(), size.Idle)
	peak, idle, err := r.useOf(ctx, r.running[0], rest, size.Idle)
	if err != nil {
		return err
	}
	into.add(figureMemory, plane, peak)
	into.add(figureIdle, plane, idle)
	each, err := r.attachMore(ctx, size)
	if err != nil {
		return err
	}
	into.milliseconds(figureCPUMore, plane, each)
	r.say("scale: %s: peak memory %.0f MiB, idle %.2f %% of a core, %.1f ms per attach", plane, peak, idle, milli(each))
	return r.stop(ctx)
}

// probe gives the plane one pod more and takes it away again. It returns how long after began
// the attachment was made.
func (r *rig) probe(ctx context.Context, began time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, readyLimit, fmt.Errorf("it does not work %v after its start", readyLimit))
	defer cancel()
	volume, node := extraVolume(0), extraNode(0)
	r.observer.forget(volumeHeld(node, volume), volumeReported(node, volume), volumeDetached(node, volume))
	pods, err := r.extras(ctx, 1)
	if err != nil {
		return 0, err
	}
	held, err := r.observer.when(ctx, volumeHeld(node, volume))
	if err != nil {
		return 0, fmt.Errorf("%s's plane: %w", r.plane, err)
	}
	if _, err := r.observer.when(ctx, volumeReported(node, volume)); err != nil {
		return 0, fmt.Errorf("%s's plane: %w", r.plane, err)
	}
	return held.Sub(began), r.withoutExtras(ctx, pods)
}

// extras makes pods for the first n volumes more, on their nodes.
func (r *rig) extras(ctx context.Context, n int) (pods []string, err error) {
	pods = r.podNames(n)
	return pods, each(ctx, n, func(ctx context.Context, i int) error {
		return r.pod(ctx, pods[i], extraVolume(i), extraNode(i))
	})
}

// withoutExtras deletes the pods and waits until their volumes are detached.
func (r *rig) withoutExtras(ctx context.Context, pods []string) error {
	if err := each(ctx, len(pods), func(ctx context.Context, i int) error { return r.remove(ctx, pods[i]) }); err != nil {
		return err
	}
	for i := range pods {
		if _, err := r.observer.when(ctx, volumeDetached(extraNode(i), extraVolume(i))); err != nil {
			return fmt.Errorf("%s's plane: %w", r.plane, err)
		}
	}
	return nil
}

// attachMore has the plane attach more volumes at once and returns its CPU time for each.
func (r *rig) attachMore(ctx context.Context, size Size) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, readyLimit, fmt.Errorf("%d volumes more were not attached within %v", size.ScaleExtras, readyLimit))
	defer cancel()
	var all []fact
	for i := range size.ScaleExtras {
		all = append(all, volumeReported(extraNode(i), extraVolume(i)))
		r.observer.forget(all[i], volumeDetached(extraNode(i), extraVolume(i)))
	}
	before, err := r.cpu()
	if err != nil {
		return 0, err
	}
	pods, err := r.extras(ctx, size.ScaleExtras)
	if err != nil {
		return 0, err
	}
	if _, err := r.observer.last(ctx, all); err != nil {
		return 0, fmt.Errorf("%s's plane: %w", r.plane, err)
	}
	after, err := r.cpu()
	if err != nil {
		return 0, err
	}
	return (after - before) / time.Duration(size.ScaleExtras), r.withoutExtras(ctx, pods)
}

func scaleFigures(size Size, got *samples) []*Figure {
	figures := []*Figure{
		got.figure(figureMemory, "MiB").atMost(planeUpstream, 1.0/2), got.figure(figureCPUMore, "ms").atMost(planeUpstream, 1.0/2),
		got.figure(figureIdle, "% of a core").limit("< 1 %", 1),
		// A new leader marks one Node and one VolumeAttachment (ADR 17), and writes nothing else.
		got.figure(figureChanged, "objects").limit("<= 2", 2),
		got.figure(figureReady, "s"), got.figure(figureStartCPU, "s"),
	}
	for _, f := range figures {
		f.Note = fmt.Sprintf("%d attached volumes on %d nodes", size.ScaleVolumes, size.ScaleNodes)
	}
	return figures
}
