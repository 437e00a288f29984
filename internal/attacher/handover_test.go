package attacher

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Lease times of the tests in which a lease has to run out.
const (
	shortLease = 4 * time.Second
	shortRenew = 2 * time.Second
	shortRetry = 500 * time.Millisecond
)

var shortTimes = []string{
	"--leader-election-lease-duration=" + shortLease.String(),
	"--leader-election-renew-deadline=" + shortRenew.String(),
	"--leader-election-retry-period=" + shortRetry.String(),
}

// candidate starts a child that stands for the lease; the host's name is its identity.
func (w *world) candidate(host, socket string, args ...string) *sidecar {
	w.t.Helper()
	return w.candidateOf(ownExecutable(w.t), host, socket, args...)
}

// upstream starts csi-attacher 4.12 as a candidate, or skips the test.
func (w *world) upstream(host, socket string, args ...string) *sidecar {
	w.t.Helper()
	program := os.Getenv("BELAY_CSI_ATTACHER")
	if program == "" {
		w.t.Skip("needs upstream's attacher: set BELAY_CSI_ATTACHER to the program")
	}
	return w.candidateOf(program, host, socket, append(args, "--kube-api-qps=1000", "--kube-api-burst=1000")...)
}

func (w *world) candidateOf(program, host, socket string, args ...string) *sidecar {
	w.t.Helper()
	// Each has a host of its own. Neither unshare nor the shell stays: the process that
	// was started is the candidate.
	unshare := []string{"--uts", "sh", "-c", `hostname "$0" && exec "$@"`, host, program}
	if os.Geteuid() != 0 {
		unshare = append([]string{"--map-root-user"}, unshare...)
	}
	args = append(w.arguments(socket, args...), "--leader-election", "--leader-election-namespace", shippedNamespace)
	return w.launch(exec.Command("unshare", append(unshare, args...)...))
}

// lease is the one that the candidates stand for.
func (w *world) lease() *coordinationv1.Lease {
	w.t.Helper()
	name := strings.ReplaceAll("external-attacher-leader-"+w.driver.name, ".", "-")
	lease, err := w.client.CoordinationV1().Leases(shippedNamespace).Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return &coordinationv1.Lease{}
	}
	return lease
}

func (w *world) untilLeads(host string) {
	w.t.Helper()
	eventually(w.t, host+" leads", func() bool {
		holder := w.lease().Spec.HolderIdentity
		return holder != nil && *holder == host
	})
}

// untilReady waits for a standby with full caches.
func (w *world) untilReady(address string) {
	w.t.Helper()
	eventually(w.t, address+" is ready", func() bool { return strings.HasPrefix(ask(w.t, address, "/readyz"), "200") })
}

// end sends a signal and tells when the process was gone.
func (s *sidecar) end(signal syscall.Signal) time.Time {
	s.t.Helper()
	if err := s.cmd.Process.Signal(signal); err != nil {
		s.t.Fatal(err)
	}
	<-s.exited
	return time.Now()
}

// socket is one more socket of the driver: a process is told by it.
func (w *world) socket(name string) string {
	w.t.Helper()
	path := filepath.Join(filepath.Dir(w.driver.address), name)
	w.driver.listen(w.t, path)
	return path
}

// fleet makes n volumes on ten nodes, and their attachments.
func (w *world) fleet(n int) (attachments []string) {
	w.t.Helper()
	for i := range 10 {
		w.node(fmt.Sprint("node", i))
	}
	for i := range n {
		w.volume(fmt.Sprint("pv", i))
	}
	for i := range n {
		attachments = append(attachments, w.attachment(fmt.Sprint("pv", i), fmt.Sprint("node", i%10)))
	}
	return attachments
}

func (w *world) untilAttached(attachments []string) {
	w.t.Helper()
	for _, name := range attachments {
		w.until(name, "attached", isAttached)
	}
}

