package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
)

// request is what API Priority and Fairness classifies.
type request struct {
	namespace, account    string // of the ServiceAccount
	verb, group, resource string
	in                    string // the namespace of the object, "" for none
}

// lowLevels are the priority levels of workloads: under load, requests wait behind theirs.
var lowLevels = []string{"workload-low", "global-default", "catch-all"}

// checkPriority finds the priority levels of belay-controller's requests. Without the permission to read FlowSchemas there is none, nor
// where belay-controller neither runs, as far as can be seen, nor is about to.
func (h *health) checkPriority(takeOver bool) []Check {
	namespace, account := ownNamespace, kube.FieldManager
	runs := takeOver || !h.read[ownNamespace]
	for _, p := range h.programs {
		if p.name == kube.FieldManager {
			runs, namespace, account = true, p.pod.Namespace, cmp.Or(p.pod.Spec.ServiceAccountName, "default")
		}
	}
	lease := upstreamNamespace
	if l := h.lease(kube.FieldManager); l != nil {
		runs, lease = true, l.Namespace
	}
	if !h.flowsRead || !runs {
		return nil
	}
	requests := []request{
		{namespace, account, "update", coordinationv1.GroupName, "leases", lease},
		{namespace, account, "create", storagev1.GroupName, "volumeattachments", ""},
	}
	c := Check{Category: CategoryPriority, Name: kube.FieldManager, Result: OK}
	var parts []string
	for _, r := range requests {
		schema, level := classify(h.flows, r)
		parts = append(parts, fmt.Sprintf("%s %s: priority level %s by FlowSchema %s", r.verb, r.resource, cmp.Or(level, "unknown"), cmp.Or(schema, "none")))
		if level == "" || slices.Contains(lowLevels, level) {
			c.Result, c.Hint = Warning, "docs/adopt-controller.md#api-priority-and-fairness"
		}
	}
	c.Message = fmt.Sprintf("requests of ServiceAccount %s/%s: %s", namespace, account, strings.Join(parts, "; "))
	return []Check{c}
}

// classify returns the FlowSchema that applies to a request, and its priority level: the one with the lowest precedence of those that
// match, and of equals the first by name (k8s.io/api/flowcontrol/v1).
func classify(flows []flowcontrolv1.FlowSchema, r request) (schema, level string) {
	var found *flowcontrolv1.FlowSchema
	for i := range flows {
		f := &flows[i]
		if !slices.ContainsFunc(f.Spec.Rules, r.matches) {
			continue
		}
		if found == nil || cmp.Or(cmp.Compare(f.Spec.MatchingPrecedence, found.Spec.MatchingPrecedence), strings.Compare(f.Name, found.Name)) < 0 {
			found = f
		}
	}
	if found == nil {
		return "", ""
	}
	return found.Name, found.Spec.PriorityLevelConfiguration.Name
}

func (r request) matches(rule flowcontrolv1.PolicyRulesWithSubjects) bool {
	return slices.ContainsFunc(rule.Subjects, r.isFrom) && slices.ContainsFunc(rule.ResourceRules, func(p flowcontrolv1.ResourcePolicyRule) bool {
		if r.in == "" && !p.ClusterScope || r.in != "" && !has(p.Namespaces, r.in) {
			return false
		}
		return has(p.Verbs, r.verb) && has(p.APIGroups, r.group) && has(p.Resources, r.resource)
	})
}

func (r request) isFrom(s flowcontrolv1.Subject) bool {
	switch {
	case s.ServiceAccount != nil:
		return s.ServiceAccount.Namespace == r.namespace && (s.ServiceAccount.Name == r.account || s.ServiceAccount.Name == "*")
	case s.User != nil:
		return s.User.Name == "*" || s.User.Name == "system:serviceaccount:"+r.namespace+":"+r.account
	case s.Group != nil:
		return has([]string{"system:serviceaccounts", "system:serviceaccounts:" + r.namespace, "system:authenticated"}, s.Group.Name) || s.Group.Name == "*"
	}
	return false
}

func has(allowed []string, word string) bool {
	return slices.Contains(allowed, word) || slices.Contains(allowed, "*")
}
