package chaos

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"belay.dev/belay/lab/callcheck"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
	"belay.dev/belay/lab/timeline"
)

// The components of the plane that have a standby.
const (
	controller = "attach-controller"
	attacher   = "attacher"
)

const (
	// failoverWithin is much longer than a lease of the lab, for a machine that is busy.
	failoverWithin = 3 * time.Minute
	// endWithin is how long a leader without its lease may take to exit: what it still does by then cannot be written.
	endWithin = 3 * time.Minute
	lookAgain = 50 * time.Millisecond
)

// errStillRuns is a leader that has lost its lease and continues.
var errStillRuns = errors.New("still runs in the process that led, although its standby leads")

// leader is which of a component and its standby leads, as soon as one does.
func (r *run) leader(ctx context.Context, component string) (string, error) {
	return r.awaitLeader(ctx, component, func(leader string, _ time.Time) bool { return leader != "" })
}

// awaitLeader waits until a component or its standby leads as it should.
func (r *run) awaitLeader(ctx context.Context, component string, should func(leader string, renewed time.Time) bool) (leader string, err error) {
	var last error
	err = wait.PollUntilContextTimeout(ctx, lookAgain, failoverWithin, true, func(ctx context.Context) (bool, error) {
		var renewed time.Time
		leader, renewed, last = r.scene.Cluster.Leader(ctx, component)
		return last == nil && should(leader, renewed), nil // the API server may be restarting
	})
	if err != nil {
		return "", fmt.Errorf("waiting for a leader of %s, now it is %q: %w", component, leader, errors.Join(err, last))
	}
	return leader, nil
}

// awaitLeaders waits until processes that live hold both leases: the next seed is to hit the one that leads, and not what a process that was
// killed has left in its lease.
func (r *run) awaitLeaders(ctx context.Context) error {
	now := time.Now()
	for _, component := range []string{controller, attacher} {
		_, err := r.awaitLeader(ctx, component, func(leader string, renewed time.Time) bool { return leader != "" && renewed.After(now) })
		if err != nil {
			return err
		}
	}
	return nil
}

// cutOff cuts a leader off from the API server and heals it as the plan says.
func (r *run) cutOff(ctx context.Context, plan Plan, leader string) error {
	of := controller
	if plan.Victim == CutAttacher {
		of = attacher
	}
	lab := r.scene.Cluster
	before, err := lab.Component(leader)
	if err != nil {
		return err
	}
	if err := lab.PartitionComponent(leader); err != nil {
		return err
	}
	var deposed error
	if plan.Deposed {
		_, deposed = r.awaitLeader(ctx, of, func(now string, _ time.Time) bool { return now != "" && now != leader })
	}
	select {
	case <-time.After(plan.Held):
	case <-ctx.Done():
	}
	if err := errors.Join(deposed, lab.HealComponent(leader)); err != nil || !plan.Deposed {
		return err
	}
	return r.ends(ctx, leader, before.PID)
}

// ends waits until a leader that was deposed has ended, with whatever it had in memory.
func (r *run) ends(ctx context.Context, leader string, pid int) error {
	err := wait.PollUntilContextTimeout(ctx, lookAgain, endWithin, true, func(context.Context) (bool, error) {
		now, err := r.scene.Cluster.Component(leader)
		return now.PID != pid, err
	})
	if err != nil {
		return fmt.Errorf("%s (pid %d) %w: %w", leader, pid, errStillRuns, err)
	}
	return nil
}

// formerLeader cuts the attacher that leads off while its publish fails, so that it has a call to repeat, and moves the volume back. The
// attacher must be done with it before its standby leads.
func (r *run) formerLeader(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 15*time.Minute)
	defer stop()
	former, pid, back := r.moveBackUnderStandby(ctx, t)
	if err := r.ends(ctx, former, pid); err != nil { // it cannot ask the API server, and ends all the same
		t.Error(err)
	}
	if err := r.scene.Cluster.HealComponent(former); err != nil {
		t.Fatal(err)
	}
	r.check(ctx, t, back)
}

