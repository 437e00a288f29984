package diagnosis

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// stepsOf are the texts, commands and dangers of the first finding about an object.
func stepsOf(t *testing.T, s *scene, about Ref) (e Explanation, text string) {
	t.Helper()
	e, err := Explain(s.Snapshot, about)
	if err != nil {
		t.Fatal(err)
	}
	for i := range e.Findings {
		text += e.Findings[i].Summary + "\n"
		for _, step := range e.Findings[i].Next {
			text += step.Text + "\n" + step.Command + "\n" + step.Danger + "\n"
		}
	}
	return e, text
}

// TestNodesWithoutTheDriverAreNotNamed: a node in the right zone on which the driver has not registered cannot have the volume.
func TestNodesWithoutTheDriverAreNotNamed(t *testing.T) {
	for name, lacks := range map[string]bool{"the driver is there": false, "the driver is not there": true} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.refuses("ebs.csi.aws.com", "Internal", "InvalidVolume.ZoneMismatch: The volume 'h' is not in the same availability zone as instance 'i-0'")
			driver := "ebs.csi.aws.com"
			if lacks {
				driver = "nfs.example.com"
			}
			for node, zone := range map[string]string{"far": "zone-a", "other": "zone-a", "b": "zone-b"} {
				has := driver
				if node != "far" {
					has = "ebs.csi.aws.com"
				}
				labels := map[string]string{corev1.LabelTopologyZone: zone, corev1.LabelHostname: node}
				if node == "b" {
					s.Nodes[1].Labels = labels
				} else {
					s.Nodes = append(s.Nodes, readyNode(node, labels))
				}
				s.CSINodes = append(s.CSINodes, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: has, NodeID: node}}}})
			}
			e, text := stepsOf(t, &s, theWaiter)
			if e.Reason != explain.VolumeInOtherZone || strings.Contains(text, "far") == lacks || !strings.Contains(text, "other") {
				t.Errorf("%s: %s", e.Reason, text)
			}
		})
	}
}

func readyNode(name string, labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
}

// TestBelayAttacherIsNamedWhereItRuns: what belay-attacher does by itself is a step only where the VolumeAttachment is one that it works on, its lease is
// held, and the machine is a node of the cluster.
func TestBelayAttacherIsNamedWhereItRuns(t *testing.T) {
	const refusal = "volume is already attached to another node"
	for name, c := range map[string]struct {
		belay, held, want bool
	}{
		"it runs": {true, true, true}, "it is another attacher": {false, true, false}, "it does not run": {true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.refuses("disk.example.com", "FailedPrecondition", refusal)
			if c.belay {
				metav1.SetMetaDataAnnotation(&s.va.ObjectMeta, kube.PublishedHandleAnnotation, "h")
			}
			s.Leases = nil
			if c.held {
				s.attacherLease(time.Second)
			}
			if _, text := stepsOf(t, &s, theWaiter); strings.Contains(text, "belay-attacher") != c.want {
				t.Errorf("belay-attacher is named: %v\n%s", !c.want, text)
			}
		})
	}
}

// TestClaimOfPodThatWaitsForOther: whatever a pod waits for beside its claim, the claim is clear, and says what the pod waits for.
func TestClaimOfPodThatWaitsForOther(t *testing.T) {
	for name, c := range map[string]struct {
		make func(*scene)
		says string
	}{
		"an image": {container(nil, "ImagePullBackOff", "Back-off pulling image"), "waits for its image"},
		"a ConfigMap": {func(s *scene) {
			s.mounts()
			s.waiter.Spec.Volumes = append(s.waiter.Spec.Volumes, corev1.Volume{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "app"}}}})
			s.says("", "Pod", "FailedMount", `MountVolume.SetUp failed for volume "config" : configmap "app" not found`, time.Second)
		}, "waits for its volume config"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			c.make(&s)
			e, _ := stepsOf(t, &s, Ref{Claims, "ns", "claim"})
			if e.Verdict != Clear || !strings.Contains(e.Summary, c.says) {
				t.Errorf("%s: %s", e.Verdict, e.Summary)
			}
		})
	}
}

// TestStuckNamesTheCause: a list has which of several causes of a reason it is.
func TestStuckNamesTheCause(t *testing.T) {
	s := newScene()
	s.unbound()
	s.ofClaim("disk.example.com_pod_1", corev1.EventTypeWarning, "ProvisioningFailed", "rpc error: code = PermissionDenied desc = no", time.Minute)
	list := Stuck(s.Snapshot, "", 0)
	for i := range list.Items {
		if f := &list.Items[i]; f.Reason == explain.ProvisioningFailed && f.Why == explain.StorageRefuses {
			return
		}
	}
	t.Errorf("no item has the cause: %+v", list.Items)
}

// TestProvisionerPods: the pod of a provisioner is where the attacher of the same driver has its lease, if that has the same host; its log is then printed.
func TestProvisionerPods(t *testing.T) {
	s := newScene()
	s.unbound()
	s.ofClaim(oneDriver+"_pod-1_4f", corev1.EventTypeWarning, "ProvisioningFailed", "rpc error: code = PermissionDenied desc = no", time.Minute)
	s.attacherLease(time.Second)
	s.AllNamespaces = false
	found := s.ProvisionerPods()
	if len(found["csi"]) != 1 || found["csi"][0] != "pod-1" {
		t.Fatalf("%v", found)
	}
	s.AllNamespaces = true
	s.Pods = append(s.Pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "csi", Name: "pod-1"}})
	if _, text := stepsOf(t, &s, Ref{Claims, "ns", "claim"}); !strings.Contains(text, "kubectl logs -n csi pod-1 --all-containers") {
		t.Error(text)
	}
}
