package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
)

const (
	// probeNode and probeVolume show that a plane has begun to work; nothing else touches them.
	probeNode, probeVolume = "hollow-probe", "vol-probe"
	lookAgain              = 20 * time.Millisecond
	// readyLimit bounds the time until a plane attaches the probe over a large state.
	readyLimit = 5 * time.Minute
	// rest is the time between the probe and the measurement of what a plane costs when nothing happens.
	rest = 10 * time.Second
)

// scale starts the planes over a large state that is as it shall be.
func scale(ctx context.Context, size Size, rig rigOptions) (_ []*Figure, err error) {
	rig.still = true
	r, err := openRig(ctx, rig)
	if err != nil {
		return nil, err
	}
	defer func() { err = joinClose(ctx, r, err) }()
	if err := r.seed(ctx, size); err != nil {
		return nil, err
	}
	before, err := r.versions(ctx)
	if err != nil {
		return nil, err
	}
	got := map[string]map[string][]float64{}
	for _, plane := range []string{planeUpstream, planeBelay} {
		if err := r.scaleOf(ctx, size, plane, got); err != nil {
			return nil, fmt.Errorf("scale of %s: %w", plane, err)
		}
		after, err := r.versions(ctx)
		if err != nil {
			return nil, err
		}
		record(got, figureChanged, plane, float64(differences(before, after)))
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
	if err := errors.Join(r.node(ctx, probeNode), r.volume(ctx, probeVolume)); err != nil {
		return err
	}
	r.say("scale: %d nodes are there (%.0f s); now %d volumes, attached, with their pods", size.ScaleNodes, time.Since(began).Seconds(), size.ScaleVolumes)
	told := max(size.ScaleVolumes/5, 1)
	return each(ctx, size.ScaleVolumes, func(ctx context.Context, i int) error {
		volume, node := volumeName(i), nodeName(i/perNode)
		if err := r.volume(ctx, volume); err != nil {
			return err
		}
		if err := r.pod(ctx, "old-"+volume, volume, node); err != nil {
			return err
		}
		if err := r.attached(ctx, volume, node); err != nil {
			return err
		}
		if (i+1)%told == 0 {
			r.say("scale: %d of %d volumes (%.0f s)", i+1, size.ScaleVolumes, time.Since(began).Seconds())
		}
		return nil
	})
}

// versions are those of all attachments and nodes, but for the probe's.
func (r *rig) versions(ctx context.Context) (map[string]string, error) {
	found := map[string]string{}
	options := metav1.ListOptions{Limit: 2000}
	for {
		page, err := r.client.StorageV1().VolumeAttachments().List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("listing attachments: %w", err)
		}
		for i := range page.Items {
			if va := &page.Items[i]; va.Spec.NodeName != probeNode {
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
		if node := &nodes.Items[i]; node.Name != probeNode {
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

func record(into map[string]map[string][]float64, figure, plane string, value float64) {
	if into[figure] == nil {
		into[figure] = map[string][]float64{}
	}
	into[figure][plane] = append(into[figure][plane], value)
}

// scaleOf starts one plane over the state, sees it attach and detach one volume more, and
// measures what it costs when nothing happens.
func (r *rig) scaleOf(ctx context.Context, size Size, plane string, into map[string]map[string][]float64) error {
	began := time.Now()
	if err := r.start(plane); err != nil {
		return err
	}
	ready, err := r.probe(ctx, began)
	if err != nil {
		return err
	}
	record(into, figureReady, plane, ready.Seconds())
	used, err := r.cpu()
	if err != nil {
		return err
	}
	record(into, figureStartCPU, plane, used.Seconds())
	r.say("scale: %s attached one more %.1f s after its start; now it is left alone for %v", plane, ready.Seconds(), size.Idle)
	if err := pause(ctx, rest); err != nil {
		return err
	}
	before, err := r.cpu()
	if err != nil {
		return err
	}
	from := time.Now()
	if err := pause(ctx, size.Idle); err != nil {
		return err
	}
	after, err := r.cpu()
	if err != nil {
		return err
	}
	record(into, figureIdle, plane, 100*(after-before).Seconds()/time.Since(from).Seconds())
	pid, err := r.pid()
	if err != nil {
		return err
	}
	peak, err := peakMemory(pid)
	if err != nil {
		return err
	}
	record(into, figureMemory, plane, float64(peak)/(1<<20))
	r.say("scale: %s: peak memory %.0f MiB, idle %.2f %% of a core", plane, float64(peak)/(1<<20), 100*(after-before).Seconds()/time.Since(from).Seconds())
	return r.stop(ctx)
}

// probe gives the plane one pod more and plays the attacher for it, and takes the pod away again.
// It returns how long after began the attachment was made.
func (r *rig) probe(ctx context.Context, began time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, readyLimit, fmt.Errorf("it does not work %v after its start", readyLimit))
	defer cancel()
	r.pods++
	pod := fmt.Sprintf("probe-%d", r.pods)
	if err := r.pod(ctx, pod, probeVolume, probeNode); err != nil {
		return 0, err
	}
	attachments := r.client.StorageV1().VolumeAttachments()
	var va *storagev1.VolumeAttachment
	look := func(ctx context.Context) (there bool, err error) {
		va, err = attachments.Get(ctx, kube.AttachmentName(probeVolume, driverName, probeNode), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	}
	if err := r.until(ctx, "the probe's attachment to be made", look); err != nil {
		return 0, err
	}
	ready := time.Since(began)
	va.Status.Attached = true
	if _, err := attachments.UpdateStatus(ctx, va, metav1.UpdateOptions{}); err != nil {
		return 0, fmt.Errorf("attaching the probe: %w", err)
	}
	listed := func(ctx context.Context) (bool, error) {
		node, err := r.client.CoreV1().Nodes().Get(ctx, probeNode, metav1.GetOptions{})
		return err == nil && slices.Contains(reported(node), probeVolume), err
	}
	if err := r.until(ctx, "the probe to be reported", listed); err != nil {
		return 0, err
	}
	if err := r.remove(ctx, pod); err != nil {
		return 0, err
	}
	return ready, r.until(ctx, "the probe's attachment to be deleted", func(ctx context.Context) (bool, error) {
		there, err := look(ctx)
		return !there, err
	})
}

// until looks again and again. What is waited for here is not measured finer than that.
func (r *rig) until(ctx context.Context, what string, look func(context.Context) (bool, error)) error {
	for {
		done, err := look(ctx)
		if done {
			return nil
		}
		if err == nil {
			err = pause(ctx, lookAgain)
		}
		if err != nil {
			return fmt.Errorf("%s's plane: waiting for %s: %w", r.plane, what, err)
		}
		if _, err := r.pid(); err != nil {
			return err
		}
	}
}

func scaleFigures(size Size, got map[string]map[string][]float64) []*Figure {
	memory := numbers(figureMemory, "MiB", got[figureMemory]).atMost(planeUpstream, 1.0/2)
	idle := numbers(figureIdle, "% of a core", got[figureIdle]).limit("< 1 %", 1)
	changed := numbers(figureChanged, "objects", got[figureChanged]).limit("none", 0)
	figures := []*Figure{
		memory, idle, changed, numbers(figureReady, "s", got[figureReady]), numbers(figureStartCPU, "s", got[figureStartCPU]),
	}
	for _, f := range figures {
		f.Note = fmt.Sprintf("%d attached volumes on %d nodes", size.ScaleVolumes, size.ScaleNodes)
	}
	return figures
}
