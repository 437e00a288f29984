package preflight

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// The categories of the checks, in the order of the output.
const (
	CategoryControllers = "attach and detach"
	CategoryVersions    = "versions"
	CategoryPermissions = "your permissions"
	CategoryLeases      = "leases"
	CategoryPriority    = "API priority"
	CategoryDrivers     = "drivers"
	CategoryNodes       = "nodes"
	CategoryVolumes     = "volumes"
	CategoryTakeOver    = "take-over"
)

// ClusterHealth is whether a cluster is healthy for volumes and ready for belay.
type ClusterHealth struct {
	metav1.TypeMeta `json:",inline"`

	// Time is when the objects were read, by the clock of the API server.
	Time time.Time `json:"time"`
	// Result is the worst of the checks.
	Result Result  `json:"result"`
	Checks []Check `json:"checks"`
	// Unread lists what could not be read, so that a check may be unknown.
	Unread []diagnosis.Unread `json:"unread,omitempty"`
}

// health is what the checks look at.
type health struct {
	*diagnosis.Snapshot

	stuck    diagnosis.StuckList
	attached map[string]int // VolumeAttachments by driver
	programs []program
	read     map[string]bool // namespaces of which all pods were read
	flows    []flowcontrolv1.FlowSchema
	// flowsRead is not set without the permission to read them.
	flowsRead   bool
	version     string
	versionErr  error
	upstream    upstreams
	upstreamErr error
	unread      []diagnosis.Unread
	// kubelets are those of the nodes, if they were to be asked, and kubeletsAllowed whether they may be.
	kubelets        []kubelet
	kubeletsAllowed bool
}

// Health checks a cluster: what the snapshot of all objects has, and what it reads in addition. With takeOver it includes the checks of
// Run.
func Health(ctx context.Context, c Config, s *diagnosis.Snapshot, takeOver bool) ClusterHealth {
	h := &health{Snapshot: s, stuck: diagnosis.Stuck(s, "", 0), attached: map[string]int{}, read: map[string]bool{}, unread: slices.Clone(s.Unread)}
	for _, va := range s.Attachments {
		if !kube.NoAttacher(kube.DriverOf(va.Spec.Attacher)) {
			h.attached[va.Spec.Attacher]++
		}
	}
	h.readComponents(ctx, c)
	h.readKubelets(ctx, c)
	checks := []Check{h.checkController()}
	checks = append(checks, h.checkReplicas()...)
	checks = append(checks, h.checkWriteGuards(ctx, c)...)
	checks = append(checks, h.checkDeletedNodes()...)
	checks = append(checks, h.checkServer(), h.checkPrograms(), h.checkPermissions())
	checks = append(checks, h.checkLeases()...)
	checks = append(checks, h.checkPriority(takeOver)...)
	checks = append(checks, h.checkDrivers()...)
	checks = append(checks, h.checkNodeIDs())
	checks = append(checks, h.checkNodes()...)
	checks = append(checks, h.checkIdentities()...)
	checks = append(checks, h.checkKubelets(c)...)
	checks = append(checks, h.checkVolumes())
	checks = append(checks, h.checkRecovery(ctx, c)...)
	if takeOver {
		checks = append(checks, Run(ctx, c).Checks...)
	}
	report := ClusterHealth{
		TypeMeta: metav1.TypeMeta{APIVersion: diagnosis.APIVersion, Kind: "ClusterHealth"}, Time: s.Now, Result: OK, Checks: checks, Unread: h.unread,
	}
	for i := range checks {
		check := &checks[i]
		check.Hint = pageCommand(check.Hint)
		if check.Result.severity() > report.Result.severity() {
			report.Result = check.Result
		}
	}
	return report
}

// attacherLease is the name of the lease of a driver's attacher.
func attacherLease(driver string) string {
	return kube.SanitizeDriverName(kube.AttacherLease + driver)
}

// hint is the command that prints what to do about a Reason.
func hint(reason decision.Reason) string { return explain.RunbookCommand(reason) }

