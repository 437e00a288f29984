package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/nodes"
	"belay.dev/belay/lab/scenario"
)

const (
	// unmountWait replaces upstream's six minutes.
	unmountWait = time.Minute
	// machineOff is when, after the detach began to wait, the lost machine loses its power.
	machineOff = 30 * time.Second
	// atOnce bounds a detach that waits for nothing; kubelet's ticks are not part of it.
	atOnce = 10 * time.Second
	// collected bounds PodGC: it looks every 20 s for pods whose Node is gone for 40 s.
	collected = 3 * time.Minute
	moved     = 3 * time.Minute
)

// TestNodeDeletedWhileItsContainersWrite stops a kubelet, whose containers keep writing, and deletes the Node, as
// people do to move a volume that is stuck.
func TestNodeDeletedWhileItsContainersWrite(t *testing.T) {
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: a Node that is deleted under its containers belongs to the long tests")
	}
	if kind, because := cluster.DefaultNodeKind(); kind != cluster.NodeKindKubelet {
		t.Skip("NOT RUN: " + because)
	}
	// The storage that forbids nothing would let a second writer through: none must try.
	t.Run("wait", func(t *testing.T) {
		waitsUntilTheMachineIsOff(t, lose(t, "wait", true))
	})
	// The strict one cuts the writer off when the volume is taken from it.
	t.Run("detach", func(t *testing.T) {
		movesAtOnceAndCutsTheWriter(t, lose(t, "detach", false))
	})
}

// lost is a lab whose writer's node was deleted; its containers still write.
type lost struct {
	scene    *scenario.Scene
	from, to string
	log      string    // pattern of the writer's log on the lost machine
	podGone  time.Time // the old pod's object was gone, so no pod wanted the volume there
	handle   string
}