// moveBackUnderStandby begins to move the writer, cuts the attacher off that leads when its publish has failed, and moves the writer back,
// which its standby has to do. It returns the former leader, its process, and the node that the writer is on.
func (r *run) moveBackUnderStandby(ctx context.Context, t *testing.T) (former string, pid int, back string) {
	t.Helper()
	lab := r.scene.Cluster
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	from, err := r.scene.WriterNode()
	must(err)
	other := map[string]string{"node-1": "node-2", "node-2": "node-1"}[from]
	fault, err := lab.Fabric().SetFault(ctx, labdisk.Fault{
		Method: "ControllerPublishVolume", Node: other, Effect: labdisk.EffectError, Code: codes.Internal.String(),
	})
	must(err)
	published, err := r.scene.OnStep(ctx, timeline.StepCtrlPublish, from)
	must(err)
	must(r.awaitLeaders(ctx)) // one that was restarted may still be in the lease, and not lead
	former, err = r.leader(ctx, attacher)
	must(err)
	before, err := lab.Component(former)
	must(err)
	must(r.pushTo(ctx, from, other, published))
	must(lab.PartitionComponent(former))
	must(r.cordon(ctx, from, false))
	way, err := r.scene.DeleteAndCordon(ctx, "back, while "+former+" is cut off")
	must(err)
	must(lab.Fabric().ClearFaults(ctx, fault))
	if now, _, err := lab.Leader(ctx, attacher); err != nil || now == former {
		t.Fatalf("%q leads (%v), and it is cut off: the standby did nothing", now, err)
	}
	if way.To != from {
		t.Fatalf("the writer is on %s, want %s", way.To, from)
	}
	return former, before.PID, way.To
}

// pushTo cordons the writer's node and deletes the writer, again when a scheduler that did not know yet of the cordon has placed it there,
// until its volume is published elsewhere and the scene knows that the writer is bound there: the next move begins from what it knows.
func (r *run) pushTo(ctx context.Context, from, to string, published <-chan string) error {
	back, stop := r.scene.Record.Next(func(c timeline.Change) bool {
		return c.Kind == timeline.PodBound && c.Node == from && c.Object == scenario.Namespace+"/"+scenario.WriterPod
	})
	defer stop()
	remove := func() error {
		return r.scene.Client.CoreV1().Pods(scenario.Namespace).Delete(ctx, scenario.WriterPod, metav1.DeleteOptions{})
	}
	if err := errors.Join(r.cordon(ctx, from, true), remove()); err != nil {
		return err
	}
	for gone := false; !gone; {
		select {
		case <-back:
			if err := remove(); err != nil {
				return err
			}
		case <-published:
			gone = true
		case <-ctx.Done():
			return fmt.Errorf("moving the writer from %s to %s: %w", from, to, context.Cause(ctx))
		}
	}
	return wait.PollUntilContextCancel(ctx, lookAgain, true, func(context.Context) (bool, error) {
		now, err := r.scene.WriterNode()
		return err == nil && now == to, nil
	})
}

func (r *run) cordon(ctx context.Context, node string, cordoned bool) error {
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%v}}`, cordoned)
	_, err := r.scene.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// TestFormerLeaderIsSeen: an attacher that takes renewals of its lease that failed for done (the planted fault lease) repeats its call when
// its standby has published the volume to another node. The record of the calls shows it. A controller is seen because it does not end.
func TestFormerLeaderIsSeen(t *testing.T) {
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: builds programs with a fault")
	}
	t.Run("attacher", func(t *testing.T) {
		t.Setenv("BELAY_BIN", binWithFault(t, "belay-attacher", "lease"))
		r := newRun(t, true)
		former, pid, _ := r.moveBackUnderStandby(t.Context(), t)
		if now, err := r.scene.Cluster.Component(former); err != nil || now.PID != pid {
			t.Errorf("%s is %+v (%v), want process %d: the fault is not there", former, now, err, pid)
		}
		var wrong []string
		labtest.Until(t, time.Minute, "the call of the former leader", func() error {
			calls, err := r.scene.Cluster.Fabric().Calls(t.Context(), time.Time{})
			if wrong = callcheck.Check(calls); err == nil && len(wrong) == 0 {
				err = fmt.Errorf("nothing is wrong with %d calls", len(calls))
			}
			return err
		})
		t.Log(wrong)
	})
	t.Run("controller", func(t *testing.T) {
		t.Setenv("BELAY_BIN", binWithFault(t, "belay-controller", "lease"))
		r := newRun(t, true)
		leader, err := r.leader(t.Context(), controller)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
		defer stop()
		if err := r.cutOff(ctx, Plan{Victim: CutController, Deposed: true}, leader); !errors.Is(err, errStillRuns) {
			t.Errorf("the leader that was cut off: %v, want: it %v", err, errStillRuns)
		}
	})
}
