package diagnosis

import (
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// idle makes node a list nothing, and no pod need the volume there.
func (s scene) idle() {
	s.Pods = nil
	s.a.Status.VolumesInUse, s.a.Status.VolumesAttached = nil, nil
}

func (s scene) outOfService(ready corev1.ConditionStatus) {
	s.a.Spec.Taints = []corev1.Taint{{Key: kube.OutOfServiceTaint, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}}
	s.a.Status.Conditions[0].Status = ready
}

// heartbeat gives node a a lease that was renewed that long ago.
func (s scene) heartbeat(ago time.Duration) {
	s.Leases = append(s.Leases, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "a"},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: s.Now.Add(-ago)}},
	})
}

// recreated makes the Node object younger than the VolumeAttachment, with the machine of now and the recorded one.
func (s scene) recreated(ago time.Duration, now, recorded string) {
	s.a.CreationTimestamp = metav1.NewTime(s.Now.Add(-ago))
	s.a.Status.NodeInfo.SystemUUID = now
	if recorded != "" {
		s.va.Annotations = map[string]string{kube.SystemUUIDAnnotation: recorded}
	}
}

// TestForcedDetachIsSafe: a detach counts as safe only if what the Node shows is about the machine that has the volume, and a node that
// a person declared out of service does not answer any more.
func TestForcedDetachIsSafe(t *testing.T) {
	for name, one := range map[string]struct {
		make func(scene)
		safe bool
	}{
		"idle on a node that is Ready": {func(s scene) { s.idle() }, true},
		"the node is younger than the VolumeAttachment, and nothing shows its machine": {func(s scene) { s.idle(); s.recreated(5*time.Minute, "", "") }, false},
		"another machine has registered under the name":                                {func(s scene) { s.idle(); s.recreated(5*time.Minute, "new", "old") }, false},
		"another machine has taken over the Node object": {func(s scene) {
			s.idle()
			s.recreated(time.Hour, "new", "old")
		}, false},
		"the same machine has just registered again":       {func(s scene) { s.idle(); s.recreated(time.Second, "same", "same") }, false},
		"the same machine has registered again for long":   {func(s scene) { s.idle(); s.recreated(9*time.Minute, "same", "same") }, true},
		"out of service, and silent":                       {func(s scene) { s.outOfService(corev1.ConditionUnknown); s.heartbeat(5 * time.Minute) }, true},
		"out of service, and its lease is renewed":         {func(s scene) { s.outOfService(corev1.ConditionUnknown); s.heartbeat(3 * time.Second) }, false},
		"out of service, and its kubelet reports NotReady": {func(s scene) { s.outOfService(corev1.ConditionFalse) }, false},
		"out of service, and another machine": {func(s scene) {
			s.outOfService(corev1.ConditionUnknown)
			s.recreated(5*time.Minute, "new", "old")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			one.make(s)
			p, err := PlanForceDetach(s.Snapshot, s.va.Name)
			if err != nil {
				t.Fatal(err)
			}
			if safe := len(p.Risks) == 0; safe != one.safe {
				t.Errorf("safe: %t, risks %q; want safe: %t", safe, p.Risks, one.safe)
			}
		})
	}
}

// errorOf is an error that an attacher wrote that long ago.
func errorOf(s scene, ago time.Duration) *storagev1.VolumeError {
	return &storagev1.VolumeError{Message: "rpc error: code = Internal desc = no", Time: metav1.NewTime(s.Now.Add(-ago))}
}

// other adds a VolumeAttachment of another volume.
func (s scene) other(driver string) *storagev1.VolumeAttachment {
	va := s.va.DeepCopy()
	va.Name, va.Spec.Attacher, va.Spec.Source.PersistentVolumeName, va.DeletionTimestamp = "other", driver, new("other"), nil
	s.Attachments = append(s.Attachments, va)
	return va
}

