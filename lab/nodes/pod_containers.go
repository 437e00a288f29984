package nodes

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// Pauses between restarts of a container, as kubelet makes them: the first restart is
// at once, then 10 s, doubled up to 5 min; a container that ran for 10 min starts over.
const (
	shortestBackOff = 10 * time.Second
	longestBackOff  = 5 * time.Minute
	backOffReset    = 10 * time.Minute
)

// keptAttempts is how many attempts of a container keep their log: the present one
// and the one before it (kubectl logs --previous).
const keptAttempts = 2

func (k *podWorker) attemptDir(name string, attempt int32) string {
	return filepath.Join(k.dir, "c", name, strconv.Itoa(int(attempt)))
}

func (k *podWorker) containerID(name string, attempt int32) string {
	return fmt.Sprintf("belay://%s-%s-%d", k.uid, name, attempt)
}

// latestAttempt is the highest attempt of a container on disk, -1 if none.
func (k *podWorker) latestAttempt(name string) int32 {
	entries, err := os.ReadDir(filepath.Join(k.dir, "c", name))
	if err != nil {
		return -1
	}
	latest := int32(-1)
	for _, entry := range entries {
		if number, err := strconv.ParseInt(entry.Name(), 10, 32); err == nil {
			latest = max(latest, int32(number))
		}
	}
	return latest
}

// recall finds the containers again that an agent before this one started.
func (k *podWorker) recall() {
	pod := k.object()
	for _, c := range append(append([]corev1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...) {
		attempt := k.latestAttempt(c.Name)
		if attempt < 0 {
			continue
		}
		found, ok, err := adoptContainer(k.attemptDir(c.Name, attempt))
		if err == nil && !ok {
			// It was prepared but never started: its container-exec ended with its agent.
			err = os.RemoveAll(k.attemptDir(c.Name, attempt))
		}
		if err != nil {
			klog.Background().Error(err, "container is not found again", "pod", klog.KObj(pod), "container", c.Name)
		}
		if !ok {
			continue
		}
		k.mu.Lock()
		k.live[c.Name] = found
		k.mu.Unlock()
		k.setContainer(c.Name, func(s *containerState) {
			s.id, s.restarts = k.containerID(c.Name, attempt), attempt
			if found.running() {
				s.now = runningSince(found.started.At)
			}
		})
	}
}

func runningSince(at time.Time) corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(at)}}
}

// prepareFirst starts the container-execs of what runs first, so that they wait for
// the volumes and not the volumes for them.
func (k *podWorker) prepareFirst(pod *corev1.Pod) {
	first := pod.Spec.Containers
	if len(pod.Spec.InitContainers) > 0 {
		first = pod.Spec.InitContainers[:1]
	}
	for _, c := range first {
		attempt := k.latestAttempt(c.Name) + 1
		if attempt > 0 {
			continue // not its first start: no hurry
		}
		p, err := prepareContainer(k.config.Programs.BelayLab, k.attemptDir(c.Name, attempt))
		if err != nil {
			continue // it is tried again when it is needed, and then the error is reported
		}
		k.mu.Lock()
		k.ready[c.Name] = p
		k.mu.Unlock()
	}
}

// discardPrepared ends the container-execs that were not needed.
func (k *podWorker) discardPrepared() {
	k.mu.Lock()
	unused := k.ready
	k.ready = map[string]*prepared{}
	k.mu.Unlock()
	for _, p := range unused {
		p.discard()
	}
}

