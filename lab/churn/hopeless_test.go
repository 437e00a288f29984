package churn

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/timeline"
)

const (
	// hopelessFor is how long the controller's cost is measured.
	hopelessFor = 30 * time.Second
	// calmLimit bounds the time in which it may still have something new to say.
	calmLimit = 10 * time.Minute
	// healthy attaches are timed one at a time.
	healthyAttaches = 15
	// A hundredth of a core.
	cpuLimit = 0.01
)

// TestHopelessPodsCostNothing starts many pods whose volumes can never attach: a third
// without a PersistentVolume, a third with a handle that the driver does not know, a third of
// a driver that is not there.
func TestHopelessPodsCostNothing(t *testing.T) {
	r := newRig(t, "churn-none")
	ctx := t.Context()
	pods := labtest.Number(t, "BELAY_CHURN_HOPELESS", 1000)
	if _, err := r.makeVolumes(ctx, 1); err != nil {
		t.Fatal(err)
	}
	_ = r.healthy(ctx, t, "warm", 3)
	before := r.healthy(ctx, t, "before", healthyAttaches)
	idle := r.cost(ctx, t)
	began := time.Now()
	if err := r.hopeless(ctx, pods); err != nil {
		t.Fatal(err)
	}
	calm := r.awaitCalm(ctx, t)
	t.Logf("%d hopeless pods; the controller's last write about them %.0f s after the first", pods, calm.Sub(began).Seconds())
	busy := r.cost(ctx, t)
	after := r.healthy(ctx, t, "after", healthyAttaches)
	t.Logf("CPU of the controller: %.4f of a core without them, %.4f with; writes in %v: %d without, %d with",
		idle.cpu, busy.cpu, hopelessFor, idle.writes, busy.writes)
	t.Logf("pod created -> reported, median of %d: %v without them, %v with", healthyAttaches, before, after)
	if busy.cpu-idle.cpu > cpuLimit {
		t.Errorf("they cost %.4f of a core", busy.cpu-idle.cpu)
	}
	if busy.writes > 0 {
		t.Errorf("%d writes in %v, after the last event was due: %v", busy.writes, hopelessFor, busy.what)
		r.logEvents(ctx, t)
	}
	if after > 2*before && after > before+20*time.Millisecond {
		t.Errorf("a healthy volume took %v with them, %v without", after, before)
	}
	r.check(ctx, t)
}

// hopeless makes the pods, a third of each kind.
func (r *rig) hopeless(ctx context.Context, pods int) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for i := range pods {
		group.Go(func() error {
			name, driver, handle := fmt.Sprintf("hopeless-%d", i), labdisk.DriverDisk, ""
			switch i % 3 {
			case 1:
				handle = fmt.Sprintf("no-such-volume-%d", i)
			case 2:
				driver, handle = "absent.belay.dev", fmt.Sprintf("volume-%d", i)
			}
			if err := r.bind(groupCtx, name, driver, handle); err != nil {
				return err
			}
			return r.create(groupCtx, podOf(name, name, r.nodes[i%len(r.nodes)]))
		})
	}
	return group.Wait()
}

// cost is what the controller used and wrote.
type cost struct {
	cpu    float64 // cores
	writes int
	what   map[string]int
}

func (r *rig) cost(ctx context.Context, t *testing.T) cost {
	t.Helper()
	used, from := r.cpu(t), time.Now()
	written := len(r.ownWrites())
	select {
	case <-time.After(hopelessFor):
	case <-ctx.Done():
		t.Fatal(context.Cause(ctx))
	}
	fresh := r.ownWrites()[written:]
	c := cost{cpu: (r.cpu(t) - used).Seconds() / time.Since(from).Seconds(), writes: len(fresh), what: map[string]int{}}
	for _, right := range fresh {
		c.what[right]++
	}
	return c
}

// ownWrites are the controller's writes but for its lease.
func (r *rig) ownWrites() []string {
	var all []string
	for _, w := range r.proxy.Writes() {
		if w.Resource != "leases" {
			all = append(all, w.Right())
		}
	}
	return all
}

