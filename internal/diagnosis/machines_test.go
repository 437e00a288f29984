package diagnosis

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/drivers"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

// inUse makes a node list the volume in use, without a VolumeAttachment.
func (s scene) inUse(node *corev1.Node) {
	node.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(kube.UniqueVolumeName(s.va.Spec.Attacher, "h"))}
}

// attachError makes the error of the VolumeAttachment another one.
func (s scene) attachError(message string) { s.va.Status.AttachError.Message = message }

// TestWhatStandsInTheCluster holds what objects show beside an error: which node the storage means, that two nodes are one for a driver, that an
// attachment is another machine's, what the attacher does next, and that a driver works.
func TestWhatStandsInTheCluster(t *testing.T) {
	for name, one := range map[string]struct {
		call       drivers.Call
		code, text string
		change     func(scene)
		want       decision.Reason
		says       string // in the summary
		step       string // in the steps
		never      string // in no step
	}{
		"another node lists it in use, as after a restored etcd": {drivers.Publish, "FailedPrecondition", "volume is attached elsewhere: already attached", func(s scene) { s.inUse(s.a) }, explain.BackendDisagrees, "node a lists the volume in use, and no VolumeAttachment shows it there", "Make sure that node a", "retry="},
		"the text has the node ID of another node":               {drivers.Publish, "FailedPrecondition", "already in use: fr-par-1/s1 has it", nil, explain.BackendDisagrees, "that node a has the volume", "", ""},
		"the text has a longer ID":                               {drivers.Publish, "FailedPrecondition", "already in use: fr-par-1/s12 has it", nil, explain.BackendDisagrees, "no VolumeAttachment shows", "", "node a "},
		"a machine of an Azure scale set": {drivers.Publish, "Internal", "disk(/d1) already attached to node(/subscriptions/s/resourceGroups/rg/providers/Microsoft.Compute/virtualMachineScaleSets/pool/virtualMachines/pool_33), could not be attached to node(b)", func(s scene) {
			s.a.Spec.ProviderID = "azure:///subscriptions/s/resourceGroups/rg/providers/Microsoft.Compute/virtualMachineScaleSets/pool/virtualMachines/33"
		}, explain.BackendDisagrees, "that node a has the volume", "", ""},
		"a machine of an Azure scale set, whose number a name has in base 36": {drivers.Publish, "Internal", "disk(/d1) already attached to node(/s/virtualMachineScaleSets/aks-pool-vmss/virtualMachines/aks-pool-vmss_10), could not be attached to node(b)", func(s scene) {
			s.a.Name = "aks-pool-vmss00000a"
		}, explain.BackendDisagrees, "that node aks-pool-vmss00000a has the volume", "", ""},
		"one whose name ends in the same digits": {drivers.Publish, "Internal", "disk(/d1) already attached to node(/s/virtualMachineScaleSets/aks-pool-vmss/virtualMachines/aks-pool-vmss_10), could not be attached to node(b)", func(s scene) {
			s.a.Name = "aks-pool-vmss000010" // number 36
		}, explain.BackendDisagrees, "that machine aks-pool-vmss_10 has the volume", "machine aks-pool-vmss_10 (host name aks-pool-vmss00000a)", "node aks-pool-vmss000010"},
		"one whose provider ID says otherwise": {drivers.Publish, "Internal", "disk(/d1) already attached to node(/s/virtualMachineScaleSets/aks-pool-vmss/virtualMachines/aks-pool-vmss_10), could not be attached to node(b)", func(s scene) {
			s.a.Name, s.a.Spec.ProviderID = "aks-pool-vmss00000a", "azure:///s/virtualMachineScaleSets/aks-other-vmss/virtualMachines/10"
		}, explain.BackendDisagrees, "that machine aks-pool-vmss_10", "", ""},
		"belay-attacher says where the driver lists it": {drivers.Publish, "Internal", "refused; " + explain.NotFreed("fr-par-1/s1", "reasons"), nil, explain.BackendDisagrees, "that node a has the volume, and no VolumeAttachment shows it", "", ""},
		"two Nodes have one node ID": {drivers.Publish, "Internal", "busy elsewhere", func(s scene) {
			for _, n := range s.CSINodes[1:] {
				n.Spec.Drivers[0].NodeID = "i-own"
			}
		}, explain.NodeIdentityShared, "registered node ID i-own on several Nodes, b and a", "kubectl get csinodes", ""},
		"the attachment is for another machine": {drivers.Mount, "Internal", "no device", func(s scene) {
			s.va.Annotations = map[string]string{kube.NodeIDAnnotation: "i-before"}
		}, attachment.NodeReplaced, "is for node ID i-before, and CSI driver disk.example.com has now registered i-own", "node ID i-before", ""},
		"the node's ID has another form, on one machine": {drivers.Mount, "Internal", "no device", func(s scene) {
			s.va.Annotations = map[string]string{kube.NodeIDAnnotation: "i-before", kube.SameMachineAnnotation: "i-own"}
		}, explain.MountFailing, "no device", "", ""},
		"an attempt is under way": {drivers.Publish, "Internal", "x", func(s scene) {
			s.attachError("driver did not answer (DeadlineExceeded); next attempt at " + s.Now.Add(-20*time.Second).Format(time.RFC3339))
		}, publication.CallInFlight, "an attempt has been due since 2026-11-01T11:59:40Z and has had no answer yet, and the one before it had no answer", "Wait: no other call for the volume is sent before this one ends", "retry="},
		"the next attempt is due later": {drivers.Publish, "Internal", "x", func(s scene) {
			s.attachError("driver did not answer (DeadlineExceeded); next attempt at " + s.Now.Add(20*time.Second).Format(time.RFC3339))
		}, explain.DriverUnavailable, "did not answer", `retry="$(date +%s)"`, ""},
		"belay-attacher takes a request": {drivers.Publish, "Internal", "the disk is in a failed state", func(s scene) {
			s.va.Annotations = map[string]string{kube.PublishedHandleAnnotation: "h"}
		}, attachment.AttachFailed, "failed state", "kubectl annotate volumeattachment csi-", ""},
		"the attacher has not called the driver": {drivers.Publish, "Internal", "x", func(s scene) {
			s.attachError(`volume may be attached to one node only and VolumeAttachment x for node "c" still exists`)
		}, attachment.AttachFailed, "does not call the driver for the attach to node b: volume may be attached to one node only", "", ""},
		"csi-attacher takes none": {drivers.Publish, "Internal", "the disk is in a failed state", nil, attachment.AttachFailed, "failed state", "", "annotate"},
		"the driver attaches elsewhere meanwhile": {drivers.Unpublish, "Internal", "device is busy", func(s scene) {
			other := s.va.DeepCopy()
			other.Name, other.Spec.NodeName, other.DeletionTimestamp, other.Status = "csi-other", "a", nil, storagev1.VolumeAttachmentStatus{Attached: true}
			other.Spec.Source.PersistentVolumeName, other.CreationTimestamp = new("other"), metav1.NewTime(s.Now.Add(-10*time.Second))
			s.Attachments = append(s.Attachments, other)
		}, attachment.DetachFailed, "device is busy", "not at the driver: meanwhile the driver has attached the volume of VolumeAttachment csi-other to node a", ""},
		"it attached elsewhere before": {drivers.Unpublish, "Internal", "device is busy", func(s scene) {
			other := s.va.DeepCopy()
			other.Name, other.Spec.NodeName, other.DeletionTimestamp, other.Status = "csi-other", "a", nil, storagev1.VolumeAttachmentStatus{Attached: true}
			other.Spec.Source.PersistentVolumeName, other.CreationTimestamp = new("other"), metav1.NewTime(s.Now.Add(-time.Hour))
			s.Attachments = append(s.Attachments, other)
		}, attachment.DetachFailed, "device is busy", "", "not at the driver"},
	} {
		t.Run(name, func(t *testing.T) {
			driver := oneDriver
			if strings.Contains(one.text, "disk(/d1)") {
				driver = "disk.csi.azure.com"
			}
			e := answered(t, one.call, driver, one.code, one.text, one.change)
			var steps strings.Builder
			for _, step := range e.Findings[0].Next {
				steps.WriteString(step.Text + "\n" + step.Command + "\n" + step.Danger + "\n")
			}
			if e.Reason != one.want || !strings.Contains(e.Summary, one.says) || !strings.Contains(steps.String(), one.step) ||
				one.never != "" && strings.Contains(e.Summary+steps.String(), one.never) {
				t.Errorf("%s: %s\n%s\nwant %s with %q and %q, without %q", e.Reason, e.Summary, steps.String(), one.want, one.says, one.step, one.never)
			}
		})
	}
}

