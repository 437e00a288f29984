package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/scenario"
	"belay.dev/belay/lab/timeline"
)

// recoveryNodes is how many nodes a lab has: one for the writer, and one that is free while two start again.
const recoveryNodes = 4

// recoveryLab is a lab whose nodes are taken away one after the other.
type recoveryLab struct {
	name string
	// nodes is their kind, plane whose attach/detach controller runs, profile that of recovery, empty for none.
	nodes, plane, profile string
	faults                []string
	// runs of each fault.
	runs int
	// wait is how long a node is left alone in the end, for a lab without recovery; zero for not at all.
	wait time.Duration
	say  func(format string, args ...any)
}

func (l recoveryLab) String() string {
	if l.profile == "" {
		return fmt.Sprintf("%s nodes, upstream without recovery, %d runs of each of %q", l.nodes, l.runs, l.faults)
	}
	return fmt.Sprintf("%s nodes, profile %s, attach/detach of %s, %d runs of each of %q", l.nodes, l.profile, l.plane, l.runs, l.faults)
}

// brakes for a lab in which nodes are lost in a row.
func brakes() []string {
	return []string{"--recovery-max-fences=1000", "--recovery-max-silent-share=1"}
}

func (l recoveryLab) options() cluster.Options {
	o := cluster.Options{
		Name: l.name, Nodes: recoveryNodes, NodeKind: l.nodes, Plane: l.plane, Drivers: []string{labdisk.DriverDisk}, Recovery: l.profile,
	}
	if l.profile != "" {
		o.RecoveryArgs = brakes()
	}
	return o
}

// settings say what is not as shipped.
func (l recoveryLab) settings() []string {
	kubelet := "kubelet's defaults: nodeLeaseDurationSeconds 40, nodeStatusUpdateFrequency 10s"
	if l.profile == fencing.Fast.Name {
		kubelet = "nodeLeaseDurationSeconds 10, nodeStatusUpdateFrequency 1s, nodeStatusReportFrequency 5m, as the profile assumes"
	}
	if l.profile == "" {
		return []string{
			kubelet, "kube-controller-manager and csi-attacher as shipped (--node-monitor-grace-period 50s), but for leader election: no timer of a dead node is shortened",
			"the node switched off and the out-of-service taint set by a script as soon as the node is NotReady: a person takes longer",
		}
	}
	return []string{
		kubelet, strings.Join(brakes(), " ") + ": all runs are in one lab",
		"leases of leader election of 6s instead of 15s; no leader changes in a run",
	}
}

// renewal is how often a node of the lab renews its lease.
func (l recoveryLab) renewal() time.Duration {
	if l.profile == fencing.Fast.Name {
		return fencing.Fast.LeaseDuration / 4
	}
	return fencing.Default.LeaseDuration / 4
}

