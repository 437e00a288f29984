package preflight

import (
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// recovered is a cluster in which recovery is as it should be.
func recovered() (*diagnosis.Snapshot, []runtime.Object) {
	s := clusterOf()
	s.Whole = append(s.Whole, diagnosis.Fences, diagnosis.FenceSources)
	for _, role := range diagnosis.RecoveryRoles() {
		s.Leases = append(s.Leases, heldLease("kube-system", diagnosis.Recovery+"-"+role, "x"))
	}
	source := &fencingv1.FenceSource{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	source.Spec.Levels = []fencingv1.FenceLevel{{Feeds: []fencingv1.Feed{{Agent: "fence_a", SecretRef: &fencingv1.SecretReference{Namespace: "hushed", Name: "bmc-login"}}}}}
	source.Status.Conditions = []metav1.Condition{{Type: kube.ConditionFenceReady, Status: metav1.ConditionTrue, Reason: "SaidOn"}}
	s.FenceSources = []*fencingv1.FenceSource{source}
	return s, append(policies("belay-nodes", "belay-attachments", "belay-leases", "belay-fence-request", "belay-fence-roles", "belay-fence-source", "belay-fence-statement"),
		upstreamPod("kube-controller-manager", "--controllers=*", "--"+forceFlag))
}

// policies are admission policies with their bindings.
func policies(names ...string) (objects []runtime.Object) {
	for _, name := range names {
		meta := metav1.ObjectMeta{Name: name}
		objects = append(objects, &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: meta}, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta})
	}
	return objects
}

// without takes away the policies of a name, or their bindings.
func without[T runtime.Object](objects *[]runtime.Object, policy string) {
	*objects = slices.DeleteFunc(*objects, func(o runtime.Object) bool {
		_, is := o.(T)
		return is && o.(metav1.Object).GetName() == policy
	})
}

