package diagnosis

import (
	"strings"
	"testing"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
)

// TestFewRights: without the rights to read nodes, PersistentVolumes and VolumeAttachments, a pod's own events name the cause. Unknown is only what
// they do not say.
func TestFewRights(t *testing.T) {
	attach := func(cause string) string { return `AttachVolume.Attach failed for volume "pv" : ` + cause }
	for name, c := range map[string]kubeletText{
		"an attach that fails": {
			reason: "FailedAttachVolume", message: attach("rpc error: code = Internal desc = no such disk"), want: attachment.AttachFailed, says: []string{"no such disk", "as the pod's events say"},
		},
		"a full node": {reason: "FailedAttachVolume", message: attach("rpc error: code = ResourceExhausted desc = too many disks"), want: explain.AttachLimitReached},
		"a driver that does not answer": {
			reason: "FailedAttachVolume", message: attach("rpc error: code = Unavailable desc = connection refused"), want: explain.DriverUnavailable,
		},
		"an attacher that does not answer": { // k/k v1.36.3 pkg/volume/csi/csi_attacher.go:521
			reason: "FailedAttachVolume", message: attach("timed out waiting for external-attacher of x CSI driver to attach volume h"), want: attachment.AttachUnanswered, says: []string{"external-attacher of x"},
		},
		"another pod": { // k/k v1.36.3 pkg/controller/volume/attachdetach/reconciler/reconciler.go:424
			reason: "FailedAttachVolume", message: `Multi-Attach error for volume "pv" Volume is already used by pod(s) app-1`,
			want: attachment.OtherWriterAttached, says: []string{"volume v (claim claim)", "app-1", "another node than n1"}, next: "kubectl get pods -o wide -n ns",
		},
		"another node": { // k/k v1.36.3 pkg/controller/volume/attachdetach/reconciler/reconciler.go:396
			reason: "FailedAttachVolume", message: `Multi-Attach error for volume "pv" Volume is already exclusively attached to one node and can't be attached to another`,
			want: attachment.OtherWriterAttached, next: "Do not delete it with --force",
		},
		"another pod, of 1.37": { // k/k v1.37.2 pkg/controller/volume/attachdetach/reconciler/reconciler.go:432
			reason: "FailedAttachVolume", message: `Waiting for detach for volume "pv" Volume is already used by pod(s) app-1`,
			want: attachment.OtherWriterAttached, says: []string{"volume v (claim claim)", "app-1", "another node than n1"}, next: "kubectl get pods -o wide -n ns",
		},
		"another node, of 1.37": { // k/k v1.37.2 pkg/controller/volume/attachdetach/reconciler/reconciler.go:396
			reason: "FailedAttachVolume", message: `Waiting for detach for volume "pv" Volume is already exclusively attached to one node, waiting on detach before it can be attached to another node`,
			want: attachment.OtherWriterAttached, next: "Do not delete it with --force",
		},
		"a detach": { // k/k v1.36.3 pkg/volume/csi/csi_attacher.go:634
			from: "kubelet", reason: "FailedMount", message: waitForAttach("volume attachment is being deleted"), want: attachment.Detaching, says: []string{"n1"},
		},
		"nothing":                   {want: explain.Incomplete},
		"an attach that succeeded":  {reason: "SuccessfulAttachVolume", message: `AttachVolume.Attach succeeded for volume "pv"`, want: explain.Incomplete},
		"the attach of another one": {reason: "FailedAttachVolume", message: `AttachVolume.Attach failed for volume "pv2" : rpc error: code = Internal desc = no`, want: explain.Incomplete},
		"an attach, by another":     {reason: "FailedAttachVolume", from: "disk-operator", message: attach("rpc error: code = Internal desc = no"), want: explain.Incomplete},
	} {
		t.Run(name, func(t *testing.T) {
			if c.volume, c.pv = ofClaim, onCSI(); c.from == "" {
				c.from = "attachdetach-controller"
			}
			s, _ := c.snapshot()
			withFewRights(s)
			c.compare(t, s)
		})
	}
	c := kubeletText{volume: ofClaim, pv: onCSI()}
	s, pod := c.snapshot()
	withFewRights(s)
	pod.Spec.NodeName = ""
	if e, err := Explain(s, Ref{Pods, "ns", "app-0"}); err != nil || e.Verdict == Unknown || !strings.Contains(e.Summary, "scheduler") {
		t.Errorf("without a node: %s %s: %s (%v)", e.Verdict, e.Reason, e.Summary, err)
	}
}