// measure makes all runs of a lab, and adds what it found to the report, also when it fails.
func (l recoveryLab) measure(ctx context.Context, report *RecoveryReport) (err error) {
	r, err := openRecovery(ctx, l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	series := map[string]*RecoverySeries{}
	for _, fault := range l.faults {
		if l.runs == 0 {
			break
		}
		series[fault] = &RecoverySeries{Nodes: l.nodes, Plane: l.plane, Profile: l.profile, Fault: fault, Settings: l.settings()}
		report.Series = append(report.Series, series[fault])
	}
	defer func() {
		for _, s := range series {
			s.summarize(recoveryLimits[l.profile])
		}
	}()
	for i := range l.runs {
		for _, fault := range l.faults {
			run, err := r.run(ctx, fault)
			if err != nil {
				return fmt.Errorf("run %d, %s: %w", i+1, fault, err)
			}
			series[fault].Runs = append(series[fault].Runs, run)
			l.say("run %d of %d, %s", i+1, l.runs, run)
		}
	}
	if l.wait > 0 {
		alone, err := r.leaveAlone(ctx)
		if err != nil {
			return err
		}
		report.LeftAlone = append(report.LeftAlone, alone)
	}
	return nil
}

func (r RecoveryRun) String() string {
	if r.Failure != "" {
		return fmt.Sprintf("%s of %s FAILED: %s", r.Fault, r.From, r.Failure)
	}
	var hops []string
	for _, h := range r.Hops {
		hops = append(hops, fmt.Sprintf("%s %.2f", h.Name, h.Seconds))
	}
	return fmt.Sprintf("%s: %s -> %s in %.2f s (%s)", r.Fault, r.From, r.To, r.Seconds, strings.Join(hops, ", "))
}

// run takes the writer's node away, and switches it on again at the end. The error is that of a lab that cannot continue; what went wrong in
// the run alone is in it.
func (r *recoveryRig) run(ctx context.Context, fault string) (RecoveryRun, error) {
	run := RecoveryRun{Fault: fault}
	if err := r.awaitReady(ctx); err != nil {
		return run, err
	}
	if err := pause(ctx, rand.N(r.lab.renewal())); err != nil { //nolint:gosec // not a secret
		return run, err
	}
	pod, err := r.writer(ctx)
	if err != nil {
		return run, err
	}
	run.From = pod.Spec.NodeName
	if err := r.fail(ctx, &run, pod); err != nil {
		if ctx.Err() != nil {
			return run, err
		}
		run.Failure = err.Error()
	}
	return run, r.restore(ctx, run.From)
}

// fail takes the node away and measures; its error is a failure of the run.
func (r *recoveryRig) fail(ctx context.Context, run *RecoveryRun, pod *corev1.Pod) error {
	before, err := r.scene.Violations(ctx)
	if err != nil {
		return err
	}
	take := r.scene.PowerCut
	if run.Fault == FaultHung {
		take = r.scene.Hang
	}
	move, err := take(ctx, run.Fault)
	if err != nil {
		return err
	}
	run.Start, run.To = move.Start, move.To
	verified, err := r.scene.Verify(ctx)
	if verified != nil {
		run.Acknowledged, run.Found = verified.Acknowledged, verified.Count
	}
	if err != nil {
		return err
	}
	after, err := r.scene.Violations(ctx)
	if err != nil {
		return err
	}
	if len(after) > len(before) {
		return fmt.Errorf("the storage refused writes: %+v", after[len(before):])
	}
	if !verified.Since.After(run.Start) {
		return fmt.Errorf("the last writer began at %v, before the fault", verified.Since)
	}
	moments, err := r.moments(ctx, run, pod, move.Volume)
	if err != nil {
		return err
	}
	run.Hops = budget(run.Start, append(moments, moment{"first record written", verified.Since}))
	run.Seconds = verified.Since.Sub(run.Start).Seconds()
	return nil
}

// moments of a run, but for its end, in their order.
func (r *recoveryRig) moments(ctx context.Context, run *RecoveryRun, pod *corev1.Pod, volume timeline.Volume) ([]moment, error) {
	changes := r.scene.Record.Changes()
	seen := func(fits func(timeline.Change) bool) time.Time {
		i := slices.IndexFunc(changes, func(c timeline.Change) bool { return c.At.After(run.Start) && fits(c) })
		if i < 0 {
			return time.Time{}
		}
		return changes[i].At
	}
	on := func(kind timeline.Kind, node string) time.Time {
		return seen(func(c timeline.Change) bool {
			return c.Kind == kind && c.Node == node && (c.Volume == "" || c.Volume == volume.PV || c.Volume == volume.Unique)
		})
	}
	moments := []moment{{"NotReady", on(timeline.NodeNotReady, run.From)}, {"off, marked out of service", on(timeline.OutOfService, run.From)}}
	if r.lab.profile != "" {
		var err error
		if moments, err = r.fenced(run); err != nil {
			return nil, err
		}
	}
	written, err := r.firstWrite(ctx, run, volume)
	if err != nil {
		return nil, err
	}
	attached, reported := on(timeline.AttachmentAttached, run.To), on(timeline.Reported, run.To)
	if reported.After(attached) {
		attached = reported
	}
	return append(moments,
		moment{"pod gone", seen(func(c timeline.Change) bool { return c.Kind == timeline.PodGone && c.UID == string(pod.UID) })},
		moment{"replacement bound", seen(func(c timeline.Change) bool {
			return c.Kind == timeline.PodBound && c.Object == scenario.Namespace+"/"+scenario.WriterPod && c.UID != string(pod.UID)
		})},
		moment{"old attachment gone", on(timeline.AttachmentGone, run.From)},
		moment{"attached and reported", attached}, moment{"mounted", written}), nil
}

// fenced are the moments of the node's fence.
func (r *recoveryRig) fenced(run *RecoveryRun) ([]moment, error) {
	off := moment{Name: "switched off by its BMC"}
	log, err := r.scene.Cluster.BMCLog(run.From)
	if err != nil {
		return nil, err
	}
	for _, request := range log {
		if request.Request == cluster.BMCOff && request.Error == "" && request.Began.After(run.Start) && off.At.IsZero() {
			off.At = request.Ended
		}
	}
	phase := func(p fencing.Phase) time.Time { return r.fences.reached(run.From, run.Start, p) }
	return []moment{
		{"suspected", r.fences.reached(run.From, run.Start, created)}, {"isolated", phase(fencing.Fencing)}, off,
		{"off confirmed", phase(fencing.Tainting)}, {"tainted, and off again", phase(fencing.Evicting)},
	}, nil
}

// firstWrite is the first write on the new node that the storage accepted: that of the mount.
func (r *recoveryRig) firstWrite(ctx context.Context, run *RecoveryRun, volume timeline.Volume) (first time.Time, err error) {
	all, err := r.scene.Cluster.Fabric().Writes(ctx)
	if err != nil {
		return first, fmt.Errorf("ask the storage for its writes: %w", err)
	}
	for _, w := range all {
		if w.Volume == volume.Handle && w.Node == run.To && w.First.After(run.Start) && first.IsZero() {
			first = w.First
		}
	}
	return first, nil
}

// writer is the pod that writes.
func (r *recoveryRig) writer(ctx context.Context) (*corev1.Pod, error) {
	pod, err := r.scene.Client.CoreV1().Pods(scenario.Namespace).Get(ctx, scenario.WriterPod, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the writer's pod: %w", err)
	}
	return pod, nil
}
