package diagnosis

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// TestLeaseOfAnEarlierInstallation: a csi-attacher without --leader-election, which is its default, writes no lease, and that of an earlier installation stays.
// An error that was written after the lease had run out is the word of an attacher that runs: it may say that another machine has the volume.
func TestLeaseOfAnEarlierInstallation(t *testing.T) {
	for name, c := range map[string]struct {
		wrote time.Duration // so long ago
		want  decision.Reason
	}{
		"an attacher that answers":    {10 * time.Second, explain.BackendDisagrees},
		"one that has ended":          {61 * 24 * time.Hour, explain.AttacherNotRunning},
		"one that has been long over": {time.Hour, explain.AttacherNotRunning},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.mounts()
			s.va.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{
				Time: metav1.NewTime(s.Now.Add(-c.wrote)), Message: "rpc error: code = FailedPrecondition desc = volume h is already attached to node i-0other",
			}}
			s.Leases = append(s.Leases, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: kube.SanitizeDriverName(kube.AttacherLease + oneDriver)},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("csi-0"), RenewTime: &metav1.MicroTime{Time: s.Now.Add(-60 * 24 * time.Hour)}},
			})
			if e := explained(t, s, theWaiter); e.Reason != c.want || (e.Verdict == Unsafe) != (c.want == explain.BackendDisagrees) {
				t.Errorf("%s %s: %s; want %s", e.Verdict, e.Reason, e.Summary, c.want)
			}
		})
	}
}
