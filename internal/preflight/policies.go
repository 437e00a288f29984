package preflight

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
)

// guard is an admission policy of belay, with its binding of the same name.
type guard struct {
	policy string
	// without is what a client may do without it.
	without string
}

// The policies that the chart and deploy/ install (SECURITY.md). Those of belay's own writes hold for all parts that write Nodes and VolumeAttachments.
var (
	writeGuards = []guard{
		{"belay-nodes", "with the token of belay-controller or recovery, a client may change any taint, label or status of Nodes"},
		{"belay-attachments", "with the token of belay-controller or recovery, a client may change the finalizers and records of attachers"},
		{"belay-leases", "with the token of belay-controller or recovery, a client may make leases that count as another part's"},
	}
	fenceGuards = []guard{
		{"belay-fence-source", "every client that may change FenceSources may have the fencer send the Secret of a power switch to another host that the Secret names"},
		{"belay-fence-statement", "every client that may change NodeFences may state that a machine is off"},
		{"belay-fence-request", "every client that may create NodeFences may ask for a power-off in the name of a person"},
		{"belay-fence-roles", "with the token of one part of recovery, a client may write the evidence and the intents of another"},
	}
)

// guarded looks for policies and their bindings.
func guarded(ctx context.Context, config Config, c Check, guards []guard) Check {
	policies := config.Clients.AdmissionregistrationV1()
	for _, g := range guards {
		_, err := policies.ValidatingAdmissionPolicies().Get(ctx, g.policy, metav1.GetOptions{})
		if err == nil {
			_, err = policies.ValidatingAdmissionPolicyBindings().Get(ctx, g.policy, metav1.GetOptions{})
		}
		switch {
		case apierrors.IsNotFound(err):
			c.Objects = append(c.Objects, "ValidatingAdmissionPolicy "+g.policy+", or its binding: "+g.without)
		case err != nil:
			return c.unknown(err, "get", "validatingadmissionpolicies and their bindings")
		}
	}
	if len(c.Objects) > 0 {
		c.Result = Failed
		c.Message = fmt.Sprintf("policies that are missing: %d of %d; install them with the chart, or from deploy/", len(c.Objects), len(guards))
	}
	return c
}

// checkWriteGuards looks for the policies that narrow the rights of belay-controller, where it runs.
func (h *health) checkWriteGuards(ctx context.Context, config Config) []Check {
	if !slices.ContainsFunc(h.programs, func(p program) bool { return p.name == kube.FieldManager }) {
		return nil
	}
	c := Check{Category: CategoryControllers, Name: "admission policies", Result: OK, Message: "the rights of belay-controller are narrowed"}
	if c = guarded(ctx, config, c, writeGuards); c.Result != OK {
		c.Hint = "docs/adopt-controller.md#install"
	}
	return []Check{c}
}

// checkFenceGuards looks for the policies that recovery rests on.
func checkFenceGuards(ctx context.Context, config Config) Check {
	c := Check{Name: "admission policies", Result: OK, Message: "statements and the parts of recovery are checked"}
	if c = guarded(ctx, config, c, slices.Concat(fenceGuards, writeGuards)); c.Result != OK {
		c.Hint = recoveryPage + "#install"
	}
	return c
}
