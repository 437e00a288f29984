package preflight

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
)

const testDriver = "disk.example.com"

// clusterOf is a snapshot in which everything was read, with a node that has the driver, and the lease of its attacher.
func clusterOf() *diagnosis.Snapshot {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{kube.ManagedAttachAnnotation: "true"}}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	node.Status.NodeInfo.SystemUUID = "4c4c4544-0051-3910-8052-b4c04f4d3532"
	return &diagnosis.Snapshot{
		Now: time.Now(), AllNamespaces: true, Nodes: []*corev1.Node{node},
		CSINodes: []*storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: testDriver, NodeID: "n"}}}}},
		Drivers:  []*storagev1.CSIDriver{{ObjectMeta: metav1.ObjectMeta{Name: testDriver}}},
		Leases:   []*coordinationv1.Lease{heldLease("csi", "external-attacher-leader-disk-example-com", "attacher-0")},
		Whole: []diagnosis.Resource{diagnosis.Pods, diagnosis.Claims, diagnosis.Volumes, diagnosis.Attachments, diagnosis.Nodes, diagnosis.Leases,
			diagnosis.CSINodes, diagnosis.Drivers, diagnosis.Events},
	}
}

func heldLease(namespace, name, holder string) *coordinationv1.Lease {
	l := leaseOf(holder, time.Now().Add(-time.Hour))
	l.Namespace, l.Name = namespace, name
	return l
}

func runs(namespace, name, image string, args ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)},
		Spec:       corev1.PodSpec{ServiceAccountName: "belay-controller", Containers: []corev1.Container{{Name: "c", Image: image, Args: args}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
}

func attachmentOf(node string) *storagev1.VolumeAttachment {
	va := attachmentBy(kube.FieldManager, time.Now())
	va.Spec.Attacher, va.Spec.NodeName, va.Status.Attached = testDriver, node, true
	return va
}

// waiting adds a pod that has had its node for an hour, and no VolumeAttachment.
func waiting(leases ...*coordinationv1.Lease) func(*diagnosis.Snapshot) {
	return func(s *diagnosis.Snapshot) {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "claim"}}
		claim.Spec.VolumeName, claim.Status.Phase = "pv", corev1.ClaimBound
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: testDriver, VolumeHandle: "v"}
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "data", UID: "claim"}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "waits", UID: "pod", CreationTimestamp: metav1.NewTime(s.Now.Add(-time.Hour))}}
		pod.Spec.NodeName = "n"
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		s.Pods, s.Claims, s.Volumes = []*corev1.Pod{pod}, []*corev1.PersistentVolumeClaim{claim}, []*corev1.PersistentVolume{pv}
		s.Leases = append(s.Leases, leases...)
	}
}

// illness is one thing that is wrong in a cluster that is well, and the check about it.
type illness struct {
	objects []runtime.Object
	change  func(*diagnosis.Snapshot)
	check   string
	want    Result
	says    string
}