// pageCommand is the command that prints a page of docs, for a hint that names one: who runs the plugin has no copy of the repository.
func pageCommand(hint string) string {
	page, ok := strings.CutPrefix(hint, "docs/")
	if !ok {
		return hint
	}
	return "kubectl belay runbook " + strings.Replace(page, ".md", "", 1)
}

// lacks returns the first of the resources that was not read whole.
func (h *health) lacks(resources ...diagnosis.Resource) (diagnosis.Unread, bool) {
	for _, r := range resources {
		if slices.Contains(h.Whole, r) {
			continue
		}
		for _, u := range h.Unread {
			if u.Resource == r {
				return u, true
			}
		}
		return diagnosis.Unread{Ref: diagnosis.Ref{Resource: r}, Verb: "list", Message: "only some of them were asked for"}, true
	}
	return diagnosis.Unread{}, false
}

// unreadable is the result of a check that lacks something.
func (c Check) unreadable(u diagnosis.Unread) Check {
	c.Result, c.Message = Unknown, fmt.Sprintf("could not %s: %s", u.Rule(), u.Message)
	if u.Forbidden {
		c.Message = "needs the permission to " + u.Rule()
	}
	return c
}

// lease returns the lease of the name that is held, else the one that was renewed last.
func (h *health) lease(name string) *coordinationv1.Lease {
	var found *coordinationv1.Lease
	for _, l := range h.Leases {
		if l.Name != name || l.Namespace == corev1.NamespaceNodeLease {
			continue
		}
		if found == nil || h.LeaseHeld(l) && !h.LeaseHeld(found) || h.LeaseHeld(l) == h.LeaseHeld(found) && renewed(found).Before(renewed(l)) {
			found = l
		}
	}
	return found
}

func renewed(l *coordinationv1.Lease) time.Time {
	if l.Spec.RenewTime == nil {
		return time.Time{}
	}
	return l.Spec.RenewTime.Time
}

// leasesOf reports whether the leases that count are known: of a namespace, or for "" all.
func (h *health) leasesOf(namespace string) (diagnosis.Unread, bool) {
	all := slices.IndexFunc(h.unread, func(u diagnosis.Unread) bool { return u.HidesLeaders() && u.Namespace == "" })
	if all < 0 {
		return diagnosis.Unread{}, true
	}
	if namespace == upstreamNamespace && !slices.ContainsFunc(h.unread, func(u diagnosis.Unread) bool {
		return u.Resource == diagnosis.Leases && u.Namespace == namespace
	}) {
		return diagnosis.Unread{}, true
	}
	return h.unread[all], false
}

func (h *health) held(name string) bool {
	l := h.lease(name)
	return l != nil && h.LeaseHeld(l)
}

// checkController finds which controller attaches and detaches: exactly one has to.
func (h *health) checkController() Check {
	c := Check{Category: CategoryControllers, Name: "controller", Result: OK}
	own, upstream := h.held(kube.FieldManager), h.held(upstreamProgram)
	switch on, off := len(h.upstream.on) > 0, len(h.upstream.off) > 0; {
	case own && on:
		c.Result, c.Objects, c.Hint = Failed, h.upstream.on, "docs/adopt-controller.md#if-both-controllers-run"
		c.Message = "belay-controller leads, and the attach/detach controller of kube-controller-manager is enabled: disable one of the two"
	case h.upstreamErr != nil:
		c = c.unknown(h.upstreamErr, "list", "pods in namespace kube-system")
	case own && h.waitsForController():
		c.Result, c.Hint = Failed, hint(explain.NoAttachController)
		c.Message = "belay-controller leads, and volumes that nothing blocks are neither attached nor detached; its log says why"
	case own && upstream && !off:
		c.Result, c.Hint = Warning, "docs/migrate.md#disable-it-by-distribution"
		c.Message = "belay-controller leads; kube-controller-manager does not run as a pod in kube-system, so its flags cannot be read: check that its attach/detach controller is disabled"
	case own:
		c.Message = "belay-controller attaches and detaches"
	default:
		return h.checkUpstreamLeads(c)
	}
	return c
}

