package scenario

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"belay.dev/belay/lab/timeline"
)

// CrowdOptions say how many pods with how many volumes each; the i-th pod is bound to
// the node i of Nodes, in turn, past the scheduler.
type CrowdOptions struct {
	Name                string
	Pods, VolumesPerPod int
	Nodes               []string
}

// Crowd is a number of pods, each with many claims, that append records to their
// first one twice a second.
type Crowd struct {
	scene *Scene
	CrowdOptions
	// Handles are the volumes' handles.
	Handles map[string]bool
}

const crowdLabel = "crowd"

// crowdInterval is the time between two records of a pod.
const crowdInterval = 500 * time.Millisecond

// NewCrowd makes the claims and the pods and waits, at most within, until all run.
func (s *Scene) NewCrowd(ctx context.Context, o CrowdOptions, within time.Duration) (*Crowd, error) {
	c := &Crowd{scene: s, CrowdOptions: o, Handles: map[string]bool{}}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for i := range o.Pods {
		for v := range o.VolumesPerPod {
			group.Go(func() error { return s.createClaim(groupCtx, c.claim(i, v)) })
		}
		group.Go(func() error { return s.createPod(groupCtx, c.pod(i)) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	err := s.await(ctx, within, fmt.Sprintf("%d pods with %d volumes each to run", o.Pods, o.VolumesPerPod), func() (bool, error) {
		return c.running() == o.Pods, nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w\n  %d of them run", err, c.running())
	}
	for i := range o.Pods {
		for v := range o.VolumesPerPod {
			volume, err := s.Record.Volume(Namespace + "/" + c.claim(i, v))
			if err != nil {
				return nil, err
			}
			c.Handles[volume.Handle] = true
		}
	}
	return c, nil
}

func (c *Crowd) name(i int) string { return fmt.Sprintf("%s-%d", c.Name, i) }

func (c *Crowd) claim(i, volume int) string { return fmt.Sprintf("%s-%d-%d", c.Name, i, volume) }

func (c *Crowd) pod(i int) *corev1.Pod {
	spec := podSpec("append", "--file", ledgerFile, "--interval", crowdInterval.String())
	spec.NodeName = c.Nodes[i%len(c.Nodes)]
	spec.Containers[0].VolumeMounts = nil
	for v := range c.VolumesPerPod {
		name, path := fmt.Sprintf("v%d", v), fmt.Sprintf("/data%d", v)
		if v == 0 {
			path = "/data"
		}
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.claim(i, v)},
		}})
		spec.Containers[0].VolumeMounts = append(spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path})
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: c.name(i), Labels: map[string]string{crowdLabel: c.Name}}, Spec: spec,
	}
}

func (c *Crowd) running() int {
	n := 0
	for i := range c.Pods {
		p, err := c.scene.state.Core().V1().Pods().Lister().Pods(Namespace).Get(c.name(i))
		if err == nil && timeline.Running(p) {
			n++
		}
	}
	return n
}

// Objects are the pods as the API server has them now.
func (c *Crowd) Objects(ctx context.Context) ([]corev1.Pod, error) {
	list, err := c.scene.Client.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{LabelSelector: c.selector()})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", c.Name, err)
	}
	return list.Items, nil
}

func (c *Crowd) selector() string { return labels.Set{crowdLabel: c.Name}.String() }

// Flow is what a pod's log says of its records since a time.
type Flow struct {
	Records int64
	// LongestGap between two records that follow each other.
	LongestGap time.Duration
}

// Flow reads the log of a pod. A number that is missing or comes twice is an error.
func (c *Crowd) Flow(ctx context.Context, pod string, since time.Time) (Flow, error) {
	raw, err := c.scene.Client.CoreV1().Pods(Namespace).GetLogs(pod, &corev1.PodLogOptions{
		Timestamps: true, SinceTime: &metav1.Time{Time: since},
	}).DoRaw(ctx)
	if err != nil {
		return Flow{}, fmt.Errorf("read the log of %s: %w", pod, err)
	}
	return flowOf(raw)
}

func flowOf(log []byte) (Flow, error) {
	var flow Flow
	var last int64
	var lastAt time.Time
	lines := bufio.NewScanner(bytes.NewReader(log))
	for lines.Scan() {
		stamp, line, _ := strings.Cut(lines.Text(), " ")
		n, ok := acknowledged(line)
		if !ok {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil {
			return flow, fmt.Errorf("a line of the log has no time: %w", err)
		}
		if last != 0 {
			if n != last+1 {
				return flow, fmt.Errorf("record %s follows record %d", strconv.FormatInt(n, 10), last)
			}
			flow.LongestGap = max(flow.LongestGap, at.Sub(lastAt))
		}
		flow.Records++
		last, lastAt = n, at
	}
	return flow, lines.Err()
}

// Remove deletes the pods and the claims and waits until no volume of them is attached.
func (c *Crowd) Remove(ctx context.Context, within time.Duration) error {
	policy := metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}
	err := c.scene.Client.CoreV1().Pods(Namespace).DeleteCollection(ctx, policy, metav1.ListOptions{LabelSelector: c.selector()})
	if err != nil {
		return fmt.Errorf("delete the pods of %s: %w", c.Name, err)
	}
	err = c.scene.await(ctx, within, "the volumes of "+c.Name+" to be detached", func() (bool, error) {
		held, err := c.scene.Cluster.Fabric().Attachments(ctx)
		if err != nil {
			return false, err
		}
		for _, a := range held {
			if c.Handles[a.Volume] {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	for i := range c.Pods {
		for v := range c.VolumesPerPod {
			err := c.scene.Client.CoreV1().PersistentVolumeClaims(Namespace).Delete(ctx, c.claim(i, v), metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("delete claim %s: %w", c.claim(i, v), err)
			}
		}
	}
	return nil
}
