package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/lab/audit"
	"belay.dev/belay/lab/labtest"
)

// TestDriverCounts: a call that begins while another one for the volume is in flight is counted, and so is a publish to a
// node while another one may hold the volume; calls for other volumes and calls one after the other are not.
func TestDriverCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver(driverName, time.Second)
		publish := func(ctx context.Context, volume, node string) error {
			_, err := d.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: volume, NodeId: node})
			return err
		}
		unpublish := func(volume, node string) error {
			_, err := d.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: volume, NodeId: node})
			return err
		}
		check := func(when string, want calls) {
			t.Helper()
			if diff := cmp.Diff(want, d.asked(), cmp.AllowUnexported(calls{})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		began := time.Now()
		other := make(chan error)
		go func() { other <- publish(t.Context(), "w", "a") }()
		must(t, publish(t.Context(), "v", "a"))
		must(t, <-other)
		if took := time.Since(began); took != time.Second {
			t.Errorf("two volumes side by side took %v", took)
		}
		check("two volumes", calls{publishes: 2})

		go func() { other <- unpublish("v", "a") }()
		synctest.Wait()
		if err := publish(t.Context(), "v", "b"); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a publish to b while a holds it: %v", err)
		}
		must(t, <-other)
		check("a publish during the unpublish", calls{publishes: 3, unpublishes: 1, overlaps: 1, secondNode: 1})
		before := d.asked()
		must(t, publish(t.Context(), "v", "b"))
		if got := d.asked().since(before); got != (calls{publishes: 1}) {
			t.Errorf("a publish after the unpublish: %+v", got)
		}

		hurried, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := publish(hurried, "x", "a"); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("a call that is abandoned: %v", err)
		}
		if err := publish(t.Context(), "x", "b"); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a publish to b of what may be published to a: %v", err)
		}
	})
}

// TestSharedCalls: calls for one volume at two nodes neither overlap nor make a second writer if the volume is shared; two for one node overlap.
func TestSharedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver("d", time.Second)
		done := make(chan error)
		publish := func(node string) {
			_, err := d.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: sharedVolume + "-20", NodeId: node})
			done <- err
		}
		go publish("a")
		go publish("b")
		must(t, <-done)
		must(t, <-done)
		if diff := cmp.Diff(calls{publishes: 2}, d.asked(), cmp.AllowUnexported(calls{})); diff != "" {
			t.Errorf("two nodes (-want +got):\n%s", diff)
		}
		go publish("a")
		go publish("a")
		must(t, <-done)
		must(t, <-done)
		if diff := cmp.Diff(calls{publishes: 4, overlaps: 1}, d.asked(), cmp.AllowUnexported(calls{})); diff != "" {
			t.Errorf("one node (-want +got):\n%s", diff)
		}
	})
}

func TestPerVolume(t *testing.T) {
	request := func(verb, resource, subresource string) audit.Request {
		return audit.Request{Verb: verb, Resource: resource, Subresource: subresource}
	}
	got := perVolume([]audit.Request{
		request("patch", "volumeattachments", ""), request("patch", "volumeattachments", ""),
		request("patch", "volumeattachments", "status"),
		request("update", "leases", ""), request("watch", "csinodes", ""), request("get", "", ""),
	}, 2)
	if diff := cmp.Diff(map[string]float64{"patch volumeattachments": 1, "patch volumeattachments/status": 0.5}, got); diff != "" {
		t.Errorf("per volume (-want +got):\n%s", diff)
	}
}

// TestWorst: one turn in which a volume was published twice is not hidden by two in which none was.
func TestWorst(t *testing.T) {
	found := &samples{}
	l := laneOf(0, 10)
	for _, asked := range []calls{{publishes: 10, unpublishes: 10}, {publishes: 11, unpublishes: 10, overlaps: 1}, {publishes: 10, unpublishes: 10}} {
		found.called(planeBelay, asked, l.volumes, l.label)
	}
	var missed []string
	for _, f := range found.callFigures(l.label) {
		if !f.Targets[0].Met {
			missed = append(missed, f.Name)
		}
	}
	if diff := cmp.Diff([]string{"10 volumes, driver answers at once: publishes per attach", "calls that overlapped"}, missed); diff != "" {
		t.Errorf("missed (-want +got):\n%s", diff)
	}
}

