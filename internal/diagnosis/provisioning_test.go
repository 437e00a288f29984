package diagnosis

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// TestProvisioningCause: each text is made by the line that stands beside it, in pkg/controller of kubernetes-csi/external-provisioner, in controller of
// kubernetes-sigs/sig-storage-lib-external-provisioner, or in pkg/controller/volume/persistentvolume of kubernetes/kubernetes.
func TestProvisioningCause(t *testing.T) {
	const failed = `failed to provision volume with StorageClass "fast": `
	for _, one := range []struct {
		source, message string
		want            explain.Cause
	}{
		{"external-provisioner v5.3.0 topology.go:378", failed + `error generating accessibility requirements: topologyKeys map[disk.example.com:[topology.disk/zone]] were not found on any nodes`, explain.NoTopology},
		{"external-provisioner v5.3.0 topology.go:177", failed + `error generating accessibility requirements: no topology key found on CSINode node-7`, explain.NoTopology},
		{"external-provisioner v6.3.0 topology.go:227", failed + `error generating accessibility requirements: selected node '"w1"' topology 'map[zone:b]' is not in allowed topologies: [map[zone:a]]`, explain.NoTopology},
		{"external-provisioner v5.3.0 controller.go:1173", failed + `error getting handle for DataSource Type VolumeSnapshot by Name nightly: snapshot nightly is not Ready`, explain.SourceNotReady},
		{"external-provisioner v6.3.0 controller.go:1205", failed + `error getting handle for DataSource Type PersistentVolumeClaim by Name golden: the PVC DataSource golden must have a status of Bound.  Got {Pending}`, explain.SourceNotReady},
		{"external-provisioner v5.3.0 controller.go:589", failed + `the PVC source not found for PVC data`, explain.SourceNotReady},
		{"external-provisioner v5.3.0 controller.go:1854", failed + `error getting secret csi-creds in namespace storage: secrets "csi-creds" not found`, explain.SecretOfClass},
		{"external-provisioner v5.3.0 controller.go:1735", failed + `failed to get name and namespace template from params: provisioner secrets specified in parameters but value of either namespace or name is empty`, explain.SecretOfClass},
		{"external-provisioner v6.3.0 controller.go:674", failed + `fstype specified in parameters with both "fstype" and "csi.storage.k8s.io/fstype" keys`, explain.WrongParameters},
		{"external-provisioner v5.3.0 controller.go:436", failed + `CSI driver does not support snapshot restore: controller CREATE_DELETE_SNAPSHOT capability is not reported`, explain.NotSupported},
		{"external-provisioner v6.3.0 controller.go:654", failed + `claim Selector is not supported`, explain.NotSupported},
		{"sig-storage-lib v11.0.1 controller.go:1679", `storageClass "fast" not found`, explain.ClassMissing},
		{"sig-storage-lib v11.0.1 controller.go:1310", `rancher.io/local-path does not support block volume provisioning`, explain.NotSupported},
		{"kubernetes v1.36.3 pv_controller.go:1671", `Mount options are not supported by the provisioner but StorageClass "fast" has mount options [ro]`, explain.NotSupported},
		{"kubernetes v1.36.3 pv_controller.go:1571", `storageclass.storage.k8s.io "gold" not found`, explain.ClassMissing},
		{"a driver's code, sig-storage-lib v11.0.1 controller.go:1497", failed + `rpc error: code = Unauthenticated desc = token expired`, explain.StorageRefuses},
		{"a driver's code", failed + `rpc error: code = ResourceExhausted desc = pool is full`, explain.StorageExhausted},
		{"a driver's code", failed + `rpc error: code = OutOfRange desc = 1Ti is too much`, explain.WrongParameters},
		{"a driver's code", failed + `rpc error: code = DeadlineExceeded desc = context deadline exceeded`, explain.DriverSilent},
		{"client-go v0.36.3 tools/record/events_cache.go, before a text", combined + failed + `rpc error: code = Aborted desc = an operation with the given Volume ID already exists`, explain.DriverSilent},

		// The same words from another speaker, or in another sentence.
		{"a driver that quotes a topology", failed + `rpc error: code = Internal desc = error generating accessibility requirements: no available topology found`, ""},
		{"a driver that quotes a secret", failed + `rpc error: code = Unknown desc = error getting secret vault/creds: 403`, ""},
		{"a driver that quotes a code", failed + `rpc error: code = Internal desc = backend: rpc error: code = ResourceExhausted desc = full`, ""},
		{"a driver that quotes a class", failed + `rpc error: code = Internal desc = storageClass "fast" not found`, ""},
		{"a class in the middle", failed + `cannot read storageClass "fast" not found in cache`, ""},
		{"a node check: external-provisioner v5.3.0 controller.go:808", failed + `node check failed: nodes "w1" not found`, ""},
		{"a node: sig-storage-lib v11.0.1 controller.go:1473", `failed to get target node: node "w1" not found`, ""},
		{"a driver about parameters", failed + `rpc error: code = Internal desc = VAC gold is unknown`, ""},
		{"a code without a text", failed + `rpc error: code = Internal`, ""},
		{"a driver that does not support", failed + `rpc error: code = Internal desc = CSI driver does not support this`, ""},
		{"an orphan: external-provisioner v5.3.0 controller.go:876", failed + `created volume capacity 1 less than requested capacity 2`, ""},
	} {
		if got, _ := provisioningCause("", one.message); got != one.want {
			t.Errorf("%s: %q is %q, want %q", one.source, one.message, got, one.want)
		}
	}
}