func illnesses() map[string]illness {
	unready := runs("belay-system", "b", "belay-controller:v1")
	unready.Status.Conditions = nil
	own, upstream := heldLease("kube-system", kube.FieldManager, "belay-0_u"), heldLease("kube-system", upstreamProgram, "cp-1_u")
	attacher := runs("csi", "attacher-0", "example.com/sig-storage/csi-attacher:v4.8.0", "--leader-election", "--timeout=1m")
	const on, off = "--controllers=*", "--controllers=*,-attachdetach"
	forbidden := diagnosis.Unread{Verb: "list", Forbidden: true, Message: "forbidden"}
	lacking := func(r diagnosis.Resource) func(*diagnosis.Snapshot) {
		return func(s *diagnosis.Snapshot) {
			u := forbidden
			u.Resource = r
			s.Unread, s.Whole = append(s.Unread, u), slices.DeleteFunc(s.Whole, func(w diagnosis.Resource) bool { return w == r })
		}
	}
	leases := func(all ...*coordinationv1.Lease) func(*diagnosis.Snapshot) {
		return func(s *diagnosis.Snapshot) { s.Leases = append(s.Leases, all...) }
	}
	expired := leaseOf("attacher-0", time.Now().Add(-time.Hour))
	expired.Namespace, expired.Name = "csi", "external-attacher-leader-disk-example-com"
	expired.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(-time.Hour)))
	return map[string]illness{
		"upstream works":             {[]runtime.Object{upstreamPod("kube-controller-manager", on)}, leases(upstream), "controller", OK, "kube-controller-manager attaches"},
		"belay works":                {[]runtime.Object{upstreamPod("kube-controller-manager", off)}, leases(own, upstream), "controller", OK, "belay-controller attaches"},
		"belay leads, acts not":      {[]runtime.Object{upstreamPod("kube-controller-manager", off)}, waiting(own), "controller", Failed, "neither attached nor detached"},
		"both":                       {[]runtime.Object{upstreamPod("kube-controller-manager", on)}, leases(own, upstream), "controller", Failed, "disable one"},
		"none: it is off":            {[]runtime.Object{upstreamPod("kube-controller-manager", off)}, leases(upstream), "controller", Failed, "no attach/detach controller runs"},
		"none found":                 {nil, nil, "controller", Warning, "no attach/detach controller was found"},
		"upstream in part":           {[]runtime.Object{upstreamPod("kube-controller-manager", on), second(off)}, leases(upstream), "controller", Warning, "enabled in 1 of 2 pods"},
		"belay, upstream in part":    {[]runtime.Object{upstreamPod("kube-controller-manager", on), second(off)}, leases(own, upstream), "controller", Failed, "disable one"},
		"upstream outside a pod":     {nil, leases(upstream), "controller", Warning, "cannot be read"},
		"belay, upstream unreadable": {nil, leases(own, upstream), "controller", Warning, "check that its attach/detach controller is disabled"},
		"upstream without a leader":  {[]runtime.Object{upstreamPod("kube-controller-manager", on)}, nil, "controller", Warning, "none holds the lease"},
		"leases unknown":             {nil, lacking(diagnosis.Leases), "controller", Unknown, "list leases"},
		"one replica":                {[]runtime.Object{runs("belay-system", "belay-0", "x/belay-controller:v1")}, leases(own), "belay-controller", Warning, "one replica"},
		"two replicas":               {[]runtime.Object{runs("belay-system", "a", "belay-controller:v1"), runs("belay-system", "b", "belay-controller:v1")}, leases(own), "belay-controller", OK, "2 replicas"},
		"a replica that crashes":     {[]runtime.Object{runs("belay-system", "a", "belay-controller:v1"), unready}, leases(own), "belay-controller", Warning, "not ready: 1 of 2"},
		"two leaders":                {nil, leases(own, heldLease("other", kube.FieldManager, "x")), "belay-controller", Failed, "held: 2"},
		"two versions":               {[]runtime.Object{runs("belay-system", "a", "belay-controller:v1"), runs("csi", "b", "belay-attacher:v2")}, nil, "belay", Warning, "run: 2"},
		"csi-attacher":               {[]runtime.Object{attacher}, nil, testDriver, OK, "csi-attacher, image example.com/sig-storage/csi-attacher:v4.8.0, pod csi/attacher-0: --timeout=1m --worker-threads=10 (default) --leader-election=true; registered on 1 of 1 nodes"},
		"belay-attacher":             {[]runtime.Object{runs("csi", "attacher-0", "r/belay-attacher@sha256:00", "-worker-threads", "20")}, nil, testDriver, OK, "belay-attacher, image r/belay-attacher@sha256:00, pod csi/attacher-0: --timeout=15s (default) --worker-threads=20"},
		"the attacher is no pod":     {nil, nil, testDriver, OK, "is no pod in namespace csi"},
		"no attacher":                {nil, func(s *diagnosis.Snapshot) { s.Leases = nil }, testDriver, Warning, "no lease"},
		"attacher stopped":           {nil, func(s *diagnosis.Snapshot) { s.Leases = []*coordinationv1.Lease{expired} }, testDriver, Warning, "no attacher holds its lease"},
		"attacher stopped, needed": {nil, func(s *diagnosis.Snapshot) {
			s.Leases, s.Attachments = []*coordinationv1.Lease{expired}, []*storagev1.VolumeAttachment{attachmentOf("n")}
		}, "csi/" + expired.Name, Failed, "not held"},
		"attacher stopped, needed, as its lease": {nil, func(s *diagnosis.Snapshot) {
			s.Leases, s.Attachments = []*coordinationv1.Lease{expired}, []*storagev1.VolumeAttachment{attachmentOf("n")}
		}, testDriver, Failed, "no attacher holds its lease"},
		"pods wait for the driver":                        {nil, func(s *diagnosis.Snapshot) { waitsOn(s, "other") }, testDriver, Failed, "and pods wait for it to register on their node: 1"},
		"claims wait for a provisioner that is not there": {nil, func(s *diagnosis.Snapshot) { waitsForProvisioner(s, "gone.example.com") }, "gone.example.com", Warning, "is not installed, and claims wait for it: 1"},
		"attacher stopped, idle":                          {nil, func(s *diagnosis.Snapshot) { s.Leases = []*coordinationv1.Lease{expired} }, "csi/" + expired.Name, Warning, "not held"},
		"needs no attach":                                 {nil, func(s *diagnosis.Snapshot) { s.Drivers[0].Spec.AttachRequired, s.Leases = new(false), nil }, testDriver, OK, "needs no attach"},
		"not on the node":                                 {nil, func(s *diagnosis.Snapshot) { s.Attachments = []*storagev1.VolumeAttachment{attachmentOf("other")} }, testDriver, Failed, "not on all"},
		"no CSIDriver": {nil, func(s *diagnosis.Snapshot) {
			s.Drivers, s.Attachments = nil, []*storagev1.VolumeAttachment{attachmentOf("n")}
		}, testDriver, Warning, "no CSIDriver"},
		"registered nowhere": {nil, func(s *diagnosis.Snapshot) { s.CSINodes = nil }, testDriver, Warning, "on 0 of 1"},
		"CSINodes unknown":   {nil, lacking(diagnosis.CSINodes), testDriver, Unknown, "list csinodes"},
		"drivers unknown":    {nil, lacking(diagnosis.Drivers), "CSIDrivers", Unknown, "list csidrivers"},
		"tainted": {nil, func(s *diagnosis.Snapshot) {
			s.Nodes[0].Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService}}
		}, "out-of-service taint", Failed, "by force: 1"},
		"tainted and not Ready": {nil, func(s *diagnosis.Snapshot) {
			s.Nodes[0].Spec.Taints, s.Nodes[0].Status.Conditions = []corev1.Taint{{Key: corev1.TaintNodeOutOfService}}, nil
		}, "out-of-service taint", OK, "no Ready node"},
		"not Ready with volumes": {nil, func(s *diagnosis.Snapshot) {
			s.Nodes[0].Status.Conditions, s.Attachments = nil, []*storagev1.VolumeAttachment{attachmentOf("n")}
		}, "Ready", Warning, "not Ready: 1"},
		"silent with volumes": {nil, func(s *diagnosis.Snapshot) {
			old := metav1.NewMicroTime(s.Now.Add(-40 * time.Second))
			s.Attachments = []*storagev1.VolumeAttachment{attachmentOf("n")}
			s.Leases = append(s.Leases, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "n"}, Spec: coordinationv1.LeaseSpec{RenewTime: &old},
			})
		}, "heartbeat", Warning, "do not renew their leases: 1"},
		"not managed":         {nil, func(s *diagnosis.Snapshot) { s.Nodes[0].Annotations = nil }, "managed", Warning, "nodes that attach by themselves"},
		"nodes unknown":       {nil, lacking(diagnosis.Nodes), "managed", Unknown, "list nodes"},
		"nothing waits":       {nil, nil, "blocked", OK, "nothing; there are 0 VolumeAttachments"},
		"attachments unknown": {nil, lacking(diagnosis.Attachments), "blocked", Unknown, "list volumeattachments"},
		"only one namespace was read": {nil, func(s *diagnosis.Snapshot) {
			s.Whole = slices.DeleteFunc(s.Whole, func(r diagnosis.Resource) bool { return r == diagnosis.Pods })
		}, "blocked", Unknown, "only some"},
		"an attach fails": {nil, func(s *diagnosis.Snapshot) {
			va := attachmentOf("n")
			va.CreationTimestamp, va.Status.Attached = metav1.NewTime(time.Now().Add(-time.Hour)), false
			va.DeletionTimestamp, va.Status.DetachError = &va.CreationTimestamp, &storagev1.VolumeError{Message: "no"}
			s.Attachments = []*storagev1.VolumeAttachment{va}
		}, "blocked", Failed, "1 VolumeAttachment;"},
		"a claim and a detach are blocked": {nil, func(s *diagnosis.Snapshot) {
			va := attachmentOf("n")
			va.CreationTimestamp, va.Status.Attached = metav1.NewTime(time.Now().Add(-time.Hour)), false
			va.DeletionTimestamp, va.Status.DetachError = &va.CreationTimestamp, &storagev1.VolumeError{Message: "no"}
			s.Attachments = []*storagev1.VolumeAttachment{va}
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ends", DeletionTimestamp: &va.CreationTimestamp, Finalizers: []string{"example.com/keeps"}}}
			s.Claims = append(s.Claims, claim)
		}, "blocked", Failed, "1 claim, 1 VolumeAttachment;"},
		"permissions": {nil, lacking(diagnosis.Events), "read", Warning, "lack permissions"},
		"errors": {nil, func(s *diagnosis.Snapshot) {
			s.Unread = append(s.Unread, diagnosis.Unread{Ref: diagnosis.Ref{Resource: diagnosis.Events}, Verb: "list", Message: "timeout"})
		}, "read", Unknown, "could not be read"},
	}
}