// keepContainer runs a container, and again by its policy, until it has ended for good
// or ctx ends. A container that an earlier agent started is taken over.
func (k *podWorker) keepContainer(ctx context.Context, spec podSpec, c corev1.Container, policy corev1.RestartPolicy) {
	var pause time.Duration
	for ctx.Err() == nil {
		current, err := k.currentOrNew(spec, c)
		if err != nil {
			k.events.Event(k.object(), corev1.EventTypeWarning, "Failed", "Error: "+err.Error())
			k.setContainer(c.Name, func(s *containerState) { s.now = waiting(reasonConfig, err.Error()) })
			if !pauseFor(ctx, shortestBackOff) {
				return
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-current.done:
		}
		state := k.containerEnded(c.Name, current, policy)
		if state.finished {
			return
		}
		if ran := state.now.Terminated; ran.FinishedAt.Sub(ran.StartedAt.Time) > backOffReset {
			pause = 0
		}
		if pause > 0 {
			message := fmt.Sprintf("back-off %v restarting failed container=%s pod=%s/%s", pause, c.Name, k.object().Namespace, k.object().Name)
			k.events.Event(k.object(), corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container "+c.Name)
			k.setContainer(c.Name, func(s *containerState) { s.last, s.now = s.now, waiting(reasonBackOff, message) })
		}
		if !pauseFor(ctx, pause) {
			return
		}
		pause = min(max(2*pause, shortestBackOff), longestBackOff)
	}
}

func pauseFor(ctx context.Context, pause time.Duration) bool {
	if pause == 0 {
		return ctx.Err() == nil
	}
	return patience(ctx, &pause)
}

// currentOrNew is the container that runs, or a new attempt.
func (k *podWorker) currentOrNew(spec podSpec, c corev1.Container) (*container, error) {
	k.mu.Lock()
	current := k.live[c.Name]
	k.mu.Unlock()
	if current != nil {
		return current, nil
	}
	attempt := k.latestAttempt(c.Name) + 1
	k.mu.Lock()
	p := k.ready[c.Name]
	delete(k.ready, c.Name)
	k.mu.Unlock()
	if p != nil {
		attempt--
	}
	wanted, err := spec.spec(c)
	if err != nil {
		if p != nil {
			p.discard()
		}
		return nil, err
	}
	if p == nil {
		if p, err = prepareContainer(k.config.Programs.BelayLab, k.attemptDir(c.Name, attempt)); err != nil {
			return nil, err
		}
	}
	started, err := p.start(wanted)
	if err != nil {
		return nil, err
	}
	k.containerStarted(c.Name, attempt, started)
	return started, nil
}

func (k *podWorker) containerStarted(name string, attempt int32, c *container) {
	k.mu.Lock()
	k.live[name] = c
	k.mu.Unlock()
	k.setContainer(name, func(s *containerState) {
		if s.now.Terminated != nil {
			s.last = s.now
		}
		s.id, s.restarts = k.containerID(name, attempt), attempt
		if c.started.Problem == "" && c.started.PID != 0 {
			s.now = runningSince(c.started.At)
		}
	})
	klog.Background().Info("Container started", "pod", klog.KObj(k.object()), "container", name, "attempt", attempt, "problem", c.started.Problem)
	if c.started.Problem == "" {
		k.events.Event(k.object(), corev1.EventTypeNormal, "Started", "Container started: "+name)
	} else {
		k.events.Event(k.object(), corev1.EventTypeWarning, "Failed", "Error: "+c.started.Problem)
	}
	if attempt >= keptAttempts {
		_ = os.RemoveAll(k.attemptDir(name, attempt-keptAttempts)) // an old log; the pod's end removes all
	}
}

// containerEnded notes how a container ended and whether that was the last time.
func (k *podWorker) containerEnded(name string, c *container, policy corev1.RestartPolicy) containerState {
	end := c.outcome()
	k.mu.Lock()
	delete(k.live, name)
	k.mu.Unlock()
	k.setContainer(name, func(s *containerState) {
		s.now = terminated(s.id, c.started, end)
		s.finished = policy == corev1.RestartPolicyNever || policy == corev1.RestartPolicyOnFailure && end.ExitCode == 0
	})
	return k.containerState(name)
}

// stopContainers ends what runs: SIGTERM, and SIGKILL when the grace is over. It
// returns when nothing of the pod runs any more.
func (k *podWorker) stopContainers(ctx context.Context) {
	k.discardPrepared()
	k.mu.Lock()
	stopping := maps.Clone(k.live)
	k.mu.Unlock()
	for name, c := range stopping {
		if c.running() {
			k.events.Event(k.object(), corev1.EventTypeNormal, "Killing", "Stopping container "+name)
		}
		c.terminate()
	}
	began := time.Now()
	for name, c := range stopping {
		if !k.awaitEnd(ctx, c, began) {
			return
		}
		k.containerEnded(name, c, corev1.RestartPolicyNever)
	}
}

// awaitEnd waits for the end of one container; the grace may be shortened meanwhile.
// It is false if ctx ended first.
func (k *podWorker) awaitEnd(ctx context.Context, c *container, began time.Time) bool {
	for {
		left := time.Until(began.Add(k.grace()))
		if left <= 0 {
			c.kill()
			select {
			case <-ctx.Done():
				return false
			case <-c.done:
				return true
			}
		}
		timer := time.NewTimer(left)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-c.done:
			timer.Stop()
			return true
		case <-timer.C:
		case <-k.graceChanged:
			timer.Stop()
		}
	}
}

// grace is what the pod's deletion grants its containers.
func (k *podWorker) grace() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.gone {
		return forcedGrace
	}
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if k.pod.Spec.TerminationGracePeriodSeconds != nil {
		seconds = *k.pod.Spec.TerminationGracePeriodSeconds
	}
	if k.pod.DeletionGracePeriodSeconds != nil {
		seconds = *k.pod.DeletionGracePeriodSeconds
	}
	return time.Duration(max(seconds, 1)) * time.Second
}
