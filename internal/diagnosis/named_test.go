package diagnosis

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
)

// inZone gives a node a zone, by the label of a driver and by that of Kubernetes.
func inZone(s *Snapshot, name, zone string) {
	for _, n := range s.Nodes {
		if n.Name == name {
			n.Labels = map[string]string{corev1.LabelTopologyZone: zone, "topology.ebs.csi.aws.com/zone": zone, corev1.LabelHostname: name}
			return
		}
	}
	n := s.Nodes[0].DeepCopy()
	n.Name, n.Status.VolumesAttached, n.Status.VolumesInUse = name, nil, nil
	s.Nodes = append(s.Nodes, n)
	inZone(s, name, zone)
}

// onlyIn restricts a volume to a zone.
func onlyIn(pv *corev1.PersistentVolume, zone string) {
	pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "topology.ebs.csi.aws.com/zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
	}}}}
}

// TestZonesAreNamed: an answer about a zone names it, the nodes that are there, and what keeps the pod from them.
func TestZonesAreNamed(t *testing.T) {
	const mismatch = "InvalidVolume.ZoneMismatch: The volume 'vol-1' is not in the same availability zone as instance 'i-1'"
	for name, c := range map[string]struct {
		make func(*scene)
		want decision.Reason
		says []string
		next string
	}{
		"a volume without node affinity": {
			func(s *scene) {
				s.refuses("ebs.csi.aws.com", "Internal", mismatch)
				s.CSINodes[0].Spec.Drivers[0].TopologyKeys = []string{"topology.ebs.csi.aws.com/zone"}
				inZone(s.Snapshot, "b", "zone-1")
				inZone(s.Snapshot, "a", "zone-2")
				inZone(s.Snapshot, "c", "zone-2")
				inZone(s.Snapshot, "d", "zone-1")
			},
			explain.VolumeInOtherZone, []string{"the volume is not in zone-1, where node b is", "no node affinity; other nodes: zone-2 (a, c):"}, "\"key\":\"topology.ebs.csi.aws.com/zone\",\"operator\":\"In\",\"values\":[\"zone-2\"]",
		},
		"without labels": {
			func(s *scene) { s.refuses("ebs.csi.aws.com", "Internal", mismatch) },
			explain.VolumeInOtherZone, []string{"the volume is in another zone than node b, and"}, "kubectl get nodes -L topology.kubernetes.io/zone",
		},
		"a pod that the scheduler did not place": {
			func(s *scene) {
				s.failed("x")
				inZone(s.Snapshot, "b", "zone-1")
				inZone(s.Snapshot, "a", "zone-2")
				onlyIn(s.Volumes[0], "zone-2")
			},
			explain.VolumeTopologyConflict, []string{"topology.ebs.csi.aws.com/zone is zone-2: a; node b has zone-1"}, "kubectl get nodes -L topology.ebs.csi.aws.com/zone",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			c.make(&s)
			e, err := Explain(s.Snapshot, theWaiter)
			if err != nil || e.Reason != c.want {
				t.Fatalf("%s: %s (%v)", e.Reason, e.Summary, err)
			}
			for _, part := range c.says {
				if !strings.Contains(e.Summary, part) {
					t.Errorf("%q does not say %q", e.Summary, part)
				}
			}
			if next := e.Findings[0].Next; !strings.Contains(textsOf(next), c.next) {
				t.Errorf("the steps do not have %q: %+v", c.next, next)
			}
		})
	}
}

func textsOf(steps []explain.Step) (text string) {
	for _, step := range steps {
		text += step.Text + " " + step.Command + "\n"
	}
	return text
}

