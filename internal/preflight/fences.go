package preflight

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// CategoryRecovery has the checks of recovery, where its API is installed.
const CategoryRecovery = "recovery"

const recoveryPage = "docs/recovery/README.md"

// checkRecovery looks at recovery. Without its API there is nothing to check.
func (h *health) checkRecovery(ctx context.Context, c Config) []Check {
	if !h.recoveryInstalled() {
		if c := h.checkFenceTaints(); c.Result.Fails() { // its taints outlive its API
			c.Category = CategoryRecovery
			return []Check{c}
		}
		return nil
	}
	checks := []Check{h.checkFenceAPI()}
	for _, role := range diagnosis.RecoveryRoles() {
		checks = append(checks, h.checkRole(role))
	}
	checks = append(checks, h.checkSources(), checkFenceGuards(ctx, c), h.checkForceTimer(), h.checkFenceTaints(), h.checkContradicted())
	for i := range checks {
		checks[i].Category = CategoryRecovery
	}
	return checks
}

// recoveryInstalled reports whether the API server serves recovery's API, or whether it does could not be read.
func (h *health) recoveryInstalled() bool {
	return slices.ContainsFunc([]diagnosis.Resource{diagnosis.Fences, diagnosis.FenceSources}, func(r diagnosis.Resource) bool {
		return slices.Contains(h.Whole, r) || slices.ContainsFunc(h.Unread, func(u diagnosis.Unread) bool { return u.Resource == r })
	})
}

// checkFenceAPI looks for both CustomResourceDefinitions.
func (h *health) checkFenceAPI() Check {
	c := Check{Name: "API", Result: OK, Message: "NodeFences and FenceSources are served"}
	for _, r := range []diagnosis.Resource{diagnosis.Fences, diagnosis.FenceSources} {
		if slices.Contains(h.Absent, diagnosis.Ref{Resource: r}) {
			c.Result, c.Hint = Failed, recoveryPage+"#install"
			c.Message = "the CustomResourceDefinition of " + string(r) + " is missing"
			return c
		}
	}
	if u, lacks := h.lacks(diagnosis.Fences, diagnosis.FenceSources); lacks {
		return c.unreadable(u)
	}
	return c
}

// checkRole looks for a process that runs a part of recovery.
func (h *health) checkRole(role string) Check {
	c := Check{Name: role, Result: OK, Message: "a process holds its lease"}
	switch h.RecoveryRuns(role) {
	case decision.Yes:
	case decision.No:
		c.Result, c.Message, c.Hint = Failed, "no process holds its lease: nodes that are lost are not recovered", hint(explain.RecoveryNotRunning)
	case decision.Unknown:
		if u, ok := h.leasesOf(upstreamNamespace); !ok {
			return c.unreadable(u)
		}
		return h.checkEmbeddedActor(c)
	}
	return c
}

// checkEmbeddedActor finds whether the belay-controller that leads runs the actor: its lease does not show it.
func (h *health) checkEmbeddedActor(c Check) Check {
	for _, p := range h.programs {
		words := slices.Concat(p.container.Command, p.container.Args)
		if p.name == kube.FieldManager && slices.ContainsFunc(flagValues(words, "controllers"), func(v string) bool { return strings.Contains(v, "recovery") }) {
			c.Message = "it runs in belay-controller, which holds its lease"
			return c
		}
	}
	c.Result, c.Hint = Warning, hint(explain.RecoveryNotRunning)
	c.Message = "no process holds the lease of its own; whether it runs in belay-controller cannot be read"
	return c
}

// checkSources looks for nodes that could not be fenced if they were lost.
func (h *health) checkSources() Check {
	c := Check{Name: "power switches", Result: OK}
	if u, lacks := h.lacks(diagnosis.Nodes, diagnosis.FenceSources); lacks {
		return c.unreadable(u)
	}
	sources := map[string]*fencingv1.FenceSource{}
	for _, s := range h.FenceSources {
		sources[s.Name] = s
	}
	hide, workers := h.Hide(), 0
	for _, n := range h.Nodes {
		if kube.ControlPlane(n) || kube.FenceOptedOut(n) {
			continue
		}
		workers++
		if why := notReady(sources[n.Name]); why != "" {
			c.Objects = append(c.Objects, "node "+n.Name+": "+hide(why))
		}
	}
	c.Message = fmt.Sprintf("worker nodes whose power switch could be used: %d of %d", workers-len(c.Objects), workers)
	if len(c.Objects) > 0 {
		c.Result, c.Hint = Warning, "docs/recovery/power-switches.md#whether-a-node-could-be-fenced"
	}
	return c
}

// notReady is why a power switch could not be used; empty if it could.
func notReady(s *fencingv1.FenceSource) string {
	if s == nil {
		return "no FenceSource"
	}
	ready := meta.FindStatusCondition(s.Status.Conditions, kube.ConditionFenceReady)
	switch {
	case ready == nil:
		return "its FenceSource was not looked at yet: the fencer may not run"
	case ready.Status == metav1.ConditionTrue:
		return ""
	}
	return ready.Reason + ": " + ready.Message
}

