package diagnosis

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/explain"
)

// TestOwnershipChanges: a node that works through the files of a volume has not gone silent. The texts are those of k/k v1.36.3 pkg/volume/volume_linux.go:118, 143.
func TestOwnershipChanges(t *testing.T) {
	const path = "0f1c-22/volumes/kubernetes.io~csi/pv/mount"
	const processed = "Setting volume ownership for " + path + ", processed 120000 files."
	const first = "Setting volume ownership for " + path + " is taking longer than expected, consider using OnRootMismatch - https://kubernetes.io/docs/tasks/x"
	failedBefore := func(ago time.Duration) func(*Snapshot, *corev1.Pod) {
		return func(s *Snapshot, pod *corev1.Pod) {
			s.Events = append(s.Events, eventOf(pod, "", "FailedMount", setUpPV("mount failed: exit status 32"), metav1.NewTime(s.Now.Add(-ago))))
		}
	}
	reported := func(ago time.Duration) func(*Snapshot, *corev1.Pod) {
		return func(s *Snapshot, _ *corev1.Pod) { s.Events[0].LastTimestamp = metav1.NewTime(s.Now.Add(-ago)) }
	}
	for name, c := range map[string]kubeletText{
		"progress": {
			message: processed, want: explain.OwnershipChanging, says: []string{"node n1", "volume v (claim claim)", "fsGroup", "120000 files"}, next: "OnRootMismatch",
		},
		"the first report":      {message: first, want: explain.OwnershipChanging, says: []string{"after the last"}, next: "Wait"},
		"the last of many":      {message: combined + processed, want: explain.OwnershipChanging, says: []string{"120000 files"}},
		"reports that are rare": {message: processed, also: reported(6 * time.Minute), want: explain.OwnershipChanging},
		"after a failure":       {message: processed, also: failedBefore(5 * time.Minute), want: explain.OwnershipChanging},
		"before a failure":      {message: processed, also: failedBefore(10 * time.Second), want: explain.MountFailing, says: []string{"exit status 32"}},
		"no report any more":    {message: processed, also: reported(15 * time.Minute), want: explain.MountFailing, says: []string{"nor reported"}},
		"another volume":        {message: "Setting volume ownership for 0f1c-22/volumes/kubernetes.io~csi/pv2/mount, processed 7 files.", want: explain.MountFailing},
		"another speaker":       {message: processed, from: "disk-operator", want: explain.MountFailing},
		"another text":          {message: "Setting volume ownership is hard", want: explain.MountFailing},
	} {
		t.Run(name, func(t *testing.T) {
			c.volume, c.pv, c.reason = ofClaim, onCSI(), explain.VolumePermissionChangeInProgress
			c.check(t)
		})
	}
}