// unbound makes the waiter a pod without a node, whose claim has no volume, and returns the claim.
func (s scene) unbound() *corev1.PersistentVolumeClaim {
	s.Attachments, s.Volumes, s.Pods = nil, nil, []*corev1.Pod{s.waiter}
	s.waiter.Spec.NodeName = ""
	claim := s.Claims[0]
	claim.Spec.VolumeName, claim.UID, claim.Status.Phase = "", "claim", corev1.ClaimPending
	claim.Spec.StorageClassName, claim.CreationTimestamp = new("fast"), metav1.NewTime(s.Now.Add(-10*time.Minute))
	claim.Annotations = map[string]string{ProvisionerAnnotation: oneDriver}
	s.Classes = []*storagev1.StorageClass{{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: oneDriver, VolumeBindingMode: new(storagev1.VolumeBindingImmediate)}}
	s.Whole = append(s.Whole, StorageClasses)
	return claim
}

// delays makes the class of the claim wait for a node, and selects one if that is not "".
func (s scene) delays(selected string) {
	s.Classes[0].VolumeBindingMode = new(storagev1.VolumeBindingWaitForFirstConsumer)
	if selected != "" {
		s.Claims[0].Annotations[kube.SelectedNodeAnnotation] = selected
	}
}

// schedules stores the scheduler's word about the waiter.
func (s scene) schedules(message string) {
	s.waiter.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: message, LastTransitionTime: metav1.NewTime(s.Now.Add(-5 * time.Minute))}}
}

// ofClaim adds an event of the claim.
func (s scene) ofClaim(component, kind, reason, message string, ago time.Duration) {
	s.Snapshot.Events = append(s.Snapshot.Events, &corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "ns", Name: "claim", UID: "claim"},
		Reason:         reason, Message: message, Type: kind, Source: corev1.EventSource{Component: component}, LastTimestamp: metav1.NewTime(s.Now.Add(-ago)),
	})
}

const (
	unboundText  = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
	preBindText  = `running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded`
	insufficient = "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."
	asking       = `Waiting for a volume to be created either by the external provisioner 'disk.example.com' or manually by the system administrator.`
	refusing     = `failed to provision volume with StorageClass "fast": rpc error: code = ResourceExhausted desc = quota`
)

