package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// duel is a leader that looks for another controller. Creates succeed, or fail with refusal.
type duel struct {
	*testing.T
	*rivals
	client.Client
	events  *record.FakeRecorder
	refusal error
	version int
}

const otherProgram = "kube-controller-manager"

func newDuel(t *testing.T) *duel {
	t.Helper()
	d := &duel{T: t, events: record.NewFakeRecorder(100), version: 10}
	d.rivals = &rivals{
		recorder: d.events, log: logr.Discard(), settle: settleTime,
		creator: func(string) string { return otherProgram }, nodeOf: func(string, string) string { return "n" },
		named: func(logger logr.Logger, _ string) logr.Logger { return logger },
		sent:  map[string]int{}, warned: map[string]time.Time{},
	}
	return d
}

// leads makes it a leader whose first minute is over.
func (d *duel) leads() {
	d.begin("10", "10")
	<-time.After(settleTime)
}

// Create is client.Client's.
func (d *duel) Create(context.Context, client.Object, ...client.CreateOption) error { return d.refusal }

// report is an update of a Node whose report changed, or not, by the manager's hand.
func (d *duel) report(manager, node string, changed bool) {
	before := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	after := before.DeepCopy()
	d.version++
	after.ResourceVersion = fmt.Sprint(d.version)
	if changed {
		after.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "v"}}
	}
	after.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: manager, FieldsV1: metav1.NewFieldsV1(`{"f:status": {"f:volumesAttached": {}}}`),
	}}
	d.nodeChanged(before, kube.StripNode(after))
}

// emit is an event of an attach/detach controller.
func (d *duel) emit(manager string) {
	d.eventSeen(&corev1.Event{
		ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: manager, FieldsV1: metav1.NewFieldsV1(`{"f:source": {"f:component": {}}}`),
		}}},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "p"},
	})
}

// appears makes the cache deliver a VolumeAttachment, without belay's annotations.
func (d *duel) appears(name string) {
	d.version++
	va := attachmentNamed(name)
	va.ResourceVersion = fmt.Sprint(d.version)
	d.attachmentAdded(va)
}

// create is our own, through the gate.
func (d *duel) create(name string) error {
	return haltingClient{d, d.rivals}.Create(d.Context(), attachmentNamed(name))
}

func attachmentNamed(name string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n"},
	}
}

// attach asks whether a decision to attach the volume may be carried out.
func (d *duel) attach(handle string) (name string, wait time.Duration) {
	k := key{Driver: driver, Handle: handle}
	wait = d.holdBack(k, []attachment.Step{attachment.Attach{Node: "n"}})
	return kube.AttachmentName(handle, driver, "n"), wait
}

func (d *duel) want(halted bool, warnings int) {
	d.Helper()
	if err := d.check(); (err != nil) != halted || halted && !errors.Is(err, ErrHalted) {
		d.Errorf("halted: %v, want %v", err, halted)
	}
	if n := len(d.events.Events); n != warnings {
		d.Errorf("%d events, want %d", n, warnings)
	}
	for range len(d.events.Events) {
		<-d.events.Events
	}
}

var computedTestName = "csi-" + strings.Repeat("0", 64)

// A node may write its own status, as often and under whatever name it likes. That is
// reported now and then, and changes nothing for any other node.
func TestReportsNeverHalt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuel(t)
		d.report(otherProgram, "n", true) // a standby looks on
		d.want(false, 0)
		d.leads()
		d.version = 8
		d.report(otherProgram, "n", true)  // older than the list that it began with
		d.report(otherProgram, "n", false) // an old writer in a Node that kubelet changed
		d.version = 20
		d.report(kube.FieldManager, "n", true)
		d.want(false, 0)
		for i := range 50 {
			d.report(fmt.Sprint("forged-", i), "n", true)
		}
		d.want(false, 1)
		if _, wait := d.attach("h"); wait != 0 {
			t.Errorf("an attach is held back for %v", wait)
		}
		for i := range 5 { // a few nodes together
			d.report(otherProgram, fmt.Sprint("n", i), true)
		}
		d.want(false, 5)
		<-time.After(warnInterval)
		d.report(otherProgram, "n", true)
		d.want(false, 1)
	})
}