// quiet is longer than the two minutes after which an event on the pod reports that no controller attaches its volume.
const quiet = 130 * time.Second

// awaitCalm waits until the controller has written nothing for some time and returns the
// time of its last write.
func (r *rig) awaitCalm(ctx context.Context, t *testing.T) time.Time {
	t.Helper()
	var last time.Time
	err := until(ctx, calmLimit, "wait until the controller has nothing more to write", func() error {
		time.Sleep(10 * lookAgain)
		for _, w := range r.proxy.Writes() {
			if w.Resource != "leases" && w.Sent.After(last) {
				last = w.Sent
			}
		}
		if since := time.Since(last); since < quiet {
			return fmt.Errorf("its last write was %v ago", since)
		}
		return nil
	})
	if err != nil {
		r.logEvents(ctx, t)
		t.Fatal(err)
	}
	return last
}

var digits = regexp.MustCompile(`[0-9]+|[0-9a-f]{8,}`)

// logEvents logs the events of the pods, with numbers masked, and how often each occurred.
func (r *rig) logEvents(ctx context.Context, t *testing.T) {
	t.Helper()
	events, err := r.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int32{}
	for _, e := range events.Items {
		counts[digits.ReplaceAllString(e.Reason+": "+e.Message, "N")] += max(e.Count, 1)
	}
	for text, n := range counts {
		t.Logf("event %d times: %s", n, text)
	}
}

// clockTick is USER_HZ, a hundredth of a second on Linux.
const clockTick = 10 * time.Millisecond

// cpu is the processor time that the controller has used.
func (r *rig) cpu(t *testing.T) time.Duration {
	t.Helper()
	state, err := r.scene.Cluster.Component("attach-controller")
	if err != nil || state.PID == 0 {
		t.Fatalf("the controller does not run: %+v, %v", state, err)
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", state.PID))
	if err != nil {
		t.Fatal(err)
	}
	// The name in parentheses may hold blanks; utime and stime are fields 14 and 15.
	fields := strings.Fields(string(raw[strings.LastIndex(string(raw), ")")+1:]))
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick
}

// healthy is the median time from a pod's creation to the report of its volume, one pod
// after the other.
func (r *rig) healthy(ctx context.Context, t *testing.T, name string, n int) time.Duration {
	t.Helper()
	unique := r.get(0).unique()
	reported := make(chan time.Time, 1)
	registration, err := r.state.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, now any) {
			if !reports(old.(*corev1.Node), unique) && reports(now.(*corev1.Node), unique) {
				reported <- time.Now()
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.state.Core().V1().Nodes().Informer().RemoveEventHandler(registration) }()
	var all []time.Duration
	for i := range n {
		pod := fmt.Sprintf("healthy-%s-%d", name, i)
		began := time.Now()
		if err := r.place(ctx, 0, r.nodes[i%len(r.nodes)], pod); err != nil {
			t.Fatal(err)
		}
		select {
		case at := <-reported:
			all = append(all, at.Sub(began))
		case <-time.After(runLimit):
			t.Fatalf("the volume of %s was not reported", pod)
		}
		if err := r.awaitRunning(ctx, pod); err != nil {
			t.Fatal(err)
		}
		if err := r.removeAll(ctx); err != nil {
			t.Fatal(err)
		}
		if err := r.awaitDetached(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return timeline.Median(all)
}

// awaitDetached waits until the one healthy volume is attached nowhere.
func (r *rig) awaitDetached(ctx context.Context) error {
	return until(ctx, runLimit, "wait until the volume is detached", func() error {
		held, err := r.scene.Cluster.Fabric().Attachments(ctx)
		if err == nil && len(held) > 0 {
			return fmt.Errorf("%s holds it", held[0].Node)
		}
		return err
	})
}

func reports(node *corev1.Node, unique string) bool {
	for _, v := range node.Status.VolumesAttached {
		if string(v.Name) == unique {
			return true
		}
	}
	return false
}

func (r *rig) create(ctx context.Context, pod *corev1.Pod) error {
	_, err := r.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create pod %s: %w", pod.Name, err)
	}
	return nil
}
