package diagnosis

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
)

// TestStepsThatWork: what a step tells to do is possible, and its command does it. What cannot be changed is made again, and a command that would be
// refused has what lets it pass, with what that costs.
func TestStepsThatWork(t *testing.T) {
	const zone = corev1.LabelTopologyZone
	iscsi := func(text string) func(*scene) { return inTree(ofISCSI, setUp(text)) }
	for name, one := range map[string]struct {
		make func(*scene)
		want decision.Reason
		text string
	}{
		"the Secret of a PersistentVolume": {
			func(s *scene) {
				s.mounts()
				s.says("", "Pod", "FailedMount", `MountVolume.MountDevice failed for volume "pv" : fetching NodeStageSecretRef san/chap failed: kubernetes.io/csi: failed to find the secret chap in the namespace san with error: secrets "chap" not found`, time.Second)
			}, explain.SecretMissing,
			"Create the Secret chap in namespace san, under this name.|kubectl get secrets -n san|To use another Secret, make the PersistentVolume again: what it refers to cannot be changed.|" +
				`kubectl patch pv pv -p '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}' && kubectl get pv pv -o yaml|with the same handle`,
		},
		"the Secret of an attach": {func(s *scene) {
			s.va.Status.Attached, s.va.Spec.NodeName, s.Pods = false, "b", s.Pods[1:]
			s.a.Status.VolumesAttached, s.a.Status.VolumesInUse = nil, nil
			e := grpcError("Internal", "")
			e.Message = `failed to load secret "san/chap": secrets "chap" not found`
			s.va.Status.AttachError = &e
		}, explain.SecretMissing, "Create the Secret that the PersistentVolume names|To use another Secret, make the PersistentVolume again"},
		"a zone, and nodes in one other": {func(s *scene) {
			s.refuses("ebs.csi.aws.com", "Internal", "InvalidVolume.ZoneMismatch: The volume 'h' is not in the same availability zone as instance 'i-0'")
			s.Nodes[0].Labels, s.Nodes[1].Labels = map[string]string{zone: "zone-a"}, map[string]string{zone: "zone-b"}
		}, explain.VolumeInOtherZone, "If that is zone-a, set it so: its nodes are a.|kubectl patch pv pv -p '{\"spec\":{\"nodeAffinity\":{\"required\":{\"nodeSelectorTerms\":[{\"matchExpressions\":[{\"key\":\"topology.kubernetes.io/zone\",\"operator\":\"In\",\"values\":[\"zone-a\"]}]}]}}}}'|it cannot be changed after that"},
		"a zone, and no other node": {func(s *scene) {
			s.refuses("ebs.csi.aws.com", "Internal", "InvalidVolume.ZoneMismatch: The volume 'h' is not in the same availability zone as instance 'i-0'")
		}, explain.VolumeInOtherZone, "kubectl edit pv pv"},
		"an encoded permission": {func(s *scene) {
			s.unbound()
			s.schedules(unboundText)
			s.Classes[0].Provisioner = "ebs.csi.aws.com"
			s.Claims[0].Annotations[ProvisionerAnnotation] = "ebs.csi.aws.com"
			s.ofClaim("ebs.csi.aws.com_pod_uid", "Warning", "ProvisioningFailed", `failed to provision volume with StorageClass "fast": rpc error: code = Internal desc = Could not create volume "pvc-1": could not create volume in EC2: UnauthorizedOperation: You are not authorized to perform this operation. Encoded authorization failure message: x9`, time.Minute)
		}, explain.ProvisioningFailed, "the permission to create volumes (ec2:CreateVolume)."},
		"a node that does not unmount, and the pod that waits": {func(s *scene) {
			s.Pods = []*corev1.Pod{s.waiter}
		}, explain.UnmountFailing, "journalctl -u kubelet|/proc/1/mountinfo|systemctl restart kubelet|kubectl drain a --ignore-daemonsets|A drain refuses pods without a controller (--force deletes them"},
		"the portal refuses":         {iscsi("failed to sendtargets to portal 10.0.0.5:3260 output: iscsiadm: cannot make connection to 10.0.0.5: Connection refused\niscsiadm: connection login retries (reopen_max) 5 exceeded\n, err exit status 4"), explain.StorageServerFailing, "its portal 10.0.0.5:3260 refuses the connection of node b|Start the iSCSI target at 10.0.0.5:3260"},
		"the portal refuses, in 2.0": {iscsi("failed to sendtargets to portal 10.0.0.5:3260 output: iscsiadm: cannot make connection to 10.0.0.5:3260 (111)\n, err exit status 4"), explain.StorageServerFailing, "its portal 10.0.0.5:3260 refuses the connection"},
		"the portal is silent":       {iscsi("failed to sendtargets to portal 10.0.0.5:3260 output: iscsiadm: connect to 10.0.0.5 timed out\n, err exit status 4"), explain.StorageServerFailing, "its portal 10.0.0.5:3260 does not answer node b"},
		"no daemon":                  {iscsi("failed to sendtargets to portal 10.0.0.5:3260 output: Failed to connect to bus: Connection refused\niscsiadm: can not connect to iSCSI daemon (111)!\niscsiadm: Could not perform SendTargets discovery: could not connect to iscsid\n, err exit status 20"), explain.NodeProgramMissing, "the daemon iscsid does not run on node b"},
		"the login is refused":       {iscsi("failed to get any path for iscsi disk, last err seen:\niscsi: failed to attach disk: Error: iscsiadm: Could not login to [iface: default, target: iqn.2020-01.com.example:s1, portal: 10.0.0.5,3260].\niscsiadm: initiator reported error (24 - iSCSI login failed due to authorization failure)\n (exit status 24)"), explain.StorageServerFailing, "the iSCSI target refuses the login of node b"},
		"the login is not answered":  {iscsi("failed to get any path for iscsi disk, last err seen:\niscsi: failed to attach disk: Error: iscsiadm: Could not login to [iface: default, target: iqn.2020-01.com.example:s1, portal: 10.0.0.5,3260].\niscsiadm: initiator reported error (8 - connection timed out)\n (exit status 8)"), explain.StorageServerFailing, "its portal 10.0.0.5:3260 does not answer the login of node b"},
		"the node says why it is not Ready": {func(s *scene) {
			s.mounts()
			s.Nodes[1].Status.Conditions[0].Status, s.Nodes[1].Status.Conditions[0].Message = corev1.ConditionFalse, "container runtime is down"
		}, explain.PodNodeNotReady, "for 60m (container runtime is down), so nothing mounts|Repair node b as its conditions say|No controller creates it again: apply its manifest then"},
		"the node says nothing": {func(s *scene) {
			s.mounts()
			s.Nodes[1].Status.Conditions[0].Status, s.Nodes[1].Status.Conditions[0].Message = corev1.ConditionUnknown, "Kubelet stopped posting node status."
			s.waiter.OwnerReferences = []metav1.OwnerReference{{Kind: "StatefulSet", Name: "db", Controller: new(true)}}
		}, explain.PodNodeNotReady, "for 60m, and whose kubelet is silent|Look at the machine of node b: start it, or its kubelet|a controller creates its pods on other nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			one.make(&s)
			e, err := Explain(s.Snapshot, theWaiter)
			if err != nil || e.Reason != one.want || !says(&e, one.text) {
				t.Errorf("%s: %s (%v), want %s and %q\n%+v", e.Reason, e.Summary, err, one.want, one.text, e.Findings[0].Next)
			}
		})
	}
}

// TestDrainOfBarePod: a pod that no controller has made stops a drain. The command overrides that no more than for other pods: the text says what --force costs.
func TestDrainOfBarePod(t *testing.T) {
	const text = "kubectl drain a --ignore-daemonsets|grep Unmount|--force deletes them, and nothing creates them again"
	for _, bare := range []bool{true, false} {
		s := newScene()
		s.Pods = s.Pods[:1]
		s.ending(10 * time.Minute)
		s.holder.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(s.Now.Add(-9 * time.Minute))}}}}}
		if !bare {
			s.holder.OwnerReferences = []metav1.OwnerReference{{Kind: "StatefulSet", Name: "db", Controller: new(true)}}
		}
		e, err := Explain(s.Snapshot, theHolder)
		if err != nil || !says(&e, text) {
			t.Errorf("bare %v: %s: %s (%v), want %q\n%+v", bare, e.Reason, e.Summary, err, text, e.Findings[0].Next)
		}
	}
}