// waitsOn adds a pod on a node where the driver of its volume has not registered.
func waitsOn(s *diagnosis.Snapshot, node string) {
	hour := metav1.NewTime(s.Now.Add(-time.Hour))
	n := s.Nodes[0].DeepCopy()
	n.Name = node
	s.Nodes, s.CSINodes = append(s.Nodes, n), append(s.CSINodes, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}})
	s.Drivers[0].Spec.AttachRequired = new(false)
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "c", UID: "c"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: testDriver, VolumeHandle: "v"}},
	}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "v"}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p", CreationTimestamp: hour},
		Spec:       corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}},
		Status:     corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: hour}}},
	}
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p.1"}, Type: corev1.EventTypeWarning, Reason: "FailedMount", LastTimestamp: metav1.NewTime(s.Now), FirstTimestamp: hour,
		Message:        `MountVolume.MountDevice failed for volume "v" : kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: driver name ` + testDriver + ` not found in the list of registered CSI drivers`,
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "p", UID: "p"}, Source: corev1.EventSource{Component: "kubelet", Host: node},
	}
	s.AllNamespaces = true
	s.Volumes, s.Claims, s.Pods, s.Events = append(s.Volumes, pv), append(s.Claims, claim), append(s.Pods, pod), append(s.Events, event)
}