// TestDriverMayStillBeInstalled: a finalizer is removed only if everything that would show the driver was read, and no
// attacher has written an error lately.
func TestDriverMayStillBeInstalled(t *testing.T) {
	without := func(s scene, r Resource) {
		var whole []Resource
		for _, w := range s.Whole {
			if w != r {
				whole = append(whole, w)
			}
		}
		s.Whole = whole
	}
	for name, one := range map[string]struct {
		make func(scene)
		want ForceAction
	}{
		"nothing shows it": {func(scene) {}, RemoveFinalizer},
		"not all CSINodes were read, and the attacher elects no leader": {func(s scene) { without(s, CSINodes) }, ""},
		"the leases could not be listed": {func(s scene) {
			without(s, Leases)
			s.Unread = []Unread{{Ref: Ref{Resource: Leases}, Verb: "list", Forbidden: true}}
		}, ""},
		"registered on another node": {func(s scene) {
			s.CSINodes = []*storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: oneDriver}}}}}
		}, ""},
		"an attacher wrote an error 10 s ago":            {func(s scene) { s.va.Status.DetachError = errorOf(s, 10*time.Second) }, ""},
		"it wrote an attach's error 10 s ago":            {func(s scene) { s.va.Status.AttachError = errorOf(s, 10*time.Second) }, ""},
		"it may wait for its longest back-off":           {func(s scene) { s.va.Status.DetachError = errorOf(s, 14*time.Minute) }, ""},
		"its last error is of a clock that is ahead":     {func(s scene) { s.va.Status.DetachError = errorOf(s, -time.Minute) }, ""},
		"its last error is old":                          {func(s scene) { s.va.Status.DetachError = errorOf(s, time.Hour) }, RemoveFinalizer},
		"an error without a time says nothing about now": {func(s scene) { s.va.Status.DetachError = &storagev1.VolumeError{Message: "no"} }, RemoveFinalizer},
		"it wrote an error for another volume 10 s ago":  {func(s scene) { s.other(oneDriver).Status.AttachError = errorOf(s, 10*time.Second) }, ""},
		"another driver's attacher wrote one":            {func(s scene) { s.other("other.example.com").Status.AttachError = errorOf(s, 10*time.Second) }, RemoveFinalizer},
		"only another client's finalizer is left":        {func(s scene) { s.va.Finalizers = []string{"example.com/backup"} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.idle()
			s.va.DeletionTimestamp, s.va.Finalizers = &metav1.Time{Time: s.Now.Add(-time.Hour)}, []string{kube.AttacherFinalizer(oneDriver)}
			one.make(s)
			p, err := PlanForceDetach(s.Snapshot, s.va.Name)
			if err != nil {
				t.Fatal(err)
			}
			if p.Action != one.want || p.Action == "" && p.Refusal == "" {
				t.Errorf("action %q (refusal %q), want %q", p.Action, p.Refusal, one.want)
			}
			e, err := Explain(s.Snapshot, Ref{Resource: Attachments, Name: s.va.Name})
			waits := slices.Contains(s.va.Finalizers, kube.AttacherFinalizer(oneDriver))
			if removed := e.Reason == explain.DriverRemoved; err != nil || waits && removed && one.want == "" {
				t.Errorf("the explanation is %s (%v), and the plan refuses: %s", e.Reason, err, p.Refusal)
			}
		})
	}
}

// TestTwoAttachmentsForOneNode: kubelet and controllers look for the VolumeAttachment that is named after driver, volume and node.
func TestTwoAttachmentsForOneNode(t *testing.T) {
	s := newScene()
	foreign := s.va.DeepCopy()
	foreign.Name, foreign.Spec.NodeName = "by-hand", "b"
	own := s.va.DeepCopy()
	own.Name, own.Spec.NodeName = kube.AttachmentName("h", oneDriver, "b"), "b"
	own.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "rpc error: code = Internal desc = no such disk"}}
	s.Attachments, s.Pods = []*storagev1.VolumeAttachment{foreign, own}, []*corev1.Pod{s.waiter}
	s.a.Status.VolumesInUse, s.a.Status.VolumesAttached = nil, nil
	e, err := Explain(s.Snapshot, Ref{Pods, "ns", "waiter"})
	if err != nil || e.Reason != attachment.AttachFailed || !strings.Contains(e.Summary, "no such disk") {
		t.Errorf("%s: %s (%v), want the error of the VolumeAttachment that kubelet waits for", e.Reason, e.Summary, err)
	}
}
