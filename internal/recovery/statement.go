package recovery

import (
	"context"
	"fmt"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
)

// Reasons of the events about a statement that is no evidence.
const (
	reasonStatement = "StatementTooLong"
	reasonUnguarded = "StatementUnguarded"
)

// The names of the ValidatingAdmissionPolicies, and of their bindings, which refuse a statement, or a request for a power-off, in the name of another person,
// or of one who may not make it.
const statementPolicy, requestPolicy = "belay-fence-statement", "belay-fence-request"

// policySettles is how long after its last write the policy may not be in force yet. An API server makes its list of policies again each second
// (k8s.io/apiserver v0.36.3 pkg/admission/plugin/policy/generic/policy_source.go:47) from caches that may lag, and the times of writes are in
// whole seconds.
const policySettles = 5 * time.Second

// judgeStatement finds out whether the statement is guarded, and reports once if it is no evidence. The policy is read each time, from the API
// server itself: it can be deleted while the statement counts.
func (t *turn) judgeStatement(ctx context.Context, s *fencing.Statement) {
	if s == nil || !t.now().Before(s.Expires) {
		return
	}
	reason, text := reasonStatement, explain.FenceStatementTooLong(t.fence.Spec.NodeName)
	if s.Limited(t.now()) {
		why := t.unguarded(ctx, statementPolicy, s.Made)
		if s.Guarded = why == nil; s.Guarded || ctx.Err() != nil {
			return
		}
		reason, text = reasonUnguarded, explain.FenceStatementUnguarded(t.fence.Spec.NodeName, why)
	}
	if t.mem.refused.Equal(s.Expires) && t.mem.refusedReason == reason {
		return
	}
	t.mem.refused, t.mem.refusedReason = s.Expires, reason
	log.FromContext(ctx).Info("The statement is no evidence", "reason", reason)
	t.events.Eventf(t.regarding(), t.fence, corev1.EventTypeWarning, reason, "Fence", "%s", text)
}

// unguarded returns why nothing held the author of what was made at a time to their own name, and to the permission that a policy looks for.
func (p *parts) unguarded(ctx context.Context, name string, made time.Time) error {
	policy, binding := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
	for kind, object := range map[string]client.Object{"policy": policy, "binding of the policy": binding} {
		if err := p.live.Get(ctx, client.ObjectKey{Name: name}, object); err != nil {
			return fmt.Errorf("read the %s: %w", kind, err)
		}
	}
	written := lastWritten(policy)
	if at := lastWritten(binding); at.After(written) {
		written = at
	}
	switch {
	case policy.Spec.FailurePolicy != nil && *policy.Spec.FailurePolicy != admissionv1.Fail:
		return fmt.Errorf("the policy %s lets pass what it cannot check", name)
	case binding.Spec.PolicyName != name || binding.Spec.MatchResources != nil || !slices.Contains(binding.Spec.ValidationActions, admissionv1.Deny):
		return fmt.Errorf("the binding %s does not deny what the policy refuses", name)
	case made.Before(written.Add(policySettles)):
		return fmt.Errorf("it was written at %s, and the policy %s or its binding at %s", made.UTC().Format(time.RFC3339), name, written.UTC().Format(time.RFC3339))
	}
	return nil
}

// lastWritten is when a client last wrote an object, but for its status: kube-controller-manager checks the types of the expressions.
func lastWritten(object client.Object) time.Time {
	at := object.GetCreationTimestamp().Time
	for _, m := range object.GetManagedFields() {
		if m.Time != nil && m.Subresource == "" && m.Time.After(at) {
			at = m.Time.Time
		}
	}
	return at
}