// TestRecoveryHealth: one thing is wrong in a cluster with recovery, and the check about it shows it.
func TestRecoveryHealth(t *testing.T) {
	tests := map[string]struct {
		change func(s *diagnosis.Snapshot, objects *[]runtime.Object)
		check  string
		want   Result
		says   string
	}{
		"served": {nil, "API", OK, "are served"},
		"no CRD": {func(s *diagnosis.Snapshot, _ *[]runtime.Object) {
			s.Absent = []diagnosis.Ref{{Resource: diagnosis.FenceSources}}
		}, "API", Failed, "fencesources is missing"},
		"unread":  {func(s *diagnosis.Snapshot, _ *[]runtime.Object) { forbid(s, diagnosis.Fences) }, "API", Unknown, "permission to list nodefences"},
		"runs":    {nil, "fencer", OK, "holds its lease"},
		"stopped": {func(s *diagnosis.Snapshot, _ *[]runtime.Object) { dropLease(s, "belay-recovery-fencer") }, "fencer", Failed, "no process"},
		"in one process": {func(s *diagnosis.Snapshot, _ *[]runtime.Object) {
			dropLease(s, "belay-recovery-fencer")
			s.Leases = append(s.Leases, heldLease("kube-system", diagnosis.Recovery, "x"))
		}, "fencer", OK, "holds its lease"},
		"in belay-controller": {func(s *diagnosis.Snapshot, o *[]runtime.Object) {
			dropLease(s, "belay-recovery-actor")
			s.Leases = append(s.Leases, heldLease("kube-system", kube.FieldManager, "x"))
			*o = append(*o, runs("belay-system", "b", "belay-controller:v1", "--controllers=attachdetach,recovery", "--"+forceFlag+"=true"))
		}, "actor", OK, "runs in belay-controller"},
		"not in belay-controller": {func(s *diagnosis.Snapshot, _ *[]runtime.Object) {
			dropLease(s, "belay-recovery-actor")
			s.Leases = append(s.Leases, heldLease("kube-system", kube.FieldManager, "x"))
		}, "actor", Warning, "cannot be read"},
		"switches":  {nil, "power switches", OK, "1 of 1"},
		"no source": {func(s *diagnosis.Snapshot, _ *[]runtime.Object) { s.FenceSources = nil }, "power switches", Warning, "0 of 1"},
		"not ready": {func(s *diagnosis.Snapshot, _ *[]runtime.Object) {
			s.FenceSources[0].Status.Conditions[0].Status = metav1.ConditionFalse
		}, "power switches", Warning, "0 of 1"},
		"control plane": {func(s *diagnosis.Snapshot, _ *[]runtime.Object) {
			s.FenceSources, s.Nodes[0].Labels = nil, map[string]string{"node-role.kubernetes.io/control-plane": ""}
		}, "power switches", OK, "0 of 0"},
		"policies": {nil, "admission policies", OK, "are checked"},
		"no policy of statements": {func(_ *diagnosis.Snapshot, o *[]runtime.Object) {
			without[*admissionregistrationv1.ValidatingAdmissionPolicy](o, "belay-fence-statement")
		}, "admission policies", Failed, "1 of 7"},
		"no policy of nodes": {func(_ *diagnosis.Snapshot, o *[]runtime.Object) {
			without[*admissionregistrationv1.ValidatingAdmissionPolicy](o, "belay-nodes")
		}, "admission policies", Failed, "1 of 7"},
		"no binding": {func(_ *diagnosis.Snapshot, o *[]runtime.Object) {
			without[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](o, "belay-fence-roles")
		}, "admission policies", Failed, "1 of 7"},
		"timer off": {nil, "force timer", OK, "after a timeout alone"},
		"timer on": {func(_ *diagnosis.Snapshot, o *[]runtime.Object) {
			(*o)[len(*o)-1] = upstreamPod("kube-controller-manager", "--controllers=*", "--"+forceFlag+"=false")
		}, "force timer", Warning, "without a proof"},
		"timer of belay": {func(_ *diagnosis.Snapshot, o *[]runtime.Object) {
			*o = append((*o)[:len(*o)-1], runs("belay-system", "b", "belay-controller:v1"))
		}, "force timer", Warning, "without a proof"},
		"timer unknown": {func(_ *diagnosis.Snapshot, o *[]runtime.Object) { *o = (*o)[:len(*o)-1] }, "force timer", Warning, "check that it has"},
		"taint of a fence": {func(s *diagnosis.Snapshot, _ *[]runtime.Object) {
			taintNode(s)
			s.Fences = []*fencingv1.NodeFence{{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: fencingv1.NodeFenceSpec{NodeName: "n", Epoch: 4}, Status: fencingv1.NodeFenceStatus{Phase: "Moved"}}}
		}, "taints", OK, "belong to a NodeFence"},
		"leftover": {func(s *diagnosis.Snapshot, _ *[]runtime.Object) { taintNode(s) }, "taints", Failed, "any more"},
		"of another": {func(s *diagnosis.Snapshot, _ *[]runtime.Object) {
			s.Nodes[0].Spec.Taints = []corev1.Taint{{Key: kube.OutOfServiceTaint, Value: "nodeshutdown"}}
		}, "taints", OK, ""},
		"left, and the API is gone": {func(s *diagnosis.Snapshot, _ *[]runtime.Object) {
			taintNode(s)
			s.Nodes[0].Spec.Taints[0].Key = kube.IsolationTaint
			removeRecovery(s)
		}, "taints", Failed, "removes them: 1"},
		"over": {func(s *diagnosis.Snapshot, _ *[]runtime.Object) {
			taintNode(s)
			s.Fences = []*fencingv1.NodeFence{{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: fencingv1.NodeFenceSpec{NodeName: "n", Epoch: 4}, Status: fencingv1.NodeFenceStatus{Phase: "Released"}}}
		}, "taints", Failed, "any more"},
		"no contradiction": {nil, "evidence", OK, "no NodeFence is contradicted"},
		"contradicted": {func(s *diagnosis.Snapshot, _ *[]runtime.Object) {
			fenceNode(s)
			s.Fences[0].Status.Conditions = []metav1.Condition{{Type: kube.ConditionContradicted, Status: metav1.ConditionTrue, Reason: "SignOfLife"}}
		}, "evidence", Failed, "show a sign of life: 1"},
		"fences unread": {func(s *diagnosis.Snapshot, _ *[]runtime.Object) { forbid(s, diagnosis.Fences) }, "evidence", Unknown, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, objects := recovered()
			if tt.change != nil {
				tt.change(s, &objects)
			}
			report := Health(t.Context(), Config{Clients: fake.NewClientset(objects...)}, s, false)
			i := slices.IndexFunc(report.Checks, func(c Check) bool { return c.Category == CategoryRecovery && c.Name == tt.check })
			if i < 0 {
				t.Fatalf("no check %s", tt.check)
			}
			c := report.Checks[i]
			if c.Result != tt.want || !strings.Contains(c.Message, tt.says) {
				t.Errorf("%+v; want %s with %q", c, tt.want, tt.says)
			}
			if (c.Result == Warning || c.Result == Failed) && c.Hint == "" {
				t.Errorf("no hint: %+v", c)
			}
		})
	}
}