// An event of another attach/detach controller is all that one leaves that is always
// slower. A node may emit such events, so they do no more than hold one attach back; the
// VolumeAttachment that then appears is the proof.
func TestSlowerControllerIsFoundByItsEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuel(t)
		d.begin("10", "10")
		d.emit(otherProgram) // may be in flight since before we led
		d.want(false, 0)
		d.leads()
		d.emit(kube.FieldManager)
		d.want(false, 0)
		d.emit(otherProgram)
		d.emit(otherProgram)
		d.want(false, 1)
		name, wait := d.attach("h")
		if wait < minHold || wait > maxHold {
			t.Fatalf("the next attach is held back for %v", wait)
		}
		if _, wait := d.attach("other"); wait != 0 {
			t.Errorf("so is another, for %v", wait)
		}
		<-time.After(wait / 2)
		if _, again := d.attach("h"); again != wait-wait/2 {
			t.Errorf("asked again it is %v, not the rest of %v", again, wait)
		}
		d.appears(name)
		d.want(true, 1)
	})
}

// Forged signs hold back one attach a minute, and each no longer than a probe takes.
func TestUnansweredProbesCostLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuel(t)
		d.leads()
		start, held := time.Now(), 0
		for time.Since(start) < 10*time.Minute {
			d.emit("forged")
			name, wait := d.attach(fmt.Sprint("h", held))
			if wait > 0 {
				held++
			}
			<-time.After(wait)
			if err := d.create(name); err != nil {
				t.Fatal(err)
			}
			d.appears(name)
			<-time.After(time.Second)
		}
		if err := d.check(); err != nil || held < 5 || held > 10 {
			t.Errorf("halted: %v; %d attaches were held back in ten minutes", err, held)
		}
	})
}

// A VolumeAttachment of another controller is a sign, and proof once it answers a probe.
// One that a person made is a sign alone.
func TestForeignAttachments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuel(t)
		d.begin("10", "10")
		d.appears(computedTestName) // created while the other controller was disabled
		d.leads()
		d.version = 8
		d.appears(computedTestName) // old
		d.version = 20
		d.appears("by-hand")
		d.want(false, 0)
		d.appears(computedTestName)
		d.want(false, 1)
		name, wait := d.attach("h")
		<-time.After(wait)
		if _, wait := d.attach("h"); wait != 0 {
			t.Errorf("held back for another %v", wait)
		}
		d.appears(name) // too late to be an answer
		d.want(false, 0)
		<-time.After(settleTime)
		name, wait = d.attach("i")
		if wait == 0 {
			t.Fatal("the late answer was no sign")
		}
		d.appears(name)
		d.want(true, 1)
		if err := d.create("x"); !errors.Is(err, ErrHalted) {
			t.Errorf("it continues to write: %v", err)
		}
	})
}

