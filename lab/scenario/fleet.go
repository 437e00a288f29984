package scenario

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/lab/timeline"
)

// Fleet is a number of claims, each used by one pod at a time: work for counting
// and timing, without a scheduler in between.
type Fleet struct {
	scene *Scene
	name  string
	size  int
}

// NewFleet makes the claims and waits until each has its volume.
func (s *Scene) NewFleet(ctx context.Context, name string, size int) (*Fleet, error) {
	f := &Fleet{scene: s, name: name, size: size}
	for i := range size {
		if err := s.createClaim(ctx, f.claim(i)); err != nil {
			return nil, err
		}
	}
	return f, s.await(ctx, moveLimit, fmt.Sprintf("%d claims to get their volumes", size), func() (bool, error) {
		for i := range size {
			if _, err := s.Record.Volume(Namespace + "/" + f.claim(i)); err != nil {
				return false, nil //nolint:nilerr // not bound yet
			}
		}
		return true, nil
	})
}

func (f *Fleet) claim(i int) string { return fmt.Sprintf("%s-%d", f.name, i) }

// Start makes one pod per claim on a node and waits until all run. It returns the
// timeline of each.
func (f *Fleet) Start(ctx context.Context, node string) ([]*timeline.Move, error) {
	start := time.Now()
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range f.size {
		group.Go(func() error {
			p := pod(f.claim(i), f.claim(i), "", podSpec("hold", "--file", "/data"))
			p.Spec.NodeName = node // past the scheduler: its time is not the plane's
			return f.scene.createPod(groupCtx, p)
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	err := f.scene.await(ctx, moveLimit, fmt.Sprintf("%d pods to run on %s", f.size, node), func() (bool, error) {
		return f.count(timeline.Running) == f.size, nil
	})
	if err != nil {
		return nil, err
	}
	moves := make([]*timeline.Move, 0, f.size)
	for i := range f.size {
		q := timeline.Query{
			Title: f.claim(i), To: node, Start: start, NextPod: Namespace + "/" + f.claim(i),
			Volume: timeline.Volume{Claim: Namespace + "/" + f.claim(i)},
		}
		move, err := f.scene.Timeline(ctx, q)
		if err != nil {
			return nil, err
		}
		moves = append(moves, move)
	}
	return moves, nil
}

// Stop deletes the pods and waits until they are gone.
func (f *Fleet) Stop(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range f.size {
		group.Go(func() error { return f.scene.removePod(groupCtx, f.claim(i)) })
	}
	return group.Wait()
}

// count is the number of the fleet's pods that fit.
func (f *Fleet) count(fits func(*corev1.Pod) bool) int {
	n := 0
	for i := range f.size {
		p, err := f.scene.state.Core().V1().Pods().Lister().Pods(Namespace).Get(f.claim(i))
		if err == nil && fits(p) {
			n++
		}
	}
	return n
}

func (s *Scene) createClaim(ctx context.Context, name string) error {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}, Spec: claimSpec(StorageClass),
	}
	if _, err := s.Client.CoreV1().PersistentVolumeClaims(Namespace).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create claim %s: %w", name, err)
	}
	return nil
}

// createPod repeats while the namespace's service account does not exist yet.
func (s *Scene) createPod(ctx context.Context, p *corev1.Pod) error {
	return s.stubborn(ctx, "create pod "+p.Name, func() error {
		_, err := s.Client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
		return err
	})
}