// calls is a copy of what the driver received.
func (d *scriptedDriver) log() []call {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// surplus counts the calls beyond one per volume and method.
func surplus(calls []call) (extra int) {
	seen := sets.New[string]()
	for _, c := range calls {
		if key := c.Method + c.Volume + c.Node; seen.Has(key) {
			extra++
		} else {
			seen.Insert(key)
		}
	}
	return extra
}

func through(calls []call, socket string) []call {
	return slices.DeleteFunc(slices.Clone(calls), func(c call) bool { return c.Socket != socket })
}

// underWay makes n attachments and returns when 15 calls were sent and the others wait
// for theirs. Each takes 200 ms.
func (w *world) underWay(n int) (attachments []string) {
	w.t.Helper()
	made := make(chan struct{})
	w.driver.answers(func(context.Context, call, int) (map[string]string, error) {
		<-made
		<-time.After(200 * time.Millisecond)
		return nil, nil
	})
	attachments = w.fleet(n)
	close(made)
	w.driver.waitCalls(w.t, 15)
	return attachments
}

// The leader gets SIGTERM with 100 attachments under way: the calls in flight end and
// are recorded, nothing is begun, and the standby sends its first call within two
// seconds, although it asks for the lease by itself every five. No call is lost, none
// doubled.
func TestHandOverOnSIGTERM(t *testing.T) {
	w := newWorld(t)
	a, b, health := w.socket("a"), w.socket("b"), freeAddress(t)
	leader := w.candidate("host-a", a, "--leader-election-labels=owner:storage")
	w.untilLeads("host-a")
	if labels := w.lease().Labels; labels["owner"] != "storage" {
		t.Errorf("labels of the lease: %v", labels)
	}
	w.candidate("host-b", b, "--http-endpoint="+health)
	w.untilReady(health)
	attachments := w.underWay(100)
	ended := leader.end(syscall.SIGTERM)
	leader.endsWith(1, "every call ended and is recorded")
	w.untilAttached(attachments)

	calls := w.driver.log()
	first, second := through(calls, a), through(calls, b)
	if len(first) == 100 || len(second) == 0 {
		t.Fatalf("nothing was handed over: %d and %d calls", len(first), len(second))
	}
	took := second[0].At.Sub(ended)
	t.Logf("%d calls by the leader, %d by the standby, the first %v after the leader ended", len(first), len(second), took.Round(time.Millisecond))
	if took > 2*time.Second {
		t.Errorf("the standby sent its first call after %v", took)
	}
	if last := first[len(first)-1].At; last.After(second[0].At) {
		t.Error("both sent calls at once")
	}
	if len(calls) != 100 || surplus(calls) != 0 {
		t.Errorf("%d calls, %d of them surplus", len(calls), surplus(calls))
	}
}

// The leader is killed with calls in flight: the standby goes on when the lease has run
// out, and repeats, once each, only the calls that were sent and not recorded.
func TestHandOverOnCrash(t *testing.T) {
	w := newWorld(t)
	a, b, health := w.socket("a"), w.socket("b"), freeAddress(t)
	leader := w.candidate("host-a", a, append(shortTimes, "--worker-threads=10")...)
	w.untilLeads("host-a")
	w.candidate("host-b", b, append(shortTimes, "--http-endpoint="+health)...)
	w.untilReady(health)
	attachments := w.underWay(100)
	ended := leader.end(syscall.SIGKILL)
	unrecorded := map[string]bool{}
	for _, va := range w.list() {
		if source := va.Spec.Source.PersistentVolumeName; source != nil && !va.Status.Attached {
			unrecorded[*source] = true
		}
	}
	w.untilAttached(attachments)

	calls := w.driver.log()
	second := through(calls, b)
	if len(second) == 0 {
		t.Fatal("nothing was handed over")
	}
	took := second[0].At.Sub(ended)
	t.Logf("first call %v after the kill, %d calls surplus", took.Round(time.Millisecond), surplus(calls))
	if most := shortLease + 2*time.Second; took > most {
		t.Errorf("the standby sent its first call after %v, want %v at most", took, most)
	}
	sent := map[string]int{}
	for _, c := range calls {
		if sent[c.Volume]++; sent[c.Volume] > 2 {
			t.Errorf("%s was published %d times", c.Volume, sent[c.Volume])
		}
		if c.Socket == b && sent[c.Volume] > 1 && !unrecorded[c.Volume] {
			t.Errorf("%s was published again although it was recorded as attached", c.Volume)
		}
	}
}

// The leader is frozen for longer than its lease and thaws with work at hand: it sends
// no call and writes nothing, and ends. The one that took over is frozen meanwhile, so
// that all the work is there to be done.
func TestThawedLeaderSendsNothing(t *testing.T) {
	w := newWorld(t)
	answered := make(chan struct{})
	a, b, health := w.socket("a"), w.socket("b"), freeAddress(t)
	w.driver.answers(func(_ context.Context, c call, _ int) (map[string]string, error) {
		if c.Socket == a {
			<-answered
		}
		return nil, nil
	})
	// Each volume that gets its answer makes room for another one.
	leader := w.candidate("host-a", a, append(shortTimes, "--worker-threads=3")...)
	w.untilLeads("host-a")
	next := w.candidate("host-b", b, append(shortTimes, "--http-endpoint="+health)...)
	w.untilReady(health)
	attachments := w.fleet(30)
	w.driver.waitCalls(t, 3)

	signal := func(s *sidecar, signal syscall.Signal) {
		t.Helper()
		if err := s.cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
	}
	signal(leader, syscall.SIGSTOP)
	eventually(t, "the standby leads", func() bool {
		holder := w.lease().Spec.HolderIdentity
		if holder == nil || *holder != "host-b" {
			return false
		}
		signal(next, syscall.SIGSTOP)
		return true
	})
	before := len(through(w.driver.log(), a))
	versions := map[string]string{}
	for _, va := range w.list() {
		versions[va.Name] = va.ResourceVersion
	}
	close(answered) // three replies wait for the one that thaws
	signal(leader, syscall.SIGCONT)
	leader.endsWith(1, "lost the leader lease")
	leader.waitLog("the leader lease was not renewed in time") // it tried
	if after := len(through(w.driver.log(), a)); after != before {
		t.Errorf("the thawed leader sent %d calls", after-before)
	}
	for _, va := range w.list() {
		if va.ResourceVersion != versions[va.Name] {
			t.Errorf("VolumeAttachment %s was written", va.Name)
		}
	}
	signal(next, syscall.SIGCONT)
	select {
	case <-next.exited: // it was frozen for too long itself
		w.candidate("host-c", b, shortTimes...)
	default:
	}
	w.untilAttached(attachments)
}

// csi-attacher 4.12 and belay-attacher hand over to each other, by crash and in good
// order, with 200 volumes attached: one sends calls at a time, what is attached is left
// alone, and what is not is attached.
func TestHandOverBetweenUpstreamAndBelay(t *testing.T) {
	w := newWorld(t)
	health := freeAddress(t)
	sockets := []string{w.socket("1"), w.socket("2"), w.socket("3")}
	first := w.upstream("host-1", sockets[0], shortTimes...)
	w.untilLeads("host-1")
	second := w.candidate("host-2", sockets[1], append(shortTimes, "--http-endpoint="+health)...)
	w.untilReady(health)
	attachments := w.fleet(200)
	w.untilAttached(attachments)
	if got := through(w.driver.log(), sockets[1]); len(got) > 0 {
		t.Fatalf("the standby sent %d calls", len(got))
	}
	byUpstream := len(w.driver.log())

	ended := first.end(syscall.SIGTERM) // it does not give its lease back
	w.untilLeads("host-2")
	if took := time.Since(ended); took > shortLease+shortRenew {
		t.Errorf("belay took over after %v", took)
	}
	w.volume("after-1")
	w.untilAttached([]string{w.attachment("after-1", "node1")})
	second.waitLog("Attaching")
	if got := w.driver.log()[byUpstream:]; len(got) != 1 || got[0].Socket != sockets[1] {
		t.Errorf("after the first hand-over: %v", got)
	}

	w.upstream("host-3", sockets[2], shortTimes...)
	w.volume("after-2")
	w.untilAttached([]string{w.attachment("after-2", "node2")})
	byBelay := len(w.driver.log())
	if got := through(w.driver.log(), sockets[2]); len(got) > 0 {
		t.Errorf("upstream sent %d calls beside belay", len(got))
	}
	second.end(syscall.SIGTERM)
	w.untilLeads("host-3")
	w.volume("after-3")
	w.untilAttached([]string{w.attachment("after-3", "node3")})
	w.delete(attachments[0]) // made by upstream's first life
	w.until(attachments[0], "gone", isGone)
	for _, c := range w.driver.log()[byBelay:] {
		if c.Socket != sockets[2] || c.Volume != w.name("after-3") && c.Method != "Unpublish" {
			t.Errorf("after the second hand-over: %s %s through %s", c.Method, c.Volume, c.Socket)
		}
	}
	for _, name := range attachments[1:] {
		if !isAttached(w.get(name)) {
			t.Errorf("%s is not attached", name)
		}
	}
}
