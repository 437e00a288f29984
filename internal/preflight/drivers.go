package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// checkDrivers looks at each CSIDriver, and at the drivers that have VolumeAttachments without one.
func (h *health) checkDrivers() []Check {
	drivers := map[string]*storagev1.CSIDriver{}
	for driver := range h.attached {
		drivers[driver] = nil
	}
	for _, d := range h.Drivers {
		drivers[d.Name] = d
	}
	var checks []Check
	if u, lacks := h.lacks(diagnosis.Drivers); lacks {
		checks = append(checks, Check{Category: CategoryDrivers, Name: "CSIDrivers"}.unreadable(u))
	}
	waiting := h.claimsByProvisioner()
	for name, d := range drivers {
		checks = append(checks, h.checkDriver(name, d).withClaims(waiting[name], "; its provisioner does not run, and claims wait for it: %d"))
		delete(waiting, name)
	}
	for name, claims := range waiting {
		checks = append(checks, Check{Category: CategoryDrivers, Name: name, Result: OK}.withClaims(claims, "this provisioner of a StorageClass is not installed, and claims wait for it: %d"))
	}
	slices.SortFunc(checks, func(a, b Check) int { return strings.Compare(a.Name, b.Name) })
	return checks
}

// claimsByProvisioner are the claims that wait for a provisioner which does not run, as kubectl belay explain says.
func (h *health) claimsByProvisioner() map[string][]string {
	waiting := map[string][]string{}
	for i := range h.stuck.Items {
		f := &h.stuck.Items[i]
		if f.Reason != explain.ProvisionerNotRunning || f.Volume == nil {
			continue
		}
		for _, claim := range h.Claims {
			if claim.Namespace == f.Volume.Namespace && claim.Name == f.Volume.Claim {
				provisioner, object := claim.Annotations[diagnosis.ProvisionerAnnotation], "claim "+claim.Name+" in namespace "+claim.Namespace
				if !slices.Contains(waiting[provisioner], object) {
					waiting[provisioner] = append(waiting[provisioner], object)
				}
			}
		}
	}
	return waiting
}

// withClaims adds the claims that wait for a provisioner: a claim without a volume may be its user's mistake, and no more than a warning.
func (c Check) withClaims(claims []string, text string) Check {
	if len(claims) == 0 {
		return c
	}
	slices.Sort(claims)
	c.Result, c.Hint = warns(c.Result), cmp.Or(c.Hint, hint(explain.ProvisionerNotRunning))
	c.Message += fmt.Sprintf(text, len(claims))
	c.Objects = append(c.Objects, claims...)
	return c
}

