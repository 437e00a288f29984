package nodes

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"belay.dev/belay/node"
)

// Two labs of one name under two cache folders, and one whose name begins alike, must not
// take each other's cgroups away.
func TestLabsWithSameNameHaveDifferentCgroups(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making cgroups needs root")
	}
	mine := Config{Lab: "lab", Name: "node-1", LabDir: filepath.Join(t.TempDir(), "labs", "lab")}
	others := []Config{
		{Lab: "lab", Name: "node-1", LabDir: filepath.Join(t.TempDir(), "labs", "lab")},
		{Lab: "lab-2", Name: "node-1", LabDir: filepath.Join(t.TempDir(), "labs", "lab-2")},
	}
	for _, config := range append(others, mine) {
		if err := makeCgroup(config.Cgroup()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := RemoveCgroups(config.LabDir); err != nil {
				t.Error(err)
			}
		})
	}
	if err := RemoveCgroups(mine.LabDir); err != nil {
		t.Fatal(err)
	}
	if left, err := Cgroups(mine.LabDir); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	for _, config := range others {
		if left, err := Cgroups(config.LabDir); err != nil || len(left) == 0 {
			t.Errorf("the cgroups of the lab in %s went too (%v)", config.LabDir, err)
		}
	}
}

// A node that is frozen takes the request and never answers.
func TestKillOfFrozenNodeTimesOut(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "n") //nolint:usetesting // a socket lies below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	listener, err := net.Listen("unix", (Config{Dir: dir}).ControlSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	done := make(chan error, 1)
	go func() { done <- (&Node{Config: Config{Dir: dir}}).Kill(ChildAgent) }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("an unconfirmed kill is reported as done")
		}
	case <-time.After(testPatience):
		t.Error("the kill waits forever")
	}
}

// noVolumes mounts nothing and waits forever.
type noVolumes struct{}

func (noVolumes) SetPod(*corev1.Pod)                             {}
func (noVolumes) RemovePod(types.UID)                            {}
func (noVolumes) WaitUnmounted(context.Context, types.UID) error { return nil }
func (noVolumes) WaitMounted(ctx context.Context, _ types.UID) ([]node.Mount, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestDeletedPodIsForgotten(t *testing.T) {
	now := metav1.Now()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u", DeletionTimestamp: &now, Finalizers: []string{"test/keep"}}}
	p := newPods(runtimeDeps{
		config: Config{Dir: t.TempDir()}, client: fake.NewClientset(pod), volumes: noVolumes{}, events: record.NewFakeRecorder(100),
	})
	p.set(t.Context(), pod)
	p.running.Wait() // it has ended and was deleted; the watch reports so only now
	p.set(t.Context(), pod)
	if len(p.workers) != 1 {
		t.Errorf("workers while the object is there: %v", p.workers)
	}
	p.remove(pod)
	if len(p.workers) != 0 {
		t.Errorf("workers afterwards: %v", p.workers)
	}
}

// slowVolumes are not mounted in time, with an error of two lines as the agent's.
type slowVolumes struct{ noVolumes }

func (slowVolumes) WaitMounted(ctx context.Context, _ types.UID) ([]node.Mount, error) {
	<-ctx.Done()
	return nil, errors.Join(context.Cause(ctx), errors.New(`volume "data" is waiting`))
}

func TestWaitingPodGetsAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := record.NewFakeRecorder(9)
		ctx, cancel := context.WithTimeout(t.Context(), 2*mountWait+time.Second)
		defer cancel()
		k := &podWorker{runtimeDeps: runtimeDeps{volumes: slowVolumes{}, events: events}}
		if _, ok := k.awaitVolumes(ctx, &corev1.Pod{}); ok {
			t.Error("the volumes are mounted")
		}
		const want = `Warning FailedMount Unable to attach or mount volumes: timed out after 20s, and waiting again: volume "data" is waiting`
		for range 2 {
			if got := <-events.Events; got != want {
				t.Errorf("event %q, want %q", got, want)
			}
		}
		if len(events.Events) > 0 {
			t.Errorf("one more event: %s", <-events.Events)
		}
	})
}
