package stopped

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

// startsWithin is how long a kubelet takes until it renews its lease, on a busy machine.
const startsWithin = 5 * time.Second

// noFence is the phase of a node that has no fence.
const noFence fencing.Phase = "none"

// restart stops the kubelet of the writer's node, and starts it again at the moment of the plan. It returns the phase that the fence had then.
func (r *rig) restart(p Plan) fencing.Phase {
	r.Helper()
	l := r.lose()
	l.await(p.Moment)
	select {
	case <-r.Context().Done():
		r.Fatal("the test ends")
	case <-time.After(p.Delay):
	}
	phase := l.phase()
	l.startAgain()
	l.comesBack()
	labtest.UntilPod(r.T, r.Scene, scenario.WriterPod, "stays", func(pod *corev1.Pod) bool {
		return pod != nil && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning
	})
	r.Intact()
	r.oneWriter()
	l.judge(phase)
	return phase
}

// loss is a node whose kubelet was stopped while a pod writes there.
type loss struct {
	*rig
	from  string
	pod   *corev1.Pod
	began time.Time // the kubelet was stopped
	// started is when it was started again, or the machine was switched on.
	started time.Time
	// confirmed is the highest record of the pod, as its log on the machine had it before the start.
	confirmed int64
}

// lose stops the kubelet of the writer's node, once another node could take the writer, and this one could be fenced.
func (r *rig) lose() *loss {
	r.Helper()
	l := &loss{rig: r, from: r.WriterNode()}
	r.Released(l.from)
	labtest.Until(r.T, labtest.FenceLimit, "another node to take pods", func() error {
		var problems []error
		for _, name := range r.nodes() {
			if err := r.takesPods(name); name != l.from && err == nil {
				return nil
			} else if err != nil {
				problems = append(problems, err)
			}
		}
		return errors.Join(problems...)
	})
	r.tolerates(new(evictedAfter))
	l.pod, l.began = r.WriterPod(), time.Now()
	r.Must(r.Scene.Cluster.StopAgent(l.from))
	return l
}

// await waits until the fence has come to a moment.
func (l *loss) await(m Moment) {
	l.Helper()
	switch m {
	case Silent:
	case Off:
		labtest.Until(l.T, labtest.FenceLimit, l.from+" to be switched off", l.isOff)
	case Writing:
		labtest.Until(l.T, labtest.FenceLimit, "the writer to write elsewhere", func() error {
			if w, ok := l.elsewhere(); !ok {
				return fmt.Errorf("the latest are %+v", w)
			}
			return nil
		})
	default:
		l.awaitFence(m)
	}
}

func (l *loss) awaitFence(m Moment) {
	l.Helper()
	limit := time.After(labtest.FenceLimit)
	for {
		at, next := l.fences.reached(l.from, m, l.began)
		if !at.IsZero() {
			return
		}
		select {
		case <-next:
		case <-limit:
			l.Fatalf("waited %v for the fence of %s to be %s: it is %+v", labtest.FenceLimit, l.from, m, l.Fence(l.from))
		}
	}
}

// isOff is an error unless the BMC has switched the machine off since its kubelet was stopped.
func (l *loss) isOff() error {
	if l.Scene.Cluster.IsOn(l.from) || l.SwitchedOff(l.from, l.began).IsZero() {
		return errors.New("it is on")
	}
	return nil
}

// elsewhere are the first writes of another node since the kubelet was stopped.
func (l *loss) elsewhere() (labdisk.Writes, bool) {
	all := l.Writes()
	for _, w := range all {
		if w.Node != l.from && w.First.After(l.began) && w.Count > 0 {
			return w, true
		}
	}
	return all[len(all)-1], false
}

// phase is that of the fence of this loss.
func (l *loss) phase() fencing.Phase {
	l.Helper()
	f := l.Fence(l.from)
	if at, _ := l.fences.reached(l.from, Suspected, l.began); f == nil || at.IsZero() {
		return noFence
	}
	return cmp.Or(fencing.Phase(f.Status.Phase), fencing.Suspected)
}

// startAgain starts the kubelet; if its machine is off, or goes off now, the machine, as a person does who finds it so.
func (l *loss) startAgain() {
	l.Helper()
	l.confirmed = l.acknowledged(l.from, l.pod.UID)
	l.started = time.Now()
	if lab := l.Scene.Cluster; lab.IsOn(l.from) && lab.StartAgent(l.from) == nil {
		l.Logf("%.1f s after its end, the kubelet is started", l.started.Sub(l.began).Seconds())
		return
	}
	l.powerOn()
}

// powerOn switches the machine on once it is off: belay never does.
func (l *loss) powerOn() {
	l.Helper()
	labtest.Until(l.T, labtest.FenceLimit, l.from+" to be off", l.isOff)
	l.confirmed = max(l.confirmed, l.acknowledged(l.from, l.pod.UID))
	l.started = time.Now()
	l.Must(l.Scene.Cluster.PowerOn(l.from))
	l.Logf("%.1f s after the end of its kubelet, the machine is switched on, and its fence is %s", l.started.Sub(l.began).Seconds(), l.phase())
}

// comesBack waits until the node runs, and its fence has ended but for the release. A machine that was switched off although its kubelet had been started is
// switched on once all has left it: with its fence, or before that, when the kubelet had time to end the pod.
func (l *loss) comesBack() {
	l.Helper()
	labtest.Until(l.T, backWithin, l.from+" to be back", func() error {
		f, phase := l.Fence(l.from), l.phase()
		if !l.Scene.Cluster.IsOn(l.from) {
			ended := f == nil || len(f.Finalizers) == 0
			if phase != fencing.Moved && (!ended || l.Attachment(l.from) != "") {
				return fmt.Errorf("it is off, and its fence is %+v", f)
			}
			l.powerOn()
		}
		if f != nil && len(f.Finalizers) > 0 && phase != fencing.Releasing {
			return fmt.Errorf("its fence is %s and waits for %q", f.Status.Phase, f.Status.Missing)
		}
		return errors.Join(l.renewed(l.from, l.started), l.IsReady(l.from))
	})
}

// judge checks what became of a loss whose fence was in a phase when its kubelet was started again.
func (l *loss) judge(phase fencing.Phase) {
	l.Helper()
	suspected, _ := l.fences.reached(l.from, Suspected, l.began)
	off := l.SwitchedOff(l.from, l.began)
	renewal := l.profile.LeaseDuration / 4 // the silence began with the last one, before the kubelet was stopped
	early := phase == noFence && l.started.Sub(l.began) < givenUpAfter-renewal-startsWithin
	if early && (!suspected.IsZero() || !off.IsZero()) {
		l.Errorf("%s was fenced at %v and switched off at %v, and its kubelet had been started at %v", l.from, suspected, off, l.started)
	}
	l.complete(l.pod, l.confirmed)
	since := func(at time.Time) string {
		if at.IsZero() {
			return "-"
		}
		return fmt.Sprintf("%.1f s", at.Sub(l.began).Seconds())
	}
	first, moved := l.elsewhere()
	if !moved {
		first.First = time.Time{}
	}
	l.Logf("FIGURE restart, %s nodes, %s: after the stop: suspected %s, off %s, started again %s in phase %s, first write elsewhere %s",
		l.Scene.Options.NodeKind, l.profile.Name, since(suspected), since(off), since(l.started), phase, since(first.First))
}