// waitsForProvisioner adds a claim whose provisioner has said nothing of it.
func waitsForProvisioner(s *diagnosis.Snapshot, provisioner string) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "c", UID: "c", CreationTimestamp: metav1.NewTime(s.Now.Add(-time.Hour)), Annotations: map[string]string{diagnosis.ProvisionerAnnotation: provisioner},
	}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new("gone")}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}
	s.AllNamespaces = true
	s.Classes = append(s.Classes, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "gone"}, Provisioner: provisioner})
	s.Claims = append(s.Claims, claim)
}

// TestHealth: the check about what is wrong shows it.
func TestHealth(t *testing.T) {
	for name := range illnesses() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // in which no lease ages
				tt, s := illnesses()[name], clusterOf()
				if tt.change != nil {
					tt.change(s)
				}
				report := Health(t.Context(), Config{Clients: fake.NewClientset(tt.objects...)}, s, false)
				c := check(t, Report{Checks: report.Checks}, tt.check)
				if c.Result != tt.want || !strings.Contains(c.Message, tt.says) {
					t.Errorf("%+v; want %s with %q", c, tt.want, tt.says)
				}
				if c.Result != OK && c.Result != Unknown && c.Hint == "" {
					t.Errorf("no hint: %+v", c)
				}
				if report.Result.severity() < c.Result.severity() {
					t.Errorf("the whole is %s, and a part of it %s", report.Result, c.Result)
				}
			})
		})
	}
}