// checkUpstreamLeads finds whether kube-controller-manager attaches and detaches where belay-controller does not.
func (h *health) checkUpstreamLeads(c Check) Check {
	upstream := h.held(upstreamProgram)
	system, systemRead := h.leasesOf(upstreamNamespace)
	all, allRead := h.leasesOf("")
	switch on, off := len(h.upstream.on) > 0, len(h.upstream.off) > 0; {
	case on && off:
		c.Result, c.Objects, c.Hint = Warning, h.upstream.on, "docs/migrate.md#several-control-plane-nodes"
		c.Message = fmt.Sprintf("the attach/detach controller is enabled in %d of %d pods of kube-controller-manager: volumes are attached only while one of these leads",
			len(h.upstream.on), len(h.upstream.on)+len(h.upstream.off))
	case on && (upstream || !systemRead):
		c.Message, c.Objects = "kube-controller-manager attaches and detaches", h.upstream.on
	case !systemRead:
		c = c.unreadable(system)
	case on:
		c.Result, c.Objects, c.Hint = Warning, h.upstream.on, hint(explain.NoAttachController)
		c.Message = "the attach/detach controller of kube-controller-manager is enabled, but none holds the lease kube-system/kube-controller-manager"
	case !allRead: // belay-controller may have its lease elsewhere
		c = c.unreadable(all)
	case upstream && !off:
		c.Result, c.Hint = Warning, "docs/migrate.md#disable-it-by-distribution"
		c.Message = "kube-controller-manager leads; it does not run as a pod in kube-system, so it cannot be read whether its attach/detach controller is enabled"
	case off || h.waitsForController():
		c.Result, c.Objects, c.Hint = Failed, h.upstream.off, hint(explain.NoAttachController)
		c.Message = "no attach/detach controller runs: volumes are neither attached nor detached"
	default:
		c.Result, c.Hint = Warning, hint(explain.NoAttachController)
		c.Message = "no attach/detach controller was found: none holds its lease, and no kube-controller-manager runs as a pod in kube-system; one without leader election cannot be seen"
	}
	return c
}

// waitsForController reports whether something is blocked because no controller acts.
func (h *health) waitsForController() bool {
	return slices.ContainsFunc(h.stuck.Items, func(f diagnosis.Finding) bool {
		return f.Reason == explain.NoAttachController || f.Reason == explain.NoDetachController
	})
}

// checkReplicas looks at the pods and leases of belay-controller, if there are any.
func (h *health) checkReplicas() []Check {
	c := Check{Category: CategoryControllers, Name: "belay-controller", Result: OK}
	var leases []string
	for _, l := range h.Leases {
		if l.Name == kube.FieldManager && h.LeaseHeld(l) {
			leases = append(leases, "lease "+h.leaseName(l))
		}
	}
	var unready []string
	for _, p := range h.programs {
		if p.name != kube.FieldManager {
			continue
		}
		c.Objects = append(c.Objects, "pod "+p.String())
		if !podReady(p.pod) {
			unready = append(unready, "pod "+p.String())
		}
	}
	switch {
	case len(unready) > 0 && len(leases) <= 1:
		c.Result, c.Hint = Warning, "docs/adopt-controller.md#install"
		c.Message = fmt.Sprintf("replicas that are not ready: %d of %d; kubectl describe and kubectl logs of the pod say why", len(unready), len(c.Objects))
		c.Objects = unready
	case len(leases) > 1:
		c.Result, c.Objects, c.Hint = Failed, leases, "docs/adopt-controller.md#two-belay-controllers-with-different-leases"
		c.Message = fmt.Sprintf("leases that are held: %d; each has a leader that writes", len(leases))
	case len(c.Objects) == 0:
		return nil
	case len(c.Objects) == 1:
		c.Result, c.Message, c.Hint = Warning, "one replica runs: none is ready to take over", "docs/adopt-controller.md#install"
	default:
		c.Message = fmt.Sprintf("%d replicas run", len(c.Objects))
	}
	return []Check{c}
}