// TestUnboundClaims: a warning outranks that the controller waits, whose event is always newer; a pod waits for its claim also while the scheduler
// says that a bind timed out.
func TestUnboundClaims(t *testing.T) {
	provisioner := oneDriver + "_csi-0_uid"
	for name, one := range map[string]struct {
		make   func(scene)
		reason decision.Reason
		cause  string
	}{
		"the provisioner fails, and the controller waits": {func(s scene) {
			s.schedules(unboundText)
			s.ofClaim(provisioner, "Warning", "ProvisioningFailed", refusing, time.Minute)
			s.ofClaim("persistentvolume-controller", "Normal", "ExternalProvisioning", asking, time.Second)
		}, explain.ProvisioningFailed, "Raise the quota"},
		"it fails after the scheduler has chosen a node": {func(s scene) {
			s.delays("b")
			s.schedules(preBindText)
			s.ofClaim(provisioner, "Warning", "ProvisioningFailed", refusing, time.Minute)
			s.ofClaim(provisioner, "Normal", "Provisioning", "External provisioner is provisioning volume", time.Second)
		}, explain.ProvisioningFailed, ""},
		"it failed, the scheduler starts again, and finds no node": {func(s scene) {
			s.delays("")
			s.schedules(insufficient)
			s.ofClaim(provisioner, "Warning", "ProvisioningFailed", refusing, time.Minute)
		}, explain.PodUnschedulable, ""},
		"no component answers": {func(s scene) {
			s.schedules(unboundText)
			s.ofClaim("persistentvolume-controller", "Normal", "ExternalProvisioning", asking, time.Second)
		}, explain.ProvisionerNotRunning, "not installed"},
		"no component answers, and the bind timed out": {func(s scene) {
			s.delays("b")
			s.schedules(preBindText)
		}, explain.ProvisionerNotRunning, "not installed"},
		"the driver is installed, its provisioner is not": {func(s scene) {
			s.schedules(unboundText)
			s.Drivers = []*storagev1.CSIDriver{{ObjectMeta: metav1.ObjectMeta{Name: oneDriver}}}
		}, explain.ProvisionerNotRunning, "the driver is installed"},
		"it has begun": {func(s scene) {
			s.schedules(unboundText)
			s.ofClaim(provisioner, "Normal", "Provisioning", "External provisioner is provisioning volume", 2*time.Minute)
		}, explain.ClaimNotBound, ""},
		"it is asked just now": {func(s scene) {
			s.schedules(unboundText)
			s.Claims[0].CreationTimestamp, s.waiter.CreationTimestamp = metav1.NewTime(s.Now.Add(-5*time.Second)), metav1.NewTime(s.Now.Add(-5*time.Second))
		}, explain.ClaimNotBound, ""},
		"the events could not be read": {func(s scene) {
			s.schedules(unboundText)
			s.Unread = append(s.Unread, Unread{Ref: Ref{Resource: Events}, Verb: "list", Forbidden: true})
		}, explain.ClaimNotBound, ""},
		"the events of another namespace could not be read": {func(s scene) {
			s.schedules(unboundText)
			s.Unread = append(s.Unread, Unread{Ref: Ref{Resource: Events, Namespace: "default"}, Verb: "list", Forbidden: true})
		}, explain.ProvisionerNotRunning, "not installed"},
		"another controller warns about it": {func(s scene) {
			s.schedules(unboundText)
			s.ofClaim("kyverno", "Warning", "PolicyViolation", "validation failure: label team is required", time.Second)
			s.ofClaim(provisioner, "Normal", "Provisioning", "External provisioner is provisioning volume", time.Minute)
		}, explain.ClaimNotBound, ""},
		"an earlier attempt failed, and it was provisioned": {func(s scene) {
			s.schedules(unboundText)
			s.ofClaim(provisioner, "Warning", "ProvisioningFailed", refusing, time.Minute)
			s.ofClaim(provisioner, "Normal", "ProvisioningSucceeded", "Successfully provisioned volume pv", time.Second)
		}, explain.ClaimNotBound, ""},
		"the class does not exist": {func(s scene) { s.schedules(unboundText); s.Classes = nil }, explain.ClaimNotBound, "Create the StorageClass fast"},
		"no class, and no default": {func(s scene) { s.schedules(unboundText); s.Claims[0].Spec.StorageClassName = nil }, explain.ClaimNotBound, "no StorageClass is the default; there are fast"},
		"no class, and a driver that is installed": {
			func(s scene) {
				s.schedules(unboundText)
				s.Claims[0].Spec.StorageClassName = nil
				s.Drivers = append(s.Drivers, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: oneDriver}})
				s.Classes = append(s.Classes, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}, Provisioner: kube.NoProvisioner})
			}, explain.ClaimNotBound,
			"kubectl annotate storageclass fast storageclass.kubernetes.io/is-default-class=true|all claims of the cluster|kubectl patch pvc claim -p '{\"spec\":{\"storageClassName\":\"fast\"}}' -n ns",
		},
		"the empty class, which is no default": {func(s scene) { s.schedules(unboundText); s.Claims[0].Spec.StorageClassName = new("") }, explain.ClaimNotBound, "a default class does not apply to it|kubectl delete pvc claim -n ns"},
		"the class provisions nothing": {func(s scene) {
			s.schedules(unboundText)
			s.Classes[0].Provisioner = kube.NoProvisioner
			s.Claims[0].Annotations = nil
		}, explain.NoVolumeToBind, "of the 0 PersistentVolumes"},
		"the pod has a node without the scheduler": {func(s scene) { s.delays(""); s.waiter.Spec.NodeName = "b" }, explain.ClaimNotBound, "spec.nodeName"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.unbound()
			one.make(s)
			for _, subject := range []Ref{{Pods, "ns", "waiter"}, {Claims, "ns", "claim"}} {
				e, err := Explain(s.Snapshot, subject)
				if err != nil || e.Reason != one.reason || !says(&e, one.cause) {
					t.Errorf("%s: %s: %s %v (%v), want %s and %q", subject, e.Reason, e.Summary, e.Findings, err, one.reason, one.cause)
				}
			}
		})
	}
}

// says reports whether a text is in the summary or the steps of a finding; of several, divided by "|", each.
func says(e *Explanation, text string) bool {
	all := e.Summary
	for _, f := range e.Findings {
		all += f.Summary
		for _, step := range f.Next {
			all += step.Text + step.Command + step.Danger
		}
		for _, fact := range f.Facts {
			all += fact.Message
		}
	}
	for part := range strings.SplitSeq(text, "|") {
		if !strings.Contains(all, part) {
			return false
		}
	}
	return true
}