// TestVolumesThatNodesConnect: a Fibre Channel volume has a VolumeAttachment, and neither a driver nor an attacher.
func TestVolumesThatNodesConnect(t *testing.T) {
	s := clusterOf()
	va := attachmentOf("n")
	key := attachment.VolumeKey{Driver: kube.FibreChannelPlugin, Handle: "[50]:1"}
	va.Name, va.Status.Attached = kube.AttachmentName(key.Handle, key.Driver, "n"), false
	va.Spec.Attacher, va.Spec.Source = kube.FibreChannelAttacher, kube.OwnSource(key, nil)
	va.CreationTimestamp = metav1.NewTime(s.Now.Add(-time.Hour))
	s.Attachments = []*storagev1.VolumeAttachment{va}
	unique := corev1.UniqueVolumeName(kube.UniqueVolumeName(key.Driver, key.Handle))
	s.Nodes[0].Status.VolumesAttached, s.Nodes[0].Status.VolumesInUse = []corev1.AttachedVolume{{Name: unique}}, []corev1.UniqueVolumeName{unique}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "pod"}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	pod.Status.Phase, pod.Status.Conditions = corev1.PodRunning, []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
	pod.Spec.NodeName = "n"
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"50"}, Lun: new(int32(1))}}}}
	s.Pods = []*corev1.Pod{pod}
	for _, c := range Health(t.Context(), Config{Clients: fake.NewClientset()}, s, false).Checks {
		if strings.Contains(c.Name+c.Message, kube.FibreChannelAttacher) || c.Name == "blocked" && c.Result != OK {
			t.Errorf("%+v", c)
		}
	}
	if orphans := diagnosis.Orphans(s, true); len(orphans.Items) > 0 {
		t.Errorf("%+v", orphans.Items)
	}
}

// TestHealthWithoutPods: what the pods would show is unknown, never ok.
func TestHealthWithoutPods(t *testing.T) {
	clients := fake.NewClientset()
	clients.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "x"}, "", errors.New("no"))
	})
	report := Health(t.Context(), Config{Clients: clients}, clusterOf(), true)
	for _, name := range []string{"controller", "belay", testDriver, "flexvolumes"} {
		if c := check(t, Report{Checks: report.Checks}, name); c.Result != Unknown {
			t.Errorf("%+v, want unknown", c)
		}
	}
	if c := check(t, Report{Checks: report.Checks}, "read"); c.Result != Warning || !slices.Contains(c.Objects, "list pods in namespace csi") || !slices.Contains(c.Objects, "list flowschemas") {
		t.Errorf("%+v, want the missing permissions", c)
	}
	hidden := clusterOf()
	hidden.AllNamespaces = false
	for _, c := range Health(t.Context(), Config{Clients: clients}, hidden, false).Checks {
		if text := c.Name + c.Message + strings.Join(c.Objects, " "); strings.Contains(text, "csi/") || strings.Contains(text, "namespace csi") || strings.Contains(text, "attacher-0") {
			t.Errorf("it names what is in a namespace that may not be read: %+v", c)
		}
	}
}

func flow(name string, precedence int32, level string, subject flowcontrolv1.Subject, rule flowcontrolv1.ResourcePolicyRule) *flowcontrolv1.FlowSchema {
	return &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: flowcontrolv1.FlowSchemaSpec{
		MatchingPrecedence: precedence, PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: level},
		Rules: []flowcontrolv1.PolicyRulesWithSubjects{{Subjects: []flowcontrolv1.Subject{subject}, ResourceRules: []flowcontrolv1.ResourcePolicyRule{rule}}},
	}}
}