// podReady reports whether the kubelet calls a pod ready.
func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func (h *health) checkServer() Check {
	c := Check{Category: CategoryVersions, Name: "API server", Result: OK, Message: h.version}
	if h.versionErr != nil {
		c = c.unknown(h.versionErr, "get", "/version")
	}
	return c
}

// checkPrograms compares the images of belay's programs, as far as their pods are visible.
func (h *health) checkPrograms() Check {
	c := Check{Category: CategoryVersions, Name: "belay", Result: OK, Message: "no program of belay was found in the namespaces that were read"}
	versions := map[string]bool{}
	for _, p := range h.programs {
		if strings.HasPrefix(p.name, "belay-") {
			versions[p.version()] = true
			c.Objects = append(c.Objects, fmt.Sprintf("pod %s: %s", p, p.container.Image))
		}
	}
	switch {
	case len(versions) > 1:
		c.Result, c.Message, c.Hint = Warning, fmt.Sprintf("versions that run: %d", len(versions)), "docs/compatibility.md"
	case len(c.Objects) > 0:
		c.Message = fmt.Sprintf("programs: %d, of one version", len(c.Objects))
	case len(h.read) == 0:
		c.Result, c.Message = Unknown, "needs the permission to list pods in namespace belay-system"
	}
	return c
}

// checkPermissions lists what the reader may not read.
func (h *health) checkPermissions() Check {
	c := Check{Category: CategoryPermissions, Name: "read", Result: OK, Message: "all that is checked may be read"}
	var failed []string
	for _, u := range h.unread {
		if u.Forbidden {
			c.Objects = append(c.Objects, u.Rule())
		} else {
			failed = append(failed, u.Rule()+": "+u.Message)
		}
	}
	c.Objects = slices.Compact(slices.Sorted(slices.Values(c.Objects)))
	switch {
	case len(failed) > 0:
		c.Result, c.Message, c.Objects = Unknown, "some objects could not be read", append(failed, c.Objects...)
	case len(c.Objects) > 0:
		c.Result, c.Message, c.Hint = Warning, "you lack permissions, so some checks are unknown", "docs/kubectl-belay.md#permissions"
	}
	return c
}

// leaseName is the lease with its namespace, if that may be named.
func (h *health) leaseName(l *coordinationv1.Lease) string {
	if h.mayName(l.Namespace) {
		return l.Namespace + "/" + l.Name
	}
	return l.Name
}

// mayName reports whether the namespace may appear in the output. The leases of those of the control plane have been read.
func (h *health) mayName(namespace string) bool {
	return namespace == upstreamNamespace || h.MayName(namespace)
}

// checkLeases looks at who leads.
func (h *health) checkLeases() []Check {
	var checks []Check
	if u, ok := h.leasesOf(""); !ok {
		checks = append(checks, Check{Category: CategoryLeases, Name: "leases"}.unreadable(u))
	}
	for _, l := range slices.SortedFunc(slices.Values(h.Leases), func(a, b *coordinationv1.Lease) int {
		return strings.Compare(a.Name+" "+a.Namespace, b.Name+" "+b.Namespace)
	}) {
		if l.Namespace == corev1.NamespaceNodeLease || !kube.LeadsVolumes(l.Name) {
			continue
		}
		checks = append(checks, h.checkLease(l))
	}
	return checks
}

func (h *health) checkLease(l *coordinationv1.Lease) Check {
	c := Check{Category: CategoryLeases, Name: h.leaseName(l), Result: OK}
	age := "never renewed"
	if at := renewed(l); !at.IsZero() {
		age = "renewed " + duration.HumanDuration(max(h.Now.Sub(at), 0)) + " ago"
	}
	holder := ""
	if id := l.Spec.HolderIdentity; id != nil && *id != "" && h.mayName(l.Namespace) {
		holder = " by " + *id
	}
	if h.LeaseHeld(l) {
		if l.Spec.AcquireTime != nil {
			holder += " since " + l.Spec.AcquireTime.UTC().Format(time.RFC3339)
		}
		c.Message = fmt.Sprintf("held%s, %s", holder, age)
		return c
	}
	c.Result, c.Message, c.Hint = Warning, "not held, "+age, hint(explain.AttacherNotRunning)
	if !strings.HasPrefix(l.Name, kube.AttacherLease) {
		c.Hint = hint(explain.NoAttachController) // which controller is to run, the first check judges
		return c
	}
	for driver, n := range h.attached {
		if n > 0 && attacherLease(driver) == l.Name && h.lease(l.Name) == l {
			c.Result = Failed
		}
	}
	return c
}