// removeRecovery removes recovery with its API.
func removeRecovery(s *diagnosis.Snapshot) {
	s.Whole = slices.DeleteFunc(s.Whole, func(r diagnosis.Resource) bool { return r == diagnosis.Fences || r == diagnosis.FenceSources })
	s.Absent, s.FenceSources = []diagnosis.Ref{{Resource: diagnosis.Fences}, {Resource: diagnosis.FenceSources}}, nil
}

// TestNothingOfRecovery: where it was never installed, or nothing of it is left, there is no check of it.
func TestNothingOfRecovery(t *testing.T) {
	s, objects := recovered()
	removeRecovery(s)
	for _, c := range Health(t.Context(), Config{Clients: fake.NewClientset(objects...)}, s, false).Checks {
		if c.Category == CategoryRecovery {
			t.Errorf("%+v", c)
		}
	}
}

// TestHeldNodesHaveTheReasonOfRecovery: what check says about a silent node is what evidence says.
func TestHeldNodesHaveTheReasonOfRecovery(t *testing.T) {
	s, objects := recovered()
	n := s.Nodes[0]
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
	s.Attachments = append(s.Attachments, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}, Spec: storagev1.VolumeAttachmentSpec{Attacher: "a", NodeName: n.Name}})
	s.Events = append(s.Events, &corev1.Event{
		Reason: string(fencing.SignOfLife), InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: n.Name}, ReportingController: diagnosis.Recovery, EventTime: metav1.NewMicroTime(s.Now),
	})
	checks := Health(t.Context(), Config{Clients: fake.NewClientset(objects...)}, s, false).Checks
	i := slices.IndexFunc(checks, func(c Check) bool { return c.Category == CategoryNodes && c.Name == "Ready" })
	if c := checks[i]; c.Hint != hint(fencing.SignOfLife) || len(c.Objects) != 1 || !strings.Contains(c.Objects[0], "(SignOfLife)") {
		t.Errorf("%+v", c)
	}
}

func forbid(s *diagnosis.Snapshot, r diagnosis.Resource) {
	s.Whole = slices.DeleteFunc(s.Whole, func(w diagnosis.Resource) bool { return w == r })
	s.Unread = append(s.Unread, diagnosis.Unread{Ref: diagnosis.Ref{Resource: r}, Verb: "list", Forbidden: true, Message: "forbidden"})
}

func dropLease(s *diagnosis.Snapshot, name string) {
	kept := s.Leases[:0]
	for _, l := range s.Leases {
		if l.Name != name {
			kept = append(kept, l)
		}
	}
	s.Leases = kept
}

func taintNode(s *diagnosis.Snapshot) {
	s.Nodes[0].Spec.Taints = []corev1.Taint{{Key: kube.OutOfServiceTaint, Value: "belay-4", Effect: corev1.TaintEffectNoExecute}}
}