// A restore tool creates VolumeAttachments under computed names (velero-io/velero#4823), perhaps the one that a probe waits
// for. A controller answers each probe.
func TestRestoreToolHaltsNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		writers []string // who answers each probe; "" for none
		halts   int      // at which answer; 0 for none
	}{
		"kube-controller-manager":                {[]string{otherProgram}, 1},
		"a second belay-controller":              {[]string{kube.FieldManager}, 1},
		"a restore tool":                         {[]string{"velero-server", "", ""}, 0},
		"a restore tool each night":              {[]string{"velero-server", "", "velero-server", "", "velero-server", ""}, 0},
		"two tools":                              {[]string{"velero-server", "restore", "velero-server"}, 0},
		"a controller of an unknown program":     {[]string{"k3s", "k3s"}, 2},
		"one whose program cannot be read":       {[]string{"an unknown component", "an unknown component"}, 2},
		"a restore tool beside a controller":     {[]string{"velero-server", otherProgram}, 2},
		"a controller that was slow in between":  {[]string{"k3s", "", "k3s", "k3s"}, 4},
		"a restore tool, and a person's kubectl": {[]string{"velero-server", "kubectl-create"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDuel(t)
				d.leads()
				d.emit("a sign")
				for i, writer := range tt.writers {
					<-time.After(settleTime)
					d.creator = func(string) string { return writer }
					attachment, wait := d.attach(fmt.Sprint("h", i))
					switch {
					case wait == 0 && i > 0 && tt.writers[i-1] == "":
						d.emit("a sign") // nothing was suspected after a probe without an answer
						if attachment, wait = d.attach(fmt.Sprint("h", i)); wait == 0 {
							t.Fatalf("no probe %d", i+1)
						}
					case wait == 0:
						t.Fatalf("no probe %d: an answer is a sign", i+1)
					}
					if writer != "" {
						d.appears(attachment)
						d.appears(kube.AttachmentName(fmt.Sprint("h", i), driver, "other")) // no answer
					}
					if halted := d.check() != nil; halted != (i+1 == tt.halts) {
						t.Fatalf("answer %d by %q: halted %v", i+1, writer, halted)
					}
					<-time.After(wait)
				}
			})
		})
	}
}

// What this process created is its own, whatever admission left of it.
func TestOwnAttachmentsWithoutAnnotations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuel(t)
		d.leads()
		for range 3 { // created, deleted, created again
			if err := d.create(computedTestName); err != nil {
				t.Fatal(err)
			}
			d.appears(computedTestName)
		}
		d.refusal = errors.New("the answer was lost")
		_ = d.create(computedTestName)
		d.appears(computedTestName)
		d.want(false, 0)

		// Another was faster: seen after the answer, and before it.
		d.refusal = apierrors.NewAlreadyExists(schema.GroupResource{Resource: "volumeattachments"}, computedTestName)
		_ = d.create(computedTestName)
		d.appears(computedTestName)
		d.want(false, 1)
		<-time.After(warnInterval)
		early := &duel{T: t, rivals: d.rivals, events: d.events, refusal: d.refusal, version: 30}
		_ = haltingClient{during{early, func() { early.appears(computedTestName) }}, d.rivals}.
			Create(t.Context(), attachmentNamed(computedTestName))
		d.want(false, 1)
		if len(d.sent) > 0 {
			t.Errorf("still expects %v", d.sent)
		}
	})
}

// during runs a function while a create is in flight.
type during struct {
	*duel
	do func()
}

// Create is client.Client's.
func (c during) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	c.do()
	return c.duel.Create(ctx, obj, opts...)
}

func TestWarnOnlyNeverHalts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuel(t)
		d.warnOnly = true
		d.leads()
		d.appears(computedTestName)
		name, wait := d.attach("h")
		if wait != 0 {
			t.Errorf("held back for %v", wait)
		}
		d.appears(name)
		d.want(false, 1)
	})
}

// Creates that were sent while the API server was down are never committed, and are waited for nevertheless: later
// another controller that answers the probe is taken for this process itself.
func TestRefusedCreateHidesNoOtherController(t *testing.T) {
	r := &rivals{
		recorder: record.NewFakeRecorder(10), metrics: nil, settle: time.Nanosecond, sent: map[string]int{}, warned: map[string]time.Time{},
		creator: func(string) string { return "kube-controller-manager" }, began: time.Now().Add(-time.Hour),
	}
	k := key{Driver: driver, Handle: "h"}
	name := kube.AttachmentName(k.Handle, k.Driver, "a")
	va := anAttachment(k, "a", "pv", false)
	g := haltingClient{refusingClient{}, r}
	_ = g.Create(t.Context(), va)
	r.probe = probe{key: k, names: []string{name}, until: time.Now().Add(time.Minute)}
	r.attachmentAdded(va)
	if r.check() == nil {
		t.Error("another controller answered the probe, and nothing halts")
	}
	if len(r.sent) > 0 {
		t.Errorf("kept forever: %v", r.sent)
	}
}

type refusingClient struct{ client.Client }

func (refusingClient) Create(context.Context, client.Object, ...client.CreateOption) error {
	return fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
}