// checkVolumes counts what kubectl belay stuck -A lists. The cluster is broken if something of it is attached, or is to be: a claim without a
// volume may be its user's mistake.
func (h *health) checkVolumes() Check {
	c := Check{Category: CategoryVolumes, Name: "blocked", Result: OK}
	broken := false
	var found []diagnosis.Finding
	for i := range h.stuck.Items {
		f := &h.stuck.Items[i]
		if contradicted(f) {
			continue // checkContradicted shows it
		}
		broken, found = broken || hasAttachment(f), append(found, *f)
		name := f.Subject.String()
		if f.Subject.Namespace != "" {
			name += " in namespace " + f.Subject.Namespace
		}
		c.Objects = append(c.Objects, fmt.Sprintf("%s: %s (%s)", name, f.Summary, f.Reason))
		switch c.Hint {
		case "", hint(f.Reason):
			c.Hint = hint(f.Reason)
		default:
			c.Hint = "kubectl belay runbook"
		}
	}
	u, lacks := h.lacks(diagnosis.Attachments, diagnosis.Pods, diagnosis.Claims, diagnosis.Volumes, diagnosis.Nodes)
	switch {
	case lacks && !broken:
		return c.unreadable(u)
	case len(c.Objects) > 0:
		c.Result, c.Message = Warning, kindsOf(found)+"; kubectl belay stuck -A lists them"
		if broken {
			c.Result = Failed
		}
	default:
		c.Message = fmt.Sprintf("nothing; there are %d VolumeAttachments", len(h.Attachments))
	}
	return c
}

// hasAttachment reports whether a finding is about a VolumeAttachment, or what should have one.
func hasAttachment(f *diagnosis.Finding) bool {
	has := func(h diagnosis.Holder) bool { return h.Attachment != "" }
	return f.Subject.Resource == diagnosis.Attachments || f.Reason == explain.UsedWithoutAttachment || slices.ContainsFunc(f.Holders, has)
}

// failed records what could not be read.
func (h *health) failed(u diagnosis.Unread, err error) {
	u.Verb, u.Forbidden, u.Message = "list", apierrors.IsForbidden(err), err.Error()
	if u.Forbidden {
		u.Message = "forbidden"
	}
	if !slices.Contains(h.unread, u) {
		h.unread = append(h.unread, u)
	}
}

// kindsOf counts findings by the kinds of their subjects: "50 pods, 1 VolumeAttachment".
func kindsOf(found []diagnosis.Finding) string {
	of := map[diagnosis.Resource]int{}
	for i := range found {
		of[found[i].Subject.Resource]++
	}
	words := []struct {
		resource  diagnosis.Resource
		one, many string
	}{
		{diagnosis.Pods, "pod", "pods"}, {diagnosis.Claims, "claim", "claims"}, {diagnosis.Volumes, "volume", "volumes"},
		{diagnosis.Attachments, "VolumeAttachment", "VolumeAttachments"}, {diagnosis.Nodes, "node", "nodes"},
	}
	var kinds []string
	for _, w := range words {
		switch n := of[w.resource]; {
		case n == 1:
			kinds = append(kinds, "1 "+w.one)
		case n > 1:
			kinds = append(kinds, fmt.Sprintf("%d %s", n, w.many))
		}
		delete(of, w.resource)
	}
	for _, resource := range slices.Sorted(maps.Keys(of)) {
		kinds = append(kinds, fmt.Sprintf("%d %s", of[resource], resource))
	}
	return strings.Join(kinds, ", ")
}