// fenceNode makes recovery fence the boot that the node shows. The node still counts as Ready.
func fenceNode(s *diagnosis.Snapshot) {
	taintNode(s)
	s.Nodes[0].Status.NodeInfo.BootID, s.Nodes[0].Annotations[kube.FencedBootAnnotation] = "boot", "boot"
	s.Fences = []*fencingv1.NodeFence{{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Finalizers: []string{kube.FenceFinalizer}},
		Spec:       fencingv1.NodeFenceSpec{NodeName: "n", BootID: "boot", Epoch: 4}, Status: fencingv1.NodeFenceStatus{Phase: "Evicting"},
	}}
}

// TestTaintOfAFence: the out-of-service taint of a node that is Ready is wrong unless it is that of the fence of the boot that the node shows.
func TestTaintOfAFence(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(s *diagnosis.Snapshot)
		want   Result
		says   string
	}{
		"its own":          {func(*diagnosis.Snapshot) {}, OK, "those that recovery is fencing"},
		"no fence":         {func(s *diagnosis.Snapshot) { s.Fences = nil }, Failed, "still have the taint"},
		"a fence is over":  {func(s *diagnosis.Snapshot) { s.Fences[0].Status.Phase, s.Fences[0].Finalizers = "Released", nil }, Failed, "still have the taint"},
		"of another epoch": {func(s *diagnosis.Snapshot) { s.Fences[0].Spec.Epoch = 5 }, Failed, "still have the taint"},
		"of another boot":  {func(s *diagnosis.Snapshot) { s.Fences[0].Spec.BootID = "earlier" }, Failed, "still have the taint"},
		"by a person":      {func(s *diagnosis.Snapshot) { s.Nodes[0].Spec.Taints[0].Value = "nodeshutdown" }, Failed, "still have the taint"},
	} {
		t.Run(name, func(t *testing.T) {
			s, objects := recovered()
			fenceNode(s)
			tc.change(s)
			report := Health(t.Context(), Config{Clients: fake.NewClientset(objects...)}, s, false)
			i := slices.IndexFunc(report.Checks, func(c Check) bool { return c.Category == CategoryNodes && c.Name == "out-of-service taint" })
			if c := report.Checks[i]; c.Result != tc.want || !strings.Contains(c.Message, tc.says) {
				t.Errorf("%+v; want %s with %q", c, tc.want, tc.says)
			}
		})
	}
}

// TestNoRecoveryChecksWithoutRecovery: few clusters have its API.
func TestNoRecoveryChecksWithoutRecovery(t *testing.T) {
	s := clusterOf()
	s.Absent = []diagnosis.Ref{{Resource: diagnosis.Fences}, {Resource: diagnosis.FenceSources}}
	report := Health(t.Context(), Config{Clients: fake.NewClientset()}, s, false)
	if slices.ContainsFunc(report.Checks, func(c Check) bool { return c.Category == CategoryRecovery }) {
		t.Errorf("%+v", report.Checks)
	}
}

// TestPowerSwitchesHideForeignNames: the message of a condition may name a Secret of a namespace that the reader may not read.
func TestPowerSwitchesHideForeignNames(t *testing.T) {
	s, objects := recovered()
	s.AllNamespaces = false
	s.FenceSources[0].Status.Conditions[0] = metav1.Condition{
		Type: kube.ConditionFenceReady, Status: metav1.ConditionFalse, Reason: "SecretUnreadable", Message: `read Secret hushed/bmc-login: secrets "bmc-login" not found`,
	}
	report := Health(t.Context(), Config{Clients: fake.NewClientset(objects...)}, s, false)
	for _, c := range report.Checks {
		if text := c.Message + strings.Join(c.Objects, " "); strings.Contains(text, "hushed") || strings.Contains(text, "bmc-login") {
			t.Errorf("it names what is in a namespace that may not be read: %+v", c)
		}
	}
}
