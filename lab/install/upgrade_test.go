package install

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

// TestUpgrade changes the running controller in three ways while a volume moves: an upgrade of the chart, the sudden end of the leading pod, and the return to upstream's
// controller. No volume that stays where it is notices, and no record is lost.
func TestUpgrade(t *testing.T) {
	long(t)
	r := open(t, cluster.Options{Name: "install-upgrade", Nodes: 3})
	r.loadImages(oldVersion, "belay-controller")
	r.loadImages(newVersion, "belay-controller")
	must(t, r.scene.Cluster.SwitchController(t.Context(), cluster.PlaneNone))
	r.helm(oldVersion, nil)
	if _, err := r.scene.Place(t.Context()); err != nil {
		t.Fatal(err)
	}
	crowd, err := r.scene.NewCrowd(t.Context(), scenario.CrowdOptions{
		Name: "crowd", Pods: 6, VolumesPerPod: 3, Nodes: []string{"node-1", "node-2", "node-3"},
	}, within)
	must(t, err)
	check := labtest.Undisturbed(t, r.scene, crowd)
	r.stateGaps("belay-controller")
	r.move("before")
	r.whileMoving("upgrade", func() { r.helm(newVersion, nil) })
	if image := r.leader("belay-controller").Spec.Containers[0].Image; image != "belay.dev/belay-controller:"+newVersion {
		t.Errorf("the leader runs %s", image)
	}
	r.whileMoving("kill -9 of the leader", func() {
		r.kill(r.leader("belay-controller"))
		r.leader("belay-controller") // once the lease of the killed one has run out
	})
	r.move("after")
	r.whileMoving("back to upstream's controller", func() {
		r.uninstall()
		must(t, r.scene.Cluster.SwitchController(t.Context(), cluster.PlaneUpstream))
	})
	check()
	must(t, crowd.Remove(t.Context(), within))
	r.finish()
}

// kill ends the process of a pod's only container with SIGKILL, so that it releases nothing. It is found by the address that it serves at, which no other process has.
func (r *rig) kill(pod *corev1.Pod) {
	r.t.Helper()
	processes, err := procfs.AllProcs()
	must(r.t, err)
	for _, p := range processes {
		words, err := p.CmdLine()
		if err != nil || len(words) == 0 || filepath.Base(words[0]) != pod.Spec.Containers[0].Name || !strings.Contains(strings.Join(words, " "), "["+pod.Status.PodIP+"]:") {
			continue // or it has just ended
		}
		must(r.t, unix.Kill(p.PID, unix.SIGKILL))
		r.t.Logf("killed process %d of pod %s", p.PID, pod.Name)
		return
	}
	r.t.Fatalf("no process of pod %s was found", pod.Name)
}

// stateGaps logs, until the test ends, how long no pod had a lease: from its release, or from the last renewal of a pod that did not release it, until another pod took it.
func (r *rig) stateGaps(lease string) {
	r.t.Helper()
	watcher, err := r.scene.Client.CoordinationV1().Leases("kube-system").Watch(r.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + lease})
	must(r.t, err)
	done := make(chan struct{})
	r.t.Cleanup(func() { watcher.Stop(); <-done })
	go func() {
		defer close(done)
		var holder string
		var free time.Time // since when no pod has it, or when it was renewed last
		for event := range watcher.ResultChan() {
			l, ok := event.Object.(*coordinationv1.Lease)
			if !ok || l.Spec.RenewTime == nil {
				continue
			}
			now := ptr.Deref(l.Spec.HolderIdentity, "")
			if now != "" && now != holder && !free.IsZero() {
				r.t.Logf("no pod led for %.1f s", l.Spec.AcquireTime.Sub(free).Seconds())
			}
			if now != "" {
				holder = now
			}
			free = l.Spec.RenewTime.Time
		}
	}()
}

// long skips what belongs to the long tests.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("NOT RUN: belongs to the long tests")
	}
}

// whileMoving moves the writer again and again until a change is done, and once after it, and states the longest move: the gap in attach and detach is a part of it.
func (r *rig) whileMoving(title string, change func()) {
	r.t.Helper()
	var longest time.Duration
	moves := 0
	done := make(chan struct{})
	go func() {
		defer close(done) // also if the change fails, which ends this goroutine alone
		change()
	}()
	for last := false; !last; moves++ {
		select {
		case <-done:
			last = true
		default:
		}
		longest = max(longest, r.move(title))
	}
	if r.t.Failed() {
		r.t.FailNow()
	}
	r.t.Logf("%s: %d moves, the longest took %.1f s", title, moves, longest.Seconds())
}
