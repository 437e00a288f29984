package attachdetach

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// running returns that the boot of a node is on, as its power switch says.
func (l *lab) runningLife(node string) fencing.Life {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := kube.MachineOf(l.nodes[l.name(node)])
	boot := fencing.Boot{Node: l.name(node), NodeUID: m.NodeUID, ID: m.BootID, Machine: fencing.MachineID(m.SystemUUID)}
	now := time.Now()
	return fencing.Decide(now, fencing.Fence{Phase: fencing.Fencing, Boot: boot}, fencing.Observed{
		Exists: fencing.Yes, Now: boot,
		Source: fencing.Source{
			Name: "ipmi", SaidOn: boot, Machine: boot.Machine, Status: fencing.Answer{Power: fencing.PowerOn, Asked: now, Machine: boot.Machine},
		},
	}).Life
}

func (p *proofs) runs(life fencing.Life) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.life = life
}

// TestTimeoutWaitsForARunningMachine: the unmount timeout passes, and the volume stays while its boot is known to run. The events on the
// claim and on the pod that waits say so. When that is not known any more, the policy applies.
func TestTimeoutWaitsForARunningMachine(t *testing.T) {
	l := newLab(t)
	recovery := &proofs{}
	l.options.Proofs, l.options.Policy.UnmountTimeout = recovery, time.Second
	l.runAttachedOnA()
	l.node("b")
	l.use("a", "v")
	recovery.runs(l.runningLife("a"))
	l.gone("p")
	l.awaitWaiting("v", "a")
	l.pod("q", "b", "v")
	l.health("a", corev1.ConditionUnknown)
	warned := func(object, reason string) func() bool {
		return func() bool {
			for _, e := range l.events {
				if e.InvolvedObject.Name == object && e.Reason == reason && strings.Contains(e.Message, "its power switch says On") {
					return true
				}
			}
			return false
		}
	}
	l.await("the claim has an event that says why", warned("v", explain.FailedDetachVolume))
	l.await("so has the pod that waits", warned("q", explain.FailedAttachVolume))
	l.mu.Lock()
	n := len(l.objectMessages("PersistentVolumeClaim", "v", explain.DetachingVolume))
	l.mu.Unlock()
	if n != 0 {
		t.Fatal("the volume was detached by force")
	}
	recovery.runs(fencing.Life{})
	l.awaitDetached("v", "a")
}

// TestTaintOverrulesARunningMachine: the taint is a person's statement, which belay obeys with a warning.
func TestTaintOverrulesARunningMachine(t *testing.T) {
	l := newLab(t)
	recovery := &proofs{}
	l.options.Proofs = recovery
	l.runAttachedOnA()
	l.use("a", "v")
	l.gone("p")
	l.awaitWaiting("v", "a")
	recovery.runs(l.runningLife("a"))
	l.taint("a")
	l.awaitObjectEvent("PersistentVolumeClaim", "v", explain.DetachingVolume,
		explain.DetachStarted(l.name("v"), attachment.NodeName(l.name("a")), attachment.OutOfServiceTaint{}, attachment.StillInUse)+explain.DetachedWhileRunning)
	l.awaitDetached("v", "a")
}
