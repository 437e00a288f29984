package diagnosis

import (
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

// pendingCall has belay-attacher write on the VolumeAttachment about a call that it sent, or held back, so long ago.
func (s *scene) pendingCall(reason decision.Reason, call string, ago time.Duration) {
	at := s.Now.Add(-ago)
	text := kube.PendingCall{Reason: reason, Call: call, Since: at, Until: at.Add(6 * time.Minute)}.Encode()
	s.va.Annotations, s.va.Finalizers = map[string]string{kube.PendingCallAnnotation: text}, []string{kube.AttacherFinalizer(oneDriver)}
}

// attacherLease has an attacher that leads since so long ago.
func (s *scene) attacherLease(ago time.Duration) {
	now, since := metav1.NewMicroTime(s.Now), metav1.NewMicroTime(s.Now.Add(-ago))
	s.Leases = append(s.Leases, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "csi", Name: kube.SanitizeDriverName(kube.AttacherLease + oneDriver)},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("pod-1"), LeaseDurationSeconds: new(int32(15)), RenewTime: &now, AcquireTime: &since},
	})
}

// callScenes are those of what belay-attacher writes about a call.
func callScenes() map[decision.Reason]one {
	scenes := map[decision.Reason]one{}
	for _, r := range holdsCallBack {
		scenes[r] = one{theWaiter, func(s *scene) {
			s.failed("rpc error: code = Internal desc = an earlier error")
			s.va.Status.AttachError.Time.Time = s.Now.Add(-time.Minute)
			s.pendingCall(r, "", 20*time.Second)
		}}
	}
	return scenes
}

// A call that is in flight is explained, and not the error before it; what is over is not.
func TestPendingCall(t *testing.T) {
	const published, unpublished = "ControllerPublishVolume", "ControllerUnpublishVolume"
	tests := map[string]struct {
		make    func(*scene)
		want    decision.Reason
		summary string
		step    string
	}{
		"an attach after an error": {func(s *scene) {
			s.failed("rpc error: code = Internal desc = broken")
			s.va.Status.AttachError.Time.Time = s.Now.Add(-2 * time.Minute)
			s.pendingCall(publication.CallInFlight, published, 20*time.Second)
		}, publication.CallInFlight, "CSI driver " + oneDriver + " has not answered the attach to node b yet: the call has been in flight since ", "Wait: the driver may still work on it. The attacher ends the call by "},
		"an attach that has failed since": {func(s *scene) {
			s.failed("rpc error: code = Internal desc = broken")
			s.pendingCall(publication.CallInFlight, published, 20*time.Second)
		}, attachment.AttachFailed, "broken", ""},
		"a detach whose attempt is due": {func(s *scene) {
			s.detaches(7*time.Minute, "no answer (DeadlineExceeded); next attempt at "+stamp(s.Now.Add(-20*time.Second)))
			s.va.Status.DetachError.Time.Time = s.Now.Add(-time.Minute)
			s.pendingCall(publication.CallInFlight, unpublished, 20*time.Second)
		}, publication.CallInFlight, ", and the one before it had no answer", "is still in use on node a"},
		"a detach that no call was sent for": {func(s *scene) {
			s.detaches(time.Minute, "")
			s.pendingCall(publication.DriverBusy, "", 30*time.Second)
		}, publication.DriverBusy, "has not sent the detach from node a, because as many calls are in flight as it allows: held back since ", "--worker-threads"},
		"another call of the volume": {func(s *scene) {
			s.detaches(time.Minute, "")
			s.pendingCall(publication.CallInFlight, "", 30*time.Second)
		}, publication.CallInFlight, "has not sent the detach from node a, because another call for the volume is in flight", ""},
		"by a process that was killed long ago": {func(s *scene) {
			s.detaches(time.Hour, "")
			s.pendingCall(publication.CallInFlight, unpublished, 7*time.Minute)
		}, attachment.DetachUnanswered, "", ""},
		"by the process that leads": {func(s *scene) {
			s.detaches(3*time.Minute, "")
			s.attacherLease(time.Hour)
			s.pendingCall(publication.CallInFlight, unpublished, time.Minute)
		}, publication.CallInFlight, "", ""},
		"by the process that led before": {func(s *scene) {
			s.detaches(3*time.Minute, "")
			s.attacherLease(30 * time.Second)
			s.pendingCall(publication.CallInFlight, unpublished, time.Minute)
		}, attachment.DetachUnanswered, "", ""},
		"by one that does not run": {func(s *scene) {
			s.detaches(3*time.Minute, "")
			s.attacherLease(time.Hour)
			s.Leases[len(s.Leases)-1].Spec.HolderIdentity = new("")
			s.pendingCall(publication.CallInFlight, unpublished, time.Minute)
		}, explain.AttacherNotRunning, "", ""},
		"a reason that no attacher has": {func(s *scene) {
			s.detaches(3*time.Minute, "")
			s.pendingCall("\x1b[2J", unpublished, time.Minute)
		}, attachment.DetachUnanswered, "", ""},
		"an attach, and the pod has moved": {func(s *scene) {
			s.detaches(15*time.Second, "")
			s.va.Status.Attached = false
			s.pendingCall(publication.CallInFlight, published, time.Minute)
		}, attachment.Detaching, "", ""},
	}
	for name, tt := range tests {
		s := newScene()
		tt.make(&s)
		e, err := Explain(s.Snapshot, theWaiter)
		if err != nil {
			t.Fatal(err)
		}
		steps := func(step explain.Step) bool { return strings.Contains(step.Text, tt.step) }
		if e.Reason != tt.want || !strings.Contains(e.Summary, tt.summary) || tt.step != "" && !slices.ContainsFunc(e.Findings[0].Next, steps) {
			t.Errorf("%s: %s: %s, %+v, want %s: %s, %s", name, e.Reason, e.Summary, e.Findings[0].Next, tt.want, tt.summary, tt.step)
		}
	}
}