func executeAttacher(ctx context.Context, out, progress io.Writer, args ...string) error {
	command := Command()
	command.SetArgs(append([]string{"attacher"}, args...))
	command.SetOut(out)
	command.SetErr(progress)
	command.SilenceErrors = true
	return command.ExecuteContext(ctx)
}

// TestAttacherCalls lets belay-attacher attach and detach in parallel, and move, as the bench does: one call each, none
// that overlap, and three and one requests to the API server, however busy the machine is.
func TestAttacherCalls(t *testing.T) {
	labtest.Needs(t)
	size := quickSize()
	size.AttachLimit, size.BurstLimit = 10*time.Minute, 10*time.Minute
	l := laneOf(size.Latencies[1], size.AttachVolumes)
	r, err := openRig(t.Context(), rigOptions{name: "bench-calls", audit: true, later: true, change: labtest.Steady, say: t.Logf})
	must(t, err)
	t.Cleanup(func() {
		must(t, r.close(context.Background()))
		assertGone(t, "bench-calls")
	})
	must(t, r.addLanes(t.Context(), l))
	found := &samples{}
	must(t, r.laneTurn(t.Context(), size, planeBelay, l, found, tunedFlags(size)...))
	must(t, r.moveAll(t.Context(), size, planeBelay, l, found))
	figures := found.callFigures(l.label)
	var in, out *Figure
	for range countings {
		s, _, err := r.startSidecar(t.Context(), planeBelay, l)
		must(t, err)
		in, out = requestsFigures()
		must(t, s.countInto(t.Context(), in, s.attachAll))
		must(t, s.countInto(t.Context(), out, s.detachAll))
		must(t, s.end(t.Context()))
		if in.Value[planeBelay] <= 3 && out.Value[planeBelay] <= 1 {
			break
		}
	}
	for _, f := range append(figures, in, out) {
		t.Logf("%s: %v %v", f.Name, f.Samples[planeBelay], f.Parts[planeBelay])
	}
	for name, want := range map[*Figure]float64{in: 3, out: 1, figures[0]: 1, figures[1]: 1, figures[2]: 0, figures[3]: 0} {
		if got, measured := name.Value[planeBelay]; !measured || got != want {
			t.Errorf("%s: %v, want %v", name.Name, got, want)
		}
	}
	// As new: another turn would write the finalizer again.
	pv, err := r.client.CoreV1().PersistentVolumes().Get(t.Context(), l.volume(0), metav1.GetOptions{})
	if err != nil || len(pv.Finalizers) > 0 {
		t.Errorf("after the turn: finalizers %v, %v", pv.Finalizers, err)
	}
}

// TestAttacher runs all parts at small sizes: each figure is there for each plane.
func TestAttacher(t *testing.T) {
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: the bench belongs to the long tests")
	}
	var out bytes.Buffer
	if err := executeAttacher(t.Context(), &out, t.Output(), "--quick", "--no-targets", "--name", "bench-attacher-quick", "-o", "json"); err != nil {
		t.Fatal(err)
	}
	assertGone(t, "bench-attacher-quick")
	var report Report
	must(t, json.Unmarshal(out.Bytes(), &report))
	must(t, report.writeText(t.Output()))
	if len(report.Parts) != len(attacherParts()) {
		t.Errorf("there are %d parts", len(report.Parts))
	}
	for _, part := range report.Parts {
		for _, figure := range part.Figures {
			for _, plane := range attacherPlanes() {
				if len(figure.Samples[plane]) == 0 {
					t.Errorf("%s: %s was not measured for %s", part.Name, figure.Name, plane)
				}
			}
		}
	}
}

// TestAttacherInterrupted ends the bench while attachers work side by side, as Ctrl-C does.
func TestAttacherInterrupted(t *testing.T) {
	labtest.Needs(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	atWork := &signalWriter{out: t.Output(), word: "side by side; this", signal: cancel}
	err := executeAttacher(ctx, io.Discard, atWork, "--quick", "--only", "shipped", "--name", "bench-att-ended")
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "the bench was stopped") {
		t.Errorf("it ended with %v", err)
	}
	assertGone(t, "bench-att-ended")
}
