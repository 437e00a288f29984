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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"belay.dev/belay/internal/testing/process"
	"belay.dev/belay/internal/testing/wait"
)

// Lease times of the tests. With none of them a machine that is slow costs a leader its lease.
var (
	// patientTimes are those of candidates that ask for the lease all the time, and of all that have no others.
	patientTimes = leaseTimes(5*time.Minute, 4*time.Minute, 500*time.Millisecond)
	// aloofTimes are the lease times of candidates that never get the lease by polling: a watch event reports when it
	// is free.
	aloofTimes = leaseTimes(30*time.Minute, 20*time.Minute, 10*time.Minute)
)

// lateAnswers is the timeout of the candidates' calls. A test may answer them only after it has created many objects, and a call that times
// out is repeated.
const lateAnswers = "--timeout=2m"

func leaseTimes(duration, renew, retry time.Duration) []string {
	return []string{
		"--leader-election-lease-duration=" + duration.String(),
		"--leader-election-renew-deadline=" + renew.String(),
		"--leader-election-retry-period=" + retry.String(),
	}
}

// candidate starts a child process that is a candidate for the lease; the host's name is its identity.
func (w *world) candidate(host, socket string, args ...string) *process.Process {
	w.t.Helper()
	return w.candidateOf(os.Args[0], host, socket, args...)
}

// upstream starts csi-attacher 4.12 as a candidate, or skips the test.
func (w *world) upstream(host, socket string, args ...string) *process.Process {
	w.t.Helper()
	program := os.Getenv("BELAY_CSI_ATTACHER")
	if program == "" {
		w.t.Skip("needs upstream's attacher: set BELAY_CSI_ATTACHER to the program")
	}
	return w.candidateOf(program, host, socket, append(args, "--kube-api-qps=1000", "--kube-api-burst=1000")...)
}

func (w *world) candidateOf(program, host, socket string, args ...string) *process.Process {
	w.t.Helper()
	// Each has a host of its own. Neither unshare nor the shell stays: the process that
	// was started is the candidate.
	unshare := []string{"--uts", "sh", "-c", `hostname "$0" && exec "$@"`, host, program}
	if os.Geteuid() != 0 {
		unshare = append([]string{"--map-root-user"}, unshare...)
	}
	args = w.arguments(socket, slices.Concat([]string{"--leader-election", "--leader-election-namespace", shippedNamespace, lateAnswers}, patientTimes, args)...)
	return w.launch(exec.Command("unshare", append(unshare, args...)...))
}

// lease is the one that the candidates stand for.
func (w *world) lease() *coordinationv1.Lease {
	w.t.Helper()
	lease, err := w.client.CoordinationV1().Leases(shippedNamespace).Get(w.t.Context(), w.leaseName(), metav1.GetOptions{})
	if err != nil {
		return &coordinationv1.Lease{}
	}
	return lease
}

func (w *world) leaseName() string {
	return strings.ReplaceAll("external-attacher-leader-"+w.driver.Name, ".", "-")
}

// runsOut makes the lease of an ended leader expire within a second. Leaders hold it for minutes, so that a busy
// machine does not depose them.
func (w *world) runsOut() {
	w.t.Helper()
	_, err := w.client.CoordinationV1().Leases(shippedNamespace).Patch(w.t.Context(), w.leaseName(), types.MergePatchType,
		[]byte(`{"spec":{"leaseDurationSeconds":1}}`), metav1.PatchOptions{})
	must(w.t, err)
}

// take gives the lease to a host.
func (w *world) take(host string) {
	w.t.Helper()
	wait.Until(w.t, host+" has the lease", func() bool {
		lease := w.lease()
		lease.Spec.HolderIdentity, lease.Spec.RenewTime = &host, new(metav1.NowMicro())
		*lease.Spec.LeaseTransitions++
		_, err := w.client.CoordinationV1().Leases(shippedNamespace).Update(w.t.Context(), lease, metav1.UpdateOptions{})
		return err == nil // else it was renewed meanwhile
	})
}

func (w *world) untilLeads(host string) {
	w.t.Helper()
	wait.Until(w.t, host+" leads", func() bool {
		holder := w.lease().Spec.HolderIdentity
		return holder != nil && *holder == host
	})
}

