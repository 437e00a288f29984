package recovery

import (
	"context"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/wait"
)

// statementGuard are the policy and its binding, as far as the actor looks at them.
func statementGuard() []client.Object { return guardOf(statementPolicy) }

func guardOf(policy string) []client.Object {
	name, fail := metav1.ObjectMeta{Name: policy}, admissionv1.Fail
	return []client.Object{
		&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: name, Spec: admissionv1.ValidatingAdmissionPolicySpec{FailurePolicy: &fail}},
		&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: name, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		}},
	}
}

// guarded waits until the policy of the API server guards what is written from now on.
func (s *site) guarded() {
	s.Helper()
	policy, binding := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
	must(s, s.client.Get(s.Context(), client.ObjectKey{Name: statementPolicy}, policy))
	must(s, s.client.Get(s.Context(), client.ObjectKey{Name: statementPolicy}, binding))
	wait.Until(s, "the policy is in force", func() bool {
		return time.Since(lastWritten(policy)) > policySettles+time.Second && time.Since(lastWritten(binding)) > policySettles+time.Second
	})
}

// TestStatementThatNoPolicyGuards: whatever lets a statement pass that its author may not make, makes it no evidence, and one event says so.
func TestStatementThatNoPolicyGuards(t *testing.T) {
	made := time.Now().Truncate(time.Second)
	none := &metav1.FieldsV1{}
	none.SetRawString("{}")
	written := func(age time.Duration, subresource string) []metav1.ManagedFieldsEntry {
		return []metav1.ManagedFieldsEntry{{Manager: "helm", Operation: metav1.ManagedFieldsOperationUpdate, Subresource: subresource, Time: &metav1.Time{Time: made.Add(-age)},
			APIVersion: "admissionregistration.k8s.io/v1", FieldsType: "FieldsV1", FieldsV1: none}}
	}
	for name, c := range map[string]struct {
		change func(*admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding)
		drop   int // this object is absent: 1 the policy, 2 the binding
		why    string
	}{
		"in force":   {},
		"no policy":  {drop: 1, why: "read the policy: "},
		"no binding": {drop: 2, why: "read the binding of the policy: "},
		"it only warns": {why: "does not deny", change: func(_ *admissionv1.ValidatingAdmissionPolicy, b *admissionv1.ValidatingAdmissionPolicyBinding) {
			b.Spec.ValidationActions[0] = admissionv1.Warn
		}},
		"another policy is bound": {why: "does not deny", change: func(_ *admissionv1.ValidatingAdmissionPolicy, b *admissionv1.ValidatingAdmissionPolicyBinding) {
			b.Spec.PolicyName = "other"
		}},
		"bound to some objects": {why: "does not deny", change: func(_ *admissionv1.ValidatingAdmissionPolicy, b *admissionv1.ValidatingAdmissionPolicyBinding) {
			b.Spec.MatchResources = &admissionv1.MatchResources{}
		}},
		"failures pass": {why: "lets pass", change: func(p *admissionv1.ValidatingAdmissionPolicy, _ *admissionv1.ValidatingAdmissionPolicyBinding) {
			*p.Spec.FailurePolicy = admissionv1.Ignore
		}},
		"the binding is younger": {why: "it was written at", change: func(_ *admissionv1.ValidatingAdmissionPolicy, b *admissionv1.ValidatingAdmissionPolicyBinding) {
			b.CreationTimestamp.Time = made
		}},
		"the policy was put back": {why: "it was written at", change: func(p *admissionv1.ValidatingAdmissionPolicy, _ *admissionv1.ValidatingAdmissionPolicyBinding) {
			p.ManagedFields = written(policySettles-time.Second, "")
		}},
		"it was put back in time": {change: func(p *admissionv1.ValidatingAdmissionPolicy, _ *admissionv1.ValidatingAdmissionPolicyBinding) {
			p.ManagedFields = written(policySettles, "")
		}},
		"its expressions are judged": {change: func(p *admissionv1.ValidatingAdmissionPolicy, _ *admissionv1.ValidatingAdmissionPolicyBinding) {
			p.ManagedFields = written(0, "status")
		}},
	} {
		objects := statementGuard()
		if c.change != nil {
			c.change(objects[0].(*admissionv1.ValidatingAdmissionPolicy), objects[1].(*admissionv1.ValidatingAdmissionPolicyBinding))
		}
		if c.drop > 0 {
			objects = append(objects[:c.drop-1], objects[c.drop:]...)
		}
		p := partsOver(nil)
		p.live = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithReturnManagedFields().Build()
		said := events.NewFakeRecorder(10)
		p.events = said
		turn := &turn{actor: &actor{parts: p}, fence: &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, mem: &memory{}}
		s := &fencing.Statement{By: "jo", Reason: "looked", Machine: "hw-n1", Made: made, Expires: made.Add(time.Hour)}
		for range 3 {
			turn.judgeStatement(t.Context(), s)
		}
		if s.Guarded != (c.why == "") || len(said.Events) != map[bool]int{true: 0, false: 1}[s.Guarded] {
			t.Errorf("%s: guarded %t, %d events", name, s.Guarded, len(said.Events))
			continue
		}
		if c.why != "" {
			if text := <-said.Events; !strings.Contains(text, "Warning "+reasonUnguarded) || !strings.Contains(text, c.why) {
				t.Errorf("%s: %s", name, text)
			}
		}
	}
}

// TestForgedStatement: while the binding is absent, the API server accepts from a client that may write NodeFences a statement in the name of another
// person. It is no evidence then, nor once the binding is back.
func TestForgedStatement(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	s.run()
	m.dies(fencing.PowerOn)
	m.waits("no power switch is known")
	s.bind("mallory", "belay-recovery-actor") // may write fences, and not confirm
	mallory, err := client.New(cluster.User(t, "mallory"), client.Options{Scheme: scheme})
	must(t, err)
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{}
	must(t, s.client.Get(t.Context(), client.ObjectKey{Name: statementPolicy}, binding))
	must(t, s.client.Delete(t.Context(), binding))
	binding.ResourceVersion = ""
	t.Cleanup(func() {
		must(t, client.IgnoreAlreadyExists(s.client.Create(context.WithoutCancel(t.Context()), binding)))
	})
	wait.Until(t, "the API server accepts a forged statement", func() bool {
		f := m.fence()
		before := client.MergeFrom(f.DeepCopy())
		f.Spec.Statement = &fencingv1.Statement{By: "alice", Reason: "pulled the plug", MachineID: f.Spec.MachineID, Expires: metav1.NewTime(time.Now().Add(time.Hour))}
		return mallory.Patch(t.Context(), f, before) == nil
	})
	wait.Until(t, "an event says that it is no evidence", func() bool { return s.event(reasonUnguarded) })
	cluster.Apply(t, rbac+"admission.yaml")
	s.guarded() // seconds in which the actor decides again
	must(t, s.client.Patch(t.Context(), m.fence(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}}}`))))
	wait.Until(t, "the actor has asked for the policy again", func() bool {
		requests, err := cluster.Requests(apiserver.ServiceAccountName("belay-system", "belay-recovery-actor"))
		must(t, err)
		last := requests[len(requests)-1].At.Time
		return last.After(m.fence().ManagedFields[0].Time.Time)
	})
	if f := m.fence(); f.Status.Phase != fencingv1.Phase(fencing.Fencing) || m.moved() {
		t.Errorf("%s on a forged statement, moved %t", f.Status.Phase, m.moved())
	}
}