// waitsForDriver are the nodes on which pods wait for a driver that has not registered there, as kubectl belay explain says.
func (h *health) waitsForDriver(name string) (nodes []string) {
	for i := range h.stuck.Items {
		f := &h.stuck.Items[i]
		if f.Reason == explain.DriverNotOnNode && f.Volume != nil && f.Volume.Driver == name && f.Volume.WantedOn != "" {
			nodes = append(nodes, "node "+f.Volume.WantedOn)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// checkDriver says which attacher a driver has and on how many nodes it is registered. A node that has its volumes needs it.
func (h *health) checkDriver(name string, d *storagev1.CSIDriver) Check {
	c := Check{Category: CategoryDrivers, Name: name, Result: OK}
	registered := map[string]bool{}
	for _, n := range h.CSINodes {
		if slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == name }) {
			registered[n.Name] = true
		}
	}
	var missing []string
	for _, va := range h.Attachments {
		if va.Spec.Attacher == name && !registered[va.Spec.NodeName] {
			missing = append(missing, "node "+va.Spec.NodeName)
		}
	}
	c.Message = h.attacher(&c, name, d)
	if u, lacks := h.lacks(diagnosis.CSINodes, diagnosis.Nodes); lacks {
		c.Result = Unknown
		c.Message += "; on how many nodes it is registered is unknown: " + c.unreadable(u).Message
		return c
	}
	c.Message += fmt.Sprintf("; registered on %d of %d nodes", len(registered), len(h.Nodes))
	waits := h.waitsForDriver(name)
	switch slices.Sort(missing); {
	case len(missing) > 0:
		c.Result, c.Objects, c.Hint = Failed, slices.Compact(missing), hint(explain.DriverNotOnNode)
		c.Message += ", and not on all that have its volumes"
	case len(waits) > 0:
		c.Result, c.Objects, c.Hint = Failed, waits, hint(explain.DriverNotOnNode)
		c.Message += fmt.Sprintf(", and pods wait for it to register on their node: %d", len(waits))
	case h.NeverAttaches(name):
		c.Result, c.Hint = warns(c.Result), hint(explain.CSIDriverMissing)
		c.Message += "; there is no CSIDriver object of this name, and no attacher has worked on its VolumeAttachments"
	case d == nil && slices.Contains(h.Whole, diagnosis.Drivers):
		c.Result, c.Hint = warns(c.Result), cmp.Or(c.Hint, hint(explain.DriverRemoved))
		c.Message += "; there is no CSIDriver object of this name"
	case len(registered) == 0 && len(h.Nodes) > 0:
		c.Result, c.Hint = warns(c.Result), cmp.Or(c.Hint, hint(explain.DriverNotOnNode))
	}
	return c
}

// warns is the result of a check with a warning more.
func warns(r Result) Result {
	if Warning.severity() > r.severity() {
		return Warning
	}
	return r
}

// attacher describes the attacher of a driver, and lowers the result of the check.
func (h *health) attacher(c *Check, name string, d *storagev1.CSIDriver) string {
	if !kube.AttachRequired(d) {
		return "needs no attach"
	}
	l := h.lease(attacherLease(name))
	if l == nil {
		if u, all := h.leasesOf(""); !all {
			c.Result = Unknown
			return "its attacher is unknown: " + c.unreadable(u).Message
		}
		c.Result, c.Hint = Warning, hint(explain.AttacherNotRunning)
		if slices.ContainsFunc(h.OtherLeases, func(l *coordinationv1.Lease) bool { return l.Name == attacherLease(name) }) {
			return "its attacher has no lease that counts, only one in a namespace where no ServiceAccount may write VolumeAttachments"
		}
		return "its attacher has no lease: it runs without --leader-election, or not at all"
	}
	if !h.LeaseHeld(l) {
		c.Result, c.Hint = Warning, hint(explain.AttacherNotRunning)
		if h.attached[name] > 0 { // as checkLease
			c.Result = Failed
		}
		return "no attacher holds its lease"
	}
	if !h.read[l.Namespace] {
		c.Result = Unknown
		if h.mayName(l.Namespace) {
			return "an attacher holds its lease; its image and flags are unknown: needs the permission to list pods in namespace " + l.Namespace
		}
		return "an attacher holds its lease; its image and flags are unknown: needs the permission to list pods in its namespace"
	}
	holder := ""
	if id := l.Spec.HolderIdentity; id != nil {
		holder = *id
	}
	for _, p := range h.programs {
		if p.isAttacher() && p.pod.Namespace == l.Namespace && p.leads(holder) {
			return fmt.Sprintf("%s, image %s, pod %s: %s", p.name, p.container.Image, p, p.flags())
		}
	}
	return "an attacher holds its lease; it is no pod in namespace " + l.Namespace + ", so its image and flags cannot be read"
}

// nodeCheck is a check that looks for nodes.
type nodeCheck struct {
	name   string
	found  func(*corev1.Node) bool
	result Result
	hint   string
	// says what is wrong with the number of nodes, and what is right.
	wrong, right string
}

// noTaint says that no Ready node has the out-of-service taint without a fence that explains it.
func (h *health) noTaint() string {
	fenced := 0
	for _, n := range h.Nodes {
		if kube.Ready(n) && kube.OutOfService(n) && h.taintOfFence(n) {
			fenced++
		}
	}
	if fenced == 0 {
		return "no Ready node has it"
	}
	return fmt.Sprintf("no Ready node has it but those that recovery is fencing, which count as Ready until their silence is noticed: %d", fenced)
}

// checkNodes looks for nodes whose state stops volumes.
func (h *health) checkNodes() []Check {
	holds := map[string]bool{}
	for _, va := range h.Attachments {
		holds[va.Spec.NodeName] = true
	}
	checks := []nodeCheck{
		{
			"out-of-service taint", func(n *corev1.Node) bool { return kube.Ready(n) && kube.OutOfService(n) && !h.taintOfFence(n) }, Failed, hint(attachment.OutOfServiceNodeReady),
			"Ready nodes that still have the taint, so that volumes are detached from them by force: %d", h.noTaint(),
		},
		{
			"heartbeat", func(n *corev1.Node) bool { return holds[n.Name] && h.Silent(n) }, Warning, hint(explain.NodeSilent),
			"nodes with volumes that still count as Ready and do not renew their leases: %d", "all Ready nodes with volumes renew their leases",
		},
		{
			"Ready", func(n *corev1.Node) bool { return !kube.Ready(n) && holds[n.Name] }, Warning, hint(explain.NodeNotReady),
			"nodes with volumes that are not Ready: %d", "all nodes with volumes are Ready",
		},
		{
			"managed", func(n *corev1.Node) bool { return n.Annotations[kube.ManagedAttachAnnotation] == "" }, Warning, hint(attachment.NodeNotManaged),
			"nodes that attach by themselves (kubelet's enableControllerAttachDetach is off), or whose kubelet has not started yet: %d", "all nodes leave attach and detach to the controller",
		},
	}
	var results []Check
	u, lacks := h.lacks(diagnosis.Nodes)
	held := h.HeldBack()
	for _, check := range checks {
		c := Check{Category: CategoryNodes, Name: check.name, Result: OK, Message: check.right}
		only := []decision.Reason{}
		for _, n := range h.Nodes {
			if !check.found(n) {
				continue
			}
			text, why := "node "+n.Name, held[n.Name]
			if why != "" {
				text += ": recovery does not fence it: " + explain.NotFencedBecause(why) + " (" + string(why) + ")"
			}
			c.Objects, only = append(c.Objects, text), append(only, why)
		}
		if only = slices.Compact(only); len(only) == 1 && only[0] != "" {
			check.hint = hint(only[0]) // as evidence and explain say
		}
		switch {
		case len(c.Objects) > 0:
			c.Result, c.Message, c.Hint = check.result, fmt.Sprintf(check.wrong, len(c.Objects)), check.hint
		case lacks:
			c = c.unreadable(u)
		}
		results = append(results, c)
	}
	return results
}