// untilReady waits for a standby with full caches.
func (w *world) untilReady(address string) {
	w.t.Helper()
	wait.Until(w.t, address+" is ready", func() bool { return strings.HasPrefix(ask(w.t, address, "/readyz"), "200") })
}

// end sends a signal and returns when the process was gone.
func end(p *process.Process, signal syscall.Signal) time.Time {
	p.Stop(signal)
	return time.Now()
}

// socket opens another socket of the driver. The driver tells the processes apart by their sockets.
func (w *world) socket(name string) string {
	w.t.Helper()
	path := filepath.Join(filepath.Dir(w.driver.Address), name)
	w.driver.Listen(path)
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

// underWay creates n attachments and returns when 15 calls were sent, of which the first ten are answered. No other
// call is answered before answered is closed.
func (w *world) underWay(n int) (attachments []string, answered chan struct{}) {
	w.t.Helper()
	answered = make(chan struct{})
	w.driver.SetAnswer(func(_ context.Context, _ call, nth int) (map[string]string, error) {
		if nth >= 10 {
			<-answered
		}
		return nil, nil
	})
	attachments = w.fleet(n)
	w.driver.WaitCalls(15)
	return attachments, answered
}

// The leader gets SIGTERM with 100 attachments in progress: the calls in flight end and are recorded, no call is
// started, and the standby continues immediately, although it polls the lease only every ten minutes. No call is lost
// or sent twice.
func TestHandoffOnSIGTERM(t *testing.T) {
	w := newWorld(t)
	a, b, health := w.socket("a"), w.socket("b"), process.FreeAddress()
	// With as many calls in flight as there are attachments, all could be sent before the signal arrives.
	leader := w.candidate("host-a", a, append(aloofTimes, "--worker-threads=50", "--leader-election-labels=owner:storage")...)
	w.untilLeads("host-a")
	if labels := w.lease().Labels; labels["owner"] != "storage" {
		t.Errorf("labels of the lease: %v", labels)
	}
	w.candidate("host-b", b, append(aloofTimes, "--http-endpoint="+health)...)
	w.untilReady(health)
	attachments, answered := w.underWay(100)
	leader.Signal(syscall.SIGTERM)
	leader.WaitLog("waiting for calls in flight")
	close(answered)
	leader.WantExit(1, "the results of all calls were recorded")
	ended := time.Now()
	w.untilAttached(attachments)

	calls := w.driver.Calls()
	first, second := through(calls, a), through(calls, b)
	if len(first) == 100 || len(second) == 0 {
		t.Fatalf("no work was left for the next leader: %d and %d calls", len(first), len(second))
	}
	t.Logf("%d calls by the leader, %d by the standby, the first %v after the leader ended", len(first), len(second), second[0].At.Sub(ended).Round(time.Millisecond))
	if last := first[len(first)-1].At; last.After(second[0].At) {
		t.Error("both sent calls at once")
	}
	if len(calls) != 100 || surplus(calls) != 0 {
		t.Errorf("%d calls, %d of them surplus", len(calls), surplus(calls))
	}
}

// The leader is killed with calls in flight: the standby continues when the lease has expired, and repeats, once each,
// only the calls that were sent and not recorded.
func TestFailoverOnCrash(t *testing.T) {
	w := newWorld(t)
	a, b, health := w.socket("a"), w.socket("b"), process.FreeAddress()
	leader := w.candidate("host-a", a, append(aloofTimes, "--worker-threads=10")...)
	w.untilLeads("host-a")
	w.candidate("host-b", b, append(aloofTimes, "--http-endpoint="+health)...)
	w.untilReady(health)
	attachments, answered := w.underWay(100)
	ended := end(leader, syscall.SIGKILL)
	close(answered)
	unrecorded := map[string]bool{}
	for _, va := range w.list() {
		if source := va.Spec.Source.PersistentVolumeName; source != nil && !va.Status.Attached {
			unrecorded[*source] = true
		}
	}
	if len(through(w.driver.Calls(), b)) > 0 {
		t.Error("the standby sent calls although the lease of the leader had not run out")
	}
	w.runsOut()
	w.untilAttached(attachments)

	calls := w.driver.Calls()
	second := through(calls, b)
	if len(second) == 0 {
		t.Fatal("no work was left for the next leader")
	}
	t.Logf("first call %v after the kill, %d calls surplus", second[0].At.Sub(ended).Round(time.Millisecond), surplus(calls))
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

// The leader is frozen for longer than its renew deadline and thaws with work queued: it sends no call, writes nothing
// and exits. The new holder of the lease starts later, so that all the work is still there to be done and no other
// process writes.
func TestThawedLeaderSendsNothing(t *testing.T) {
	w := newWorld(t)
	answered := make(chan struct{})
	a, b := w.socket("a"), w.socket("b")
	w.driver.SetAnswer(func(_ context.Context, c call, _ int) (map[string]string, error) {
		if c.Socket == a {
			<-answered
		}
		return nil, nil
	})
	// Before the leader starts, because it must renew its lease until it is frozen.
	attachments := w.fleet(30)
	// Each volume that gets its answer makes room for another one.
	const renewDeadline = 10 * time.Second
	leader := w.candidate("host-a", a, append(leaseTimes(15*time.Second, renewDeadline, 3*time.Second), "--worker-threads=3")...)
	w.driver.WaitCalls(3)

	leader.Signal(syscall.SIGSTOP)
	w.take("host-b")
	close(answered) // three replies wait in its socket for the one that thaws
	<-time.After(renewDeadline)
	before := len(through(w.driver.Calls(), a))
	versions := map[string]string{}
	for _, va := range w.list() {
		versions[va.Name] = va.ResourceVersion
	}
	leader.Signal(syscall.SIGCONT)
	leader.WantExit(1, "lost the leader lease")
	leader.WaitLog("the leader lease was not renewed in time") // it tried
	if after := len(through(w.driver.Calls(), a)); after != before {
		t.Errorf("the thawed leader sent %d calls", after-before)
	}
	for _, va := range w.list() {
		if va.ResourceVersion != versions[va.Name] {
			t.Errorf("VolumeAttachment %s was written", va.Name)
		}
	}
	w.candidate("host-b", b)
	w.untilAttached(attachments)
}

// csi-attacher 4.12 and belay-attacher replace each other, by crash and by planned handoff, with 200 volumes attached.
// Only one of them sends calls at a time, attached volumes are left alone, and the others are attached.
func TestHandoffBetweenUpstreamAndBelay(t *testing.T) {
	w := newWorld(t)
	health := process.FreeAddress()
	sockets := []string{w.socket("1"), w.socket("2"), w.socket("3")}
	first := w.upstream("host-1", sockets[0])
	w.untilLeads("host-1")
	second := w.candidate("host-2", sockets[1], "--http-endpoint="+health)
	w.untilReady(health)
	attachments := w.fleet(200)
	w.untilAttached(attachments)
	if got := through(w.driver.Calls(), sockets[1]); len(got) > 0 {
		t.Fatalf("the standby sent %d calls", len(got))
	}

	end(first, syscall.SIGTERM)         // it does not release its lease
	byUpstream := len(w.driver.Calls()) // all that it sent: it may publish twice what its cache does not show as attached
	w.runsOut()
	w.untilLeads("host-2")
	w.volume("after-1")
	w.untilAttached([]string{w.attachment("after-1", "node1")})
	second.WaitLog("Started attaching and detaching volumes")
	if got := w.driver.Calls()[byUpstream:]; len(got) != 1 || got[0].Socket != sockets[1] {
		t.Errorf("after the first change: %v", got)
	}

	w.upstream("host-3", sockets[2])
	w.volume("after-2")
	w.untilAttached([]string{w.attachment("after-2", "node2")})
	byBelay := len(w.driver.Calls())
	if got := through(w.driver.Calls(), sockets[2]); len(got) > 0 {
		t.Errorf("upstream sent %d calls beside belay", len(got))
	}
	end(second, syscall.SIGTERM)
	w.untilLeads("host-3")
	w.volume("after-3")
	w.untilAttached([]string{w.attachment("after-3", "node3")})
	w.delete(attachments[0]) // made by upstream's first life
	w.until(attachments[0], "gone", isGone)
	for _, c := range w.driver.Calls()[byBelay:] {
		if c.Socket != sockets[2] || c.Volume != w.name("after-3") && c.Method != "Unpublish" {
			t.Errorf("after the second change: %s %s through %s", c.Method, c.Volume, c.Socket)
		}
	}
	for _, name := range attachments[1:] {
		if !isAttached(w.get(name)) {
			t.Errorf("%s is not attached", name)
		}
	}
}