// TestWhatIsNamed: an answer names what its reader has to look for: the folder, who reads a Secret, the reboot, the volumes of a pod.
func TestWhatIsNamed(t *testing.T) {
	const unregistered = "kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: driver name disk.example.com not found in the list of registered CSI drivers"
	for name, c := range map[string]kubeletText{
		"the folder of a subPath": {
			volume: ofClaim, pv: onNFS(), container: true, reason: "CreateContainerConfigError", message: `failed to prepare subPath for volumeMount "v" of container "app"`,
			also: func(_ *Snapshot, pod *corev1.Pod) {
				pod.Spec.Containers = []corev1.Container{
					{Name: "side", VolumeMounts: []corev1.VolumeMount{{Name: "v", SubPath: "other"}}},
					{Name: "app", VolumeMounts: []corev1.VolumeMount{{Name: "w", SubPath: "not"}, {Name: "v", SubPath: "admin"}, {Name: "v", SubPathExpr: "$(POD_NAME)"}}},
				}
			},
			want: explain.ContainerMountFailing, says: []string{"cannot make or enter folder admin, $(POD_NAME) (subPath)"}, next: "root of node n1 may enter",
		},
		"kubelet reads a Secret": {
			volume: ofClaim, pv: onCSI(), reason: "FailedMount",
			message: `MountVolume.MountDevice failed for volume "pv" : fetching NodeStageSecretRef ceph/node failed: kubernetes.io/csi: failed to find the secret node in the namespace ceph with error: secrets "node" not found`,
			want:    explain.SecretMissing, says: []string{"kubelet of node n1 cannot read the Secret ceph/node"}, next: "kubectl get secrets -n ceph",
		},
		"a reboot": {
			volume: ofClaim, pv: onCSI(), reason: "FailedMount", message: `MountVolume.MountDevice failed for volume "pv" : ` + unregistered,
			also: func(s *Snapshot, _ *corev1.Pod) {
				s.Events = append(s.Events, nodeEvent(s, "n2", "kubelet"), nodeEvent(s, "n1", "someone"), nodeEvent(s, "n1", "kubelet"))
			},
			want: explain.DriverNotOnNode, says: []string{"on node n1, which rebooted 30m ago"},
		},
		"another's reboot": {
			volume: ofClaim, pv: onCSI(), reason: "FailedMount", message: `MountVolume.MountDevice failed for volume "pv" : ` + unregistered,
			also: func(s *Snapshot, _ *corev1.Pod) { s.Events = append(s.Events, nodeEvent(s, "n2", "kubelet")) },
			want: explain.DriverNotOnNode, says: []string{"has not registered on node n1"},
		},
		"the volumes of a pod that has ended": {
			volume: secret("tls"), also: func(s *Snapshot, pod *corev1.Pod) {
				at := metav1.NewTime(s.Now.Add(-5 * time.Minute))
				pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &at, new(int64(1))
				pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
				pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "kube-api-access-x7k2p", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}})
			},
			want: explain.PodTerminating, says: []string{"(its volumes: v)"}, next: "journalctl -u kubelet --since=-1h | grep app-0",
		},
		"a pod with finalizers": {
			volume: secret("tls"), also: func(s *Snapshot, pod *corev1.Pod) {
				at := metav1.NewTime(s.Now.Add(-5 * time.Minute))
				pod.DeletionTimestamp, pod.Finalizers = &at, []string{"example.com/keep"}
			},
			want: explain.PodTerminating, says: []string{"finalizers example.com/keep"}, next: "controllers run that set the finalizers",
		},
	} {
		t.Run(name, c.check)
	}
}

func nodeEvent(s *Snapshot, node, from string) *corev1.Event {
	e := &corev1.Event{Reason: Rebooted, Message: "Node " + node + " has been rebooted, boot id: b", LastTimestamp: metav1.NewTime(s.Now.Add(-30 * time.Minute))}
	e.InvolvedObject, e.Source.Component = corev1.ObjectReference{Kind: "Node", Name: node, UID: "not its own"}, from
	return e
}

// TestEncodedPermission: an error of AWS has in it, encoded, which permission is missing: the step says how to read it, whatever was asked of the driver.
func TestEncodedPermission(t *testing.T) {
	const denied = "UnauthorizedOperation: You are not authorized to perform this operation. Encoded authorization failure message: b64b64 status code: 403"
	s := newScene()
	s.refuses("ebs.csi.aws.com", "Internal", denied)
	e, err := Explain(s.Snapshot, theWaiter)
	if err != nil || e.Reason != explain.DriverNotAuthorized || !strings.Contains(textsOf(e.Findings[0].Next), "aws sts decode-authorization-message") {
		t.Errorf("%s: %+v (%v)", e.Reason, e.Findings, err)
	}
	for _, reason := range []decision.Reason{explain.ProvisioningFailed, explain.VolumeDeleteFailed, explain.ResizeFailed} {
		for _, detail := range []string{denied, "UnauthorizedOperation"} {
			text := textsOf(explain.GuideTo(reason).Steps(explain.Situation{Volume: "pv", Claim: "c", Cause: explain.StorageRefuses, Detail: detail}))
			if strings.Contains(text, "decode-authorization-message") != (detail == denied) {
				t.Errorf("%s, %s: %s", reason, detail, text)
			}
		}
	}
}
