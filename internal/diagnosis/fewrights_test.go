package diagnosis

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	testNamedByEvents(t)
	c := kubeletText{volume: ofClaim, pv: onCSI()}
	s, pod := c.snapshot()
	withFewRights(s)
	pod.Spec.NodeName = ""
	if e, err := Explain(s, Ref{Pods, "ns", "app-0"}); err != nil || e.Verdict == Unknown || !strings.Contains(e.Summary, "scheduler") {
		t.Errorf("without a node: %s %s: %s (%v)", e.Verdict, e.Reason, e.Summary, err)
	}
}

// testNamedByEvents: what an event names is in the answer, and nothing about an object that could not be read.
func testNamedByEvents(t *testing.T) {
	t.Helper()
	attach := func(cause string) string {
		return `AttachVolume.Attach failed for volume "pv" : rpc error: code = Internal desc = ` + cause
	}
	template := func(pod *corev1.Pod, name, hash string) {
		pod.Labels = map[string]string{templateHash: hash}
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: name + "-" + hash, Controller: new(true)}}
	}
	old := func(owner string) func(*Snapshot, *corev1.Pod) {
		return func(s *Snapshot, pod *corev1.Pod) {
			other := pod.DeepCopy()
			other.Name, other.UID, other.Spec.NodeName, other.Status.Phase = "old", "old", "n2", corev1.PodRunning
			template(pod, "web", "b")
			template(other, owner, "a")
			s.Pods = append(s.Pods, other)
		}
	}
	const inUse = `Multi-Attach error for volume "pv" Volume is already used by pod(s) old`
	for name, c := range map[string]kubeletText{
		"the machine that has the volume": {
			message: attach("Attach volume disk-1 to instance vm-1 failed with disk(/subscriptions/s/disks/d) already attached to node(/subscriptions/s/virtualMachineScaleSets/aks-vmss/virtualMachines/aks-vmss_33), could not be attached to node(vm-1)"),
			want:    explain.BackendDisagrees, says: []string{"machine aks-vmss_33 has the volume"},
		},
		"what an answer may mean instead": {
			message: attach(`Could not attach volume "vol-1" to node "i-1": IncorrectState: vol-1 is not 'available'.`), want: explain.BackendDisagrees, says: []string{"or it is still being created or deleted: Could"},
		},
		"a zone, and no node affinity of a volume that was not read": {
			message: attach("InvalidVolume.ZoneMismatch: The volume 'vol-1' is not in the same availability zone as instance 'i-1'"),
			want:    explain.VolumeInOtherZone, says: []string{"the volume is in another zone than node n1: InvalidVolume"}, next: "kubectl get pv",
		},
		"the driver of an attacher": {
			message: `AttachVolume.Attach failed for volume "pv" : timed out waiting for external-attacher of x.example.com CSI driver to attach volume h`,
			want:    attachment.AttachUnanswered, says: []string{"the attacher of CSI driver x.example.com"},
		},
		"the old pod of a Deployment": {
			message: inUse, also: old("web"), want: explain.RollingUpdateDeadlock, says: []string{"pod old of Deployment/web has the volume on node n2"}, next: "Recreate",
		},
		"the pod of another owner": {message: inUse, also: old("job"), want: attachment.OtherWriterAttached, says: []string{"another node than n1"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.volume, c.pv, c.from, c.reason = ofClaim, onCSI(), "attachdetach-controller", "FailedAttachVolume"
			s, _ := c.snapshot()
			withFewRights(s)
			c.compare(t, s)
		})
	}
}

// TestClaimsWithFewRights: of claims, their own events and the pods of the namespace say what a PersistentVolume would.
func TestClaimsWithFewRights(t *testing.T) {
	scene := func(change func(*Snapshot, *corev1.Pod, *corev1.PersistentVolumeClaim)) *Snapshot {
		c := kubeletText{volume: ofClaim, pv: onCSI()}
		s, pod := c.snapshot()
		pod.Spec.NodeName = ""
		s.Claims[0].UID = "claim"
		change(s, pod, s.Claims[0])
		withFewRights(s)
		return s
	}
	unfit := scene(func(s *Snapshot, _ *corev1.Pod, claim *corev1.PersistentVolumeClaim) {
		claim.Status.Phase = corev1.ClaimPending
		s.Events = append(s.Events, &corev1.Event{
			Reason: "VolumeMismatch", Type: corev1.EventTypeWarning, Message: `Cannot bind to requested volume "pv": storageClassName does not match`, LastTimestamp: metav1.NewTime(s.Now),
			Source: corev1.EventSource{Component: "persistentvolume-controller"}, InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "ns", Name: "claim", UID: "claim"},
		})
	})
	if e, err := Explain(unfit, Ref{Pods, "ns", "app-0"}); err != nil || e.Reason != explain.VolumeMismatch || !strings.Contains(e.Summary, "PersistentVolume pv, which does not fit: Cannot bind to requested volume") {
		t.Errorf("a volume that does not fit: %s: %s (%v)", e.Reason, e.Summary, err)
	}
	alone := scene(func(s *Snapshot, pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) {
		other := pod.DeepCopy()
		other.Name, other.UID, other.Spec.NodeName, other.Status.Phase = "app-1", "app-1", "n2", corev1.PodRunning
		s.Pods, claim.Status.Phase, claim.Spec.AccessModes = append(s.Pods, other), corev1.ClaimBound, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
		pod.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Message: "0/2 nodes are available: 2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod.",
		}}
	})
	if e, err := Explain(alone, Ref{Pods, "ns", "app-0"}); err != nil || e.Reason != explain.ReadWriteOncePodInUse || !strings.Contains(e.Summary, "the claim claim has") || !strings.Contains(e.Summary, "pod app-1 uses it") {
		t.Errorf("a claim for one pod: %s: %s (%v)", e.Reason, e.Summary, err)
	}
	free := scene(func(s *Snapshot, _ *corev1.Pod, claim *corev1.PersistentVolumeClaim) {
		s.Pods, claim.Spec.VolumeName = nil, ""
		s.Events = append(s.Events, &corev1.Event{Reason: "WaitForFirstConsumer", LastTimestamp: metav1.NewTime(s.Now), InvolvedObject: corev1.ObjectReference{UID: "claim"}})
	})
	if e, err := Explain(free, Ref{Claims, "ns", "claim"}); err != nil || e.Verdict != Clear {
		t.Errorf("a claim that waits for its first pod: %s: %s (%v)", e.Verdict, e.Summary, err)
	}
}