// TestPriority classifies as the API server does: the lowest precedence that matches.
func TestPriority(t *testing.T) {
	every := flowcontrolv1.ResourcePolicyRule{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, Namespaces: []string{"*"}, ClusterScope: true}
	leases := flowcontrolv1.ResourcePolicyRule{Verbs: []string{"update"}, APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Namespaces: []string{"kube-system"}}
	accounts := flowcontrolv1.Subject{Kind: "Group", Group: &flowcontrolv1.GroupSubject{Name: "system:serviceaccounts"}}
	account := flowcontrolv1.Subject{Kind: "ServiceAccount", ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: "belay-system", Name: "belay-controller"}}
	other := flowcontrolv1.Subject{Kind: "ServiceAccount", ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: "kube-system", Name: "*"}}
	user := flowcontrolv1.Subject{Kind: "User", User: &flowcontrolv1.UserSubject{Name: "system:serviceaccount:belay-system:belay-controller"}}
	low := flow("service-accounts", 9000, "workload-low", accounts, every)
	tests := map[string]struct {
		flows []runtime.Object
		want  Result
		says  string
	}{
		"none":            {nil, Warning, "priority level unknown by FlowSchema none"},
		"of all accounts": {[]runtime.Object{low, flow("kube-system", 900, "workload-high", other, every)}, Warning, "create volumeattachments: priority level workload-low by FlowSchema service-accounts"},
		"leases only":     {[]runtime.Object{low, flow("leases", 150, "leader-election", account, leases)}, Warning, "update leases: priority level leader-election by FlowSchema leases; create volumeattachments: priority level workload-low"},
		"its own":         {[]runtime.Object{low, flow("leases", 150, "leader-election", account, leases), flow("own", 850, "workload-high", user, every)}, OK, "update leases: priority level leader-election by FlowSchema leases; create volumeattachments: priority level workload-high by FlowSchema own"},
		"equal: by name":  {[]runtime.Object{flow("b", 1, "workload-low", account, every), flow("a", 1, "workload-high", account, every)}, OK, "by FlowSchema a"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			report := Health(t.Context(), Config{Clients: fake.NewClientset(append(tt.flows, runs("belay-system", "belay-0", "belay-controller:v1"))...)}, clusterOf(), false)
			i := slices.IndexFunc(report.Checks, func(c Check) bool { return c.Category == CategoryPriority })
			if c := report.Checks[i]; c.Result != tt.want || !strings.Contains(c.Message, tt.says) {
				t.Errorf("%+v; want %s with %q", c, tt.want, tt.says)
			}
		})
	}
}

// TestPriorityWithoutController: on a cluster of upstream the priority of belay-controller's requests matters only before a take-over.
func TestPriorityWithoutController(t *testing.T) {
	for takeOver, want := range map[bool]bool{false: false, true: true} {
		report := Health(t.Context(), Config{Clients: fake.NewClientset()}, clusterOf(), takeOver)
		if got := slices.ContainsFunc(report.Checks, func(c Check) bool { return c.Category == CategoryPriority }); got != want {
			t.Errorf("take-over %v: the API priority is checked: %v", takeOver, got)
		}
	}
	s := clusterOf()
	s.Leases = append(s.Leases, heldLease("kube-system", kube.FieldManager, "belay-0_u"))
	if report := Health(t.Context(), Config{Clients: fake.NewClientset()}, s, false); !slices.ContainsFunc(report.Checks, func(c Check) bool { return c.Category == CategoryPriority }) {
		t.Error("with a belay-controller outside of a pod the API priority is not checked")
	}
}

// second is a kube-controller-manager of another control-plane node.
func second(args ...string) *corev1.Pod {
	pod := upstreamPod(append([]string{"kube-controller-manager"}, args...)...)
	pod.Name = "kcm-2"
	return pod
}