// TestSharedIdentity: an attach to one of two Nodes with one system UUID reports both.
func TestSharedIdentity(t *testing.T) {
	for uuid, want := range map[string]bool{"ec2bd6b5-0000-4000-8000-000000000001": true, "ec2bd6b5-0000-4000-8000-000000000002": false} {
		e := answered(t, drivers.Publish, oneDriver, "Internal", "x", func(s scene) {
			s.Nodes[0].Status.NodeInfo.SystemUUID, s.Nodes[1].Status.NodeInfo.SystemUUID = "ec2bd6b5-0000-4000-8000-000000000001", uuid
		})
		if got := slices.ContainsFunc(e.Findings[0].Facts, func(f Fact) bool { return strings.Contains(f.Message, "has the system UUID of a too") }); got != want {
			t.Errorf("%s: said is %v, want %v: %+v", uuid, got, want, e.Findings[0].Facts)
		}
	}
}

// TestDeletedNodeIsNoNodeWithoutDriver: the CSINode goes with its Node, so that it shows nothing about the driver.
func TestDeletedNodeIsNoNodeWithoutDriver(t *testing.T) {
	s := newScene()
	s.va.Status = storagev1.VolumeAttachmentStatus{}
	s.holder.Status, s.Nodes = s.waiter.Status, s.Nodes[1:]
	s.Pods = []*corev1.Pod{s.holder}
	for _, finalizer := range []string{"", "external-attacher/disk-example-com"} {
		s.va.Finalizers = []string{finalizer}
		e, err := Explain(s.Snapshot, Ref{Resource: Attachments, Name: s.va.Name})
		if err != nil || e.Reason != attachment.NodeGone {
			t.Errorf("%s: %s (%v), want %s", e.Reason, e.Summary, err, attachment.NodeGone)
		}
	}
}
