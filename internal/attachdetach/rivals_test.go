package attachdetach

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"belay.dev/belay/internal/kube"
)

// duel is a leader that watches for others.
type duel struct {
	*testing.T
	*rivals
	events *record.FakeRecorder
}

func newDuel(t *testing.T) *duel {
	t.Helper()
	events := record.NewFakeRecorder(10)
	return &duel{t, &rivals{
		recorder: events, log: logr.Discard(), named: func(string) string { return "kube-controller-manager" },
	}, events}
}

// report is an update of a Node whose report changed, by the manager's hand.
func (d *duel) report(manager, version string, changed bool) {
	before := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	after := before.DeepCopy()
	after.ResourceVersion = version
	if changed {
		after.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "v"}}
	}
	after.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: manager, FieldsV1: metav1.NewFieldsV1(`{"f:status": {"f:volumesAttached": {}}}`),
	}}
	d.nodeChanged(before, kube.StripNode(after))
}

func (d *duel) attach(name, version string, ours bool) {
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
	if ours {
		va.Annotations = map[string]string{kube.VolumeHandleAnnotation: "h"}
	}
	d.attachmentMade(kube.StripAttachment(va))
}

func (d *duel) want(halted bool, events int) {
	d.Helper()
	if err := d.check(); (err != nil) != halted || halted && !errors.Is(err, ErrHalted) {
		d.Errorf("halted: %v, want %v", err, halted)
	}
	if n := len(d.events.Events); n != events {
		d.Errorf("%d events, want %d", n, events)
	}
}

var computedTestName = "csi-" + strings.Repeat("0", 64)

// The second change of a report by another halts, whatever came before we led does not.
func TestSecondForeignReportHalts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuel(t)
		d.report("kube-controller-manager", "3", true) // a standby looks on
		d.begin("10", "10")
		d.report("kube-controller-manager", "9", true)   // what the one before wrote
		d.report("kube-controller-manager", "11", false) // an old hand in a Node that kubelet changed
		d.report(kube.FieldManager, "12", true)
		d.want(false, 0)
		d.report("kube-controller-manager", "13", true) // it was on its way
		d.want(false, 1)
		<-time.After(suspicion - time.Second)
		d.report("kube-controller-manager", "14", true)
		d.want(true, 2)
		d.report("kube-controller-manager", "15", true) // said once
		d.want(true, 2)
	})
}

// Persons repair things by hand now and then.
func TestRareForeignWritesAreToldOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuel(t)
		d.begin("10", "10")
		for n := range 3 {
			d.report("kubectl-edit", "20", true)
			d.want(false, n+1)
		}
		d.report("repair-script", "20", true)
		<-time.After(suspicion + time.Second)
		d.report("repair-script", "20", true)
		d.want(false, 5)
	})
}

func TestForeignAttachmentsHalt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuel(t)
		d.begin("10", "10")
		d.attach(computedTestName, "11", false) // created while the other was switched off
		d.attach(computedTestName, "12", false)
		<-time.After(lateWrites)
		d.attach(computedTestName, "9", false)
		d.attach(computedTestName, "13", true)
		d.attach("by-hand", "14", false)
		d.want(false, 0)
		d.attach(computedTestName, "15", false)
		d.want(false, 1)
		d.attach(computedTestName, "16", false)
		d.want(true, 2)
	})
}

func TestWarnOnlyNeverHalts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuel(t)
		d.warnOnly = true
		d.begin("10", "10")
		for range 4 {
			d.report("kube-controller-manager", "13", true)
		}
		d.want(false, 4)
	})
}