// TestIdentities: what cannot tell machines, or nodes of a driver, apart has a row that says so.
func TestIdentities(t *testing.T) {
	const uuid, board = "4c4c4544-0051-3910-8052-b4c04f4d3532", "03000200-0400-0500-0006-000700080009"
	another := func(edit func(*corev1.Node)) func(*diagnosis.Snapshot) {
		return func(s *diagnosis.Snapshot) {
			other := s.Nodes[0].DeepCopy()
			other.Name, other.Status.NodeInfo.SystemUUID = "other", "4c4c4544-0051-3910-8052-b4c04f4d3533"
			edit(other)
			s.Nodes = append(s.Nodes, other)
		}
	}
	both := func(edit func(*corev1.Node)) func(*diagnosis.Snapshot) {
		return func(s *diagnosis.Snapshot) { edit(s.Nodes[0]); another(edit)(s) }
	}
	for name, c := range map[string]struct {
		change  func(*diagnosis.Snapshot)
		check   string
		want    Result
		objects []string
	}{
		"all of their own": {another(func(*corev1.Node) {}), "system UUIDs", OK, nil},
		"none":             {another(func(n *corev1.Node) { n.Status.NodeInfo.SystemUUID = "" }), "system UUIDs", Warning, []string{"node other: it has none"}},
		"a default of makers": {
			another(func(n *corev1.Node) { n.Status.NodeInfo.SystemUUID = board }), "system UUIDs", Warning, []string{"node other: " + board + ", which many machines have"},
		},
		"equal, in another form": {
			another(func(n *corev1.Node) { n.Status.NodeInfo.SystemUUID = strings.ToUpper(uuid) }), "system UUIDs", Warning, []string{"nodes n, other: " + uuid},
		},
		"no provider ID":     {another(func(*corev1.Node) {}), "provider IDs", OK, nil},
		"equal provider IDs": {both(func(n *corev1.Node) { n.Spec.ProviderID = "cloud://1" }), "provider IDs", Warning, []string{"nodes n, other: cloud://1"}},
		"equal boot IDs":     {both(func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot" }), "boot IDs", Warning, []string{"nodes n, other: boot"}},
		"equal CSI node IDs": {func(s *diagnosis.Snapshot) {
			other := s.CSINodes[0].DeepCopy()
			other.Name = "other"
			s.CSINodes = append(s.CSINodes, other)
		}, "CSI node IDs", Failed, []string{"nodes n, other: n of driver " + testDriver}},
		"CSI node IDs of two drivers": {func(s *diagnosis.Snapshot) {
			other := s.CSINodes[0].DeepCopy()
			other.Name, other.Spec.Drivers[0].Name = "other", "other.example.com"
			s.CSINodes = append(s.CSINodes, other)
		}, "CSI node IDs", OK, nil},
		"nodes not read": {func(s *diagnosis.Snapshot) {
			s.Whole = slices.DeleteFunc(s.Whole, func(r diagnosis.Resource) bool { return r == diagnosis.Nodes })
			s.Unread = append(s.Unread, diagnosis.Unread{Ref: diagnosis.Ref{Resource: diagnosis.Nodes}, Verb: "list", Forbidden: true, Message: "forbidden"})
		}, "system UUIDs", Unknown, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := clusterOf()
			c.change(s)
			checks := Health(t.Context(), Config{Clients: fake.NewClientset()}, s, false).Checks
			i := slices.IndexFunc(checks, func(check Check) bool { return check.Name == c.check })
			if i < 0 {
				t.Fatalf("no check %q", c.check)
			}
			got := checks[i]
			if got.Result != c.want || !slices.Equal(got.Objects, c.objects) {
				t.Errorf("%+v, want %s about %q", got, c.want, c.objects)
			}
			if len(c.objects) > 0 && got.Hint != pageCommand(identitiesPage) {
				t.Errorf("hint %q", got.Hint)
			}
		})
	}
}

// TestDeletedNodes: where a controller of clouds or machines deletes Nodes, the policy that fits is named.
func TestDeletedNodes(t *testing.T) {
	marked := func(mark string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Annotations: map[string]string{mark: "ns/m"}}
	}
	for name, c := range map[string]struct {
		provider string
		meta     metav1.ObjectMeta
		args     []string
		want     []Result
	}{
		"wait":           {"aws:///eu-west-1a/i-1", metav1.ObjectMeta{}, nil, []Result{Warning}},
		"detach":         {"gce://p/z/n", metav1.ObjectMeta{}, []string{"--deleted-node-policy=detach"}, []Result{OK}},
		"set to wait":    {"azure:///x", metav1.ObjectMeta{}, []string{"--deleted-node-policy", "wait"}, []Result{Warning}},
		"no such cloud":  {"vsphere://1", metav1.ObjectMeta{}, nil, nil},
		"no provider ID": {"", metav1.ObjectMeta{}, nil, nil},
		"Karpenter":      {"kwok://1", metav1.ObjectMeta{Finalizers: []string{"karpenter.sh/termination"}}, nil, []Result{Warning}},
		"Cluster API":    {"vsphere://1", marked("cluster.x-k8s.io/machine"), nil, []Result{Warning}},
		"OpenShift":      {"vsphere://1", marked("machine.openshift.io/machine"), nil, []Result{Warning}},
	} {
		t.Run(name, func(t *testing.T) {
			s := clusterOf()
			s.Nodes[0].Spec.ProviderID, s.Nodes[0].Annotations, s.Nodes[0].Finalizers = c.provider, c.meta.Annotations, c.meta.Finalizers
			clients := fake.NewClientset(runs("belay-system", "a", "belay-controller:v1", c.args...))
			s.Leases = append(s.Leases, heldLease("kube-system", kube.FieldManager, "a"))
			var got []Result
			for _, check := range Health(t.Context(), Config{Clients: clients}, s, false).Checks {
				if check.Name == "deleted Nodes" {
					got = append(got, check.Result)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}