// forceFlag turns off the detach without a proof.
const forceFlag = "disable-force-detach-on-timeout"

// checkForceTimer finds whether the attach/detach controller detaches without a proof once a client deletes pods of a lost node by force.
func (h *health) checkForceTimer() Check {
	c := Check{Name: "force timer", Result: OK, Message: "no attach/detach controller detaches after a timeout alone"}
	forcing := slices.Clone(h.upstream.forcing)
	seen := len(h.upstream.on) + len(h.upstream.off)
	for _, p := range h.programs {
		if p.name != kube.FieldManager || !h.attaches(p) {
			continue
		}
		if seen++; !boolFlag(slices.Concat(p.container.Command, p.container.Args), forceFlag) {
			forcing = append(forcing, "pod "+p.String())
		}
	}
	switch {
	case len(forcing) > 0:
		c.Result, c.Objects, c.Hint = Warning, forcing, recoveryPage+"#limits"
		c.Message = "a volume is detached six minutes after pods of a lost node were deleted by force, without a proof: set --" + forceFlag
	case h.upstreamErr != nil:
		return c.unknown(h.upstreamErr, "list", "pods in namespace kube-system")
	case seen == 0:
		c.Result, c.Hint = Warning, recoveryPage+"#limits"
		c.Message = "the attach/detach controller does not run as a pod that may be read: check that it has --" + forceFlag
	}
	return c
}

// attaches reports whether a belay-controller attaches and detaches.
func (h *health) attaches(p program) bool {
	values := flagValues(slices.Concat(p.container.Command, p.container.Args), "controllers")
	return len(values) == 0 || slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, "attachdetach") })
}

// boolFlag is the value of a flag that is true or false, false without it.
func boolFlag(words []string, flag string) bool {
	value := false
	for _, word := range words {
		name, text, given := strings.Cut(strings.TrimLeft(word, "-"), "=")
		if !strings.HasPrefix(word, "-") || name != flag {
			continue
		}
		parsed, err := strconv.ParseBool(text)
		value = !given || err == nil && parsed
	}
	return value
}

// checkFenceTaints looks for taints of fences that are not there any more.
func (h *health) checkFenceTaints() Check {
	c := Check{Name: "taints", Result: OK, Message: "all taints of recovery belong to a NodeFence"}
	needed := []diagnosis.Resource{diagnosis.Nodes, diagnosis.Fences}
	if slices.Contains(h.Absent, diagnosis.Ref{Resource: diagnosis.Fences}) {
		needed = needed[:1]
	}
	if u, lacks := h.lacks(needed...); lacks {
		return c.unreadable(u)
	}
	for _, n := range h.Nodes {
		for _, taint := range h.FenceTaintsLeft(n) {
			c.Objects = append(c.Objects, fmt.Sprintf("node %s: %s=%s:%s", n.Name, taint.Key, taint.Value, taint.Effect))
		}
	}
	if len(c.Objects) > 0 {
		c.Result, c.Hint = Failed, recoveryPage+"#taints-without-a-nodefence"
		c.Message = fmt.Sprintf("taints of fences that do not exist any more, so that none removes them: %d", len(c.Objects))
	}
	return c
}

// checkContradicted looks for fences whose evidence contradicts itself.
func (h *health) checkContradicted() Check {
	c := Check{Name: "evidence", Result: OK, Message: "no NodeFence is contradicted"}
	if u, lacks := h.lacks(diagnosis.Fences); lacks {
		return c.unreadable(u)
	}
	for i := range h.stuck.Items {
		if f := &h.stuck.Items[i]; contradicted(f) {
			c.Objects = append(c.Objects, fmt.Sprintf("node %s: %s", f.Subject.Name, f.Summary))
		}
	}
	if len(c.Objects) > 0 {
		c.Result, c.Hint = Failed, hint(fencing.Contradicted)
		c.Message = fmt.Sprintf("nodes that were proven off and show a sign of life: %d; kubectl belay evidence node/NAME shows what is known", len(c.Objects))
	}
	return c
}

// contradicted reports whether a finding is about a fence whose evidence is contradicted.
func contradicted(f *diagnosis.Finding) bool {
	return f.Subject.Resource == diagnosis.Nodes && f.Reason == fencing.Contradicted
}

// taintOfFence reports whether the out-of-service taint of a node is that of the fence of the boot that it shows. A node counts as Ready for a
// while after its machine is off.
func (h *health) taintOfFence(n *corev1.Node) bool {
	return slices.ContainsFunc(h.Fences, func(f *fencingv1.NodeFence) bool {
		return f.Spec.NodeName == n.Name && !kube.FenceFinished(f) && f.Spec.BootID == n.Status.NodeInfo.BootID && slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == kube.OutOfServiceTaint && t.Value == kube.FenceTaint(f.Spec.Epoch)
		})
	})
}