func lose(t *testing.T, policy string, permissive bool) *lost {
	t.Helper()
	ctx := t.Context()
	scene := labtest.Open(t, cluster.Options{
		Name: "e2e-lost", Nodes: 2, NodeKind: cluster.NodeKindKubelet, Plane: cluster.PlaneBelay, Permissive: permissive,
		Drivers: []string{labdisk.DriverDisk}, NodeMonitorGrace: 12 * time.Second, NodeStatusUpdateFrequency: time.Second,
		ControllerArgs: []string{"--deleted-node-policy=" + policy, "--max-wait-for-unmount-duration=" + unmountWait.String()},
	})
	if _, err := scene.Place(ctx); err != nil {
		t.Fatal(err)
	}
	from, err := scene.WriterNode()
	if err != nil {
		t.Fatal(err)
	}
	volume, err := scene.Record.Volume(scenario.ClaimKey)
	if err != nil {
		t.Fatal(err)
	}
	node := scene.Cluster.Node(from)
	l := &lost{scene: scene, from: from, to: map[string]string{"node-1": "node-2", "node-2": "node-1"}[from], handle: volume.Handle,
		log: filepath.Join(node.Config.Dir, "pod-logs", scenario.Namespace+"_"+scenario.WriterPod+"_*", "ledger", "*.log")}
	old, err := scene.Client.CoreV1().Pods(scenario.Namespace).Get(ctx, scenario.WriterPod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := node.FreezeChild(nodes.ChildAgent); err != nil {
		t.Fatal(err)
	}
	// A frozen kubelet would delay the end of the lab.
	t.Cleanup(func() { _ = scene.Cluster.PowerOff(from) })
	labtest.Until(t, collected, from+" to be taken for dead", func() error { return l.notReady(ctx) })
	if err := scene.Client.CoreV1().Nodes().Delete(ctx, from, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.stillWrites(t)
	labtest.Until(t, collected, "the pod of the deleted node to be collected", func() error {
		pod, err := scene.Client.CoreV1().Pods(scenario.Namespace).Get(ctx, scenario.WriterPod, metav1.GetOptions{})
		if err != nil || pod.UID != old.UID {
			return nil //nolint:nilerr // it is gone
		}
		return errors.New("it is there")
	})
	l.podGone = time.Now()
	return l
}

func (l *lost) notReady(ctx context.Context) error {
	node, err := l.scene.Client.CoreV1().Nodes().Get(ctx, l.from, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return nil
		}
	}
	return errors.New("it is Ready")
}

var acknowledgement = regexp.MustCompile(`acknowledged (\d+)`)

// acknowledged is the highest record that the writer on the lost machine has confirmed, read from its log there: the
// API server cannot reach that log.
func (l *lost) acknowledged(t *testing.T) int64 {
	t.Helper()
	files, err := filepath.Glob(l.log)
	if err != nil || len(files) == 0 {
		t.Fatalf("no log at %s (%v)", l.log, err)
	}
	var highest int64
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range acknowledgement.FindAllSubmatch(raw, -1) {
			n, err := strconv.ParseInt(string(match[1]), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			highest = max(highest, n)
		}
	}
	return highest
}

func (l *lost) stillWrites(t *testing.T) {
	t.Helper()
	before := l.acknowledged(t)
	labtest.Until(t, 10*time.Second, "the containers of the lost machine to write on", func() error {
		if now := l.acknowledged(t); now <= before {
			return fmt.Errorf("still at record %d", now)
		}
		return nil
	})
}

// controllerCalls are the calls of a method about the volume on a node.
func (l *lost) controllerCalls(t *testing.T, method, node string) []labdisk.Call {
	t.Helper()
	all, err := l.scene.Cluster.Fabric().Calls(t.Context(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	var found []labdisk.Call
	for _, c := range all {
		if c.Method == method && c.Volume == l.handle && c.Node == node {
			found = append(found, c)
		}
	}
	return found
}

func (l *lost) violations(t *testing.T) []labdisk.Violation {
	t.Helper()
	found, err := l.scene.Violations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// arrives waits until the writer runs on the other node and all records are there, also
// those that only the lost machine knows of.
func (l *lost) arrives(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	labtest.Until(t, moved, "the writer to run on "+l.to, func() error {
		pod, err := l.scene.Client.CoreV1().Pods(scenario.Namespace).Get(ctx, scenario.WriterPod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.Spec.NodeName != l.to || pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("it is %s on %q", pod.Status.Phase, pod.Spec.NodeName)
		}
		return nil
	})
	last := l.acknowledged(t)
	found, err := l.scene.Verify(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if found.Count < last {
		t.Errorf("%d records are in place, but record %d was acknowledged on the lost machine", found.Count, last)
	}
	t.Logf("%d records in place; the lost machine had acknowledged %d", found.Count, last)
}

// waitsUntilTheMachineIsOff: the machine is switched off while the detach waits, so that no container can write any
// more when the wait is over.
func waitsUntilTheMachineIsOff(t *testing.T, l *lost) {
	t.Helper()
	l.stillWrites(t)
	for time.Since(l.podGone) < machineOff {
		if calls := l.controllerCalls(t, "ControllerPublishVolume", l.to); len(calls) > 0 {
			t.Fatalf("attached to %s while the containers of %s could write: %+v", l.to, l.from, calls)
		}
		time.Sleep(time.Second)
	}
	l.stillWrites(t)
	if err := l.scene.Cluster.PowerOff(l.from); err != nil {
		t.Fatal(err)
	}
	l.arrives(t)
	unpublished := l.controllerCalls(t, "ControllerUnpublishVolume", l.from)
	published := l.controllerCalls(t, "ControllerPublishVolume", l.to)
	if len(unpublished) != 1 || len(published) != 1 {
		t.Fatalf("unpublished %+v, published %+v: want one of each", unpublished, published)
	}
	waited := unpublished[0].Start.Sub(l.podGone)
	t.Logf("detached %.1f s after the pod was gone, attached elsewhere %.3f s later", waited.Seconds(),
		published[0].Start.Sub(unpublished[0].End).Seconds())
	// The time on the object is in whole seconds.
	if waited < unmountWait-2*time.Second || waited > unmountWait+atOnce {
		t.Errorf("waited %v, want about %v", waited, unmountWait)
	}
	if published[0].Start.Before(unpublished[0].End) {
		t.Errorf("published to %s before it was unpublished from %s", l.to, l.from)
	}
	if found := l.violations(t); len(found) > 0 {
		t.Errorf("%d writes of two writers, the first: %+v", len(found), found[0])
	}
}

// movesAtOnceAndCutsTheWriter: the volume is detached while the writer uses it, and the writer loses its access.
func movesAtOnceAndCutsTheWriter(t *testing.T, l *lost) {
	t.Helper()
	labtest.Until(t, moved, "the volume to be detached", func() error {
		if len(l.controllerCalls(t, "ControllerUnpublishVolume", l.from)) == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	waited := l.controllerCalls(t, "ControllerUnpublishVolume", l.from)[0].Start.Sub(l.podGone)
	if waited > atOnce {
		t.Errorf("detached %v after the pod was gone, want at once", waited)
	}
	l.arrives(t)
	cut := 0
	for _, v := range l.violations(t) {
		if v.Node != l.from || !v.Refused {
			t.Errorf("a write that should not be: %+v", v)
		}
		cut++
	}
	if cut == 0 {
		t.Error("no write was cut off: did the containers write at all?")
	}
	t.Logf("detached %.1f s after the pod was gone; %d writes of the lost machine were cut off", waited.Seconds(), cut)
}
