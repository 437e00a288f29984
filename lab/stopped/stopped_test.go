package stopped

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

// heldFor is how long a kubelet is stopped without an eviction: longer than a node is Ready then, and than it would be silent until it is suspected with one.
const heldFor = 100 * time.Second

// TestStoppedKubelet stops the kubelet of the writer's node: once until its machine is switched off, then it is started again in the middle.
func TestStoppedKubelet(t *testing.T) {
	labtest.NeedsFencing(t)
	for _, kind := range []string{cluster.NodeKindBelay, cluster.NodeKindKubelet} {
		for _, profile := range []fencing.Profile{fencing.Fast, fencing.Default} {
			t.Run(kind+" nodes, "+profile.Name, func(t *testing.T) {
				if testing.Short() && (kind != cluster.NodeKindBelay || profile.Name != fencing.Fast.Name) {
					t.Skip("NOT RUN: kubelets, and the profile default, belong to the long tests")
				}
				r := open(t, "stopped", kind, profile)
				t.Run("stopped", func(t *testing.T) { r.of(t).stopped() })
				t.Run("started again", func(t *testing.T) {
					if testing.Short() {
						t.Skip("NOT RUN: ten restarts belong to the long tests")
					}
					r.of(t).startedAgain()
				})
			})
		}
	}
}

// stopped: nothing is taken from a node while the cluster gives it a chance. After that its machine is switched off first, and the writer continues
// elsewhere with all records.
func (r *rig) stopped() {
	lab, from, pod, began := r.Scene.Cluster, r.WriterNode(), r.WriterPod(), time.Now()
	r.tolerates(nil)
	r.Must(lab.StopAgent(from))
	r.holds(from, began)
	lost := time.Now()
	r.tolerates(new(evictedAfter))
	r.evicted()
	to := r.Moved(from, labtest.FenceLimit)
	if lab.IsOn(from) {
		r.Error("the machine runs")
	}
	off, deleted := r.SwitchedOff(from, began), r.Deleted(from, began)
	last, first := r.LastWrites(from).Last, r.LastWrites(to).First
	since := func(at time.Time) float64 { return at.Sub(lost).Seconds() }
	r.Logf("FIGURE stopped, %s nodes, %s: 0 s the pod may be evicted; %.1f s switched off, %.1f s last write, %.1f s VolumeAttachment deleted, %.1f s first write elsewhere",
		r.Scene.Options.NodeKind, r.profile.Name, since(off), since(last), since(deleted), since(first))
	if off.IsZero() || off.After(deleted) {
		r.Errorf("the BMC switched the node off at %v, and its VolumeAttachment was deleted at %v", off, deleted)
	}
	if last.Before(lost) {
		r.Errorf("the writer stopped at %v, with its kubelet: this is another case than that of the test", last)
	}
	acknowledged := r.acknowledged(from, pod.UID)
	r.Intact()
	r.complete(pod, acknowledged)
	r.oneWriter()
	if testing.Short() {
		return
	}
	r.Must(lab.PowerOn(from))
	r.finished(from)
}

// holds: as long as no pod is evicted, the containers run on, and all that happens is an event.
func (r *rig) holds(from string, began time.Time) {
	r.Helper()
	pod, attachment := r.WriterPod().UID, r.Attachment(from)
	labtest.Until(r.T, labtest.FenceLimit, "an event that says why the node is not fenced", func() error {
		return r.Heard(string(fencing.SignOfLife), began)
	})
	written := r.LastWrites(from).Count
	for end := began.Add(heldFor); time.Now().Before(end); {
		labtest.Until(r.T, labtest.FenceLimit, "more writes on the node without a kubelet", func() error { return r.Wrote(from, written) })
		written = r.LastWrites(from).Count
		now := r.WriterPod()
		if now.UID != pod || now.DeletionTimestamp != nil || r.Attachment(from) != attachment || r.Fence(from) != nil || len(r.Tainted(from)) > 0 {
			r.Fatalf("something was taken: pod %s, deleted at %v, fence %+v, taints %v", now.UID, now.DeletionTimestamp, r.Fence(from), r.Tainted(from))
		}
		select {
		case <-r.Context().Done():
			r.Fatal("the test ends")
		case <-time.After(time.Second):
		}
	}
	if off := r.SwitchedOff(from, began); !off.IsZero() {
		r.Errorf("%s was switched off at %v", from, off)
	}
	if r.IsReady(from) == nil {
		r.Errorf("%s is Ready without a kubelet", from)
	}
}

// evicted waits until the taint manager has evicted the writer.
func (r *rig) evicted() {
	r.Helper()
	labtest.UntilPod(r.T, r.Scene, scenario.WriterPod, "is evicted", func(pod *corev1.Pod) bool {
		return pod == nil || slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.DisruptionTarget && c.Reason == "DeletionByTaintManager"
		})
	})
}

// startedAgain starts a stopped kubelet again at moments of its fence.
func (r *rig) startedAgain() {
	seed := uint64(labtest.Number(r.T, "BELAY_STOPPED_SEED", int(time.Now().Unix())))
	plans := Plans(seed, labtest.Number(r.T, "BELAY_STOPPED_RESTARTS", len(moments())), givenUpAfter)
	skipped := min(labtest.Number(r.T, "BELAY_STOPPED_SKIP", 0), len(plans))
	r.Logf("seed %d; restart N again: BELAY_STOPPED_SEED=%d BELAY_STOPPED_RESTARTS=N BELAY_STOPPED_SKIP=N-1 go test -count=1 -v -timeout 2h -run '^%s$' ./stopped",
		seed, seed, r.Name())
	met := labtest.Tally[Moment, fencing.Phase]{}
	for i, p := range plans {
		if i < skipped {
			continue
		}
		r.Logf("restart %d of %d: %s", i+1, len(plans), p)
		met.Add(p.Moment, r.restart(p))
		if r.Failed() {
			r.Fatalf("restart %d, %s: the lab is left as it is", i+1, p)
		}
	}
	for _, node := range r.nodes() {
		r.finished(node)
	}
	r.oneWriter()
	r.Logf("phases in which the kubelet was started again, by the moment of the plan:\n%s", met.Table(moments(), append([]fencing.Phase{noFence}, fencing.Phases()...)))
}
