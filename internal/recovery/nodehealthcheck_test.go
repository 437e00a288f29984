package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/wait"
)

// nodeLeases is the namespace of medik8s' leases (medik8s/common v1.17.0 pkg/lease/manager.go:27).
const nodeLeases = "medik8s-leases"

// nhc plays the moves of node-healthcheck-operator v0.12.0, with unstructured objects and the rights that it gets by aggregation. Lines are those of that tag;
// controller is internal/controller/nodehealthcheck_controller.go, manager internal/controller/resources/manager.go.
type nhc struct {
	*site

	client client.Client // with the rights of NHC
	name   string
	uid    types.UID
}

func newNHC(s *site, name string) *nhc {
	s.Helper()
	cluster.Apply(s, medik8s+"node-healthcheck.yaml")
	s.bind("node-healthcheck-controller-manager", "belay-ext-remediation") // NHC's own role selects it by the label: rbac/aggregation.go:16
	c, err := client.New(cluster.User(s, "node-healthcheck-controller-manager"), client.Options{Scheme: scheme})
	must(s, err)
	return &nhc{site: s, client: c, name: name, uid: types.UID("uid-of-" + name)}
}

// template is what an administrator creates.
func (s *site) template(name string, annotations map[string]string) *unstructured.Unstructured {
	s.Helper()
	t := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "fencing.belay.dev/v1alpha1", "kind": "BelayRemediationTemplate",
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{}}},
	}}
	t.SetName(name)
	t.SetNamespace("default")
	t.SetAnnotations(annotations)
	must(s, s.client.Create(s.Context(), t))
	return t
}

// remediates is NHC's move for an unhealthy node: the lease, then the remediation (controller:530-620).
func (n *nhc) remediates(node, template string) *unstructured.Unstructured {
	n.Helper()
	read := &unstructured.Unstructured{}
	read.SetAPIVersion("fencing.belay.dev/v1alpha1")
	read.SetKind("BelayRemediationTemplate")
	must(n, n.client.Get(n.Context(), client.ObjectKey{Namespace: "default", Name: template}, read)) // templates.go:97
	_, found, err := unstructured.NestedMap(read.Object, "spec", "template")                         // templates.go:102
	if !found || err != nil {
		n.Fatalf("NHC finds no spec.template: %v", err)
	}
	spec, _, _ := unstructured.NestedMap(read.Object, "spec", "template", "spec") // manager:135
	cr := &unstructured.Unstructured{}
	cr.SetAPIVersion(read.GetAPIVersion())
	cr.SetKind(strings.TrimSuffix(read.GetKind(), "Template")) // manager:184
	must(n, unstructured.SetNestedField(cr.Object, spec, "spec"))
	cr.SetNamespace(read.GetNamespace())
	if _, several := read.GetAnnotations()["remediation.medik8s.io/multiple-templates-support"]; several { // manager:140
		cr.SetGenerateName(node + "-")
	} else {
		cr.SetName(node)
	}
	cr.SetAnnotations(map[string]string{kube.NodeNameAnnotation: node, "remediation.medik8s.io/template-name": template})                              // manager:145
	cr.SetLabels(map[string]string{"app.kubernetes.io/part-of": "node-healthcheck-controller"})                                                        // manager:157
	cr.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "remediation.medik8s.io/v1alpha1", Kind: "NodeHealthCheck", Name: n.name, UID: n.uid}}) // manager:516
	must(n, n.lease(node, "NodeHealthCheck-"+n.name, 6*time.Minute))                                                                                   // manager:213, lease.go:68, controller:154
	must(n, n.client.Create(n.Context(), cr))                                                                                                          // manager:230
	return cr
}

// lease is RequestLease of medik8s/common v1.17.0 pkg/lease/manager.go:151-219: it fails while another holder has it.
func (s *site) lease(node, holder string, duration time.Duration) error {
	s.Helper()
	now := time.Now()
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: nodeLeases, Name: "node-" + node}} // manager.go:311
	err := s.client.Get(s.Context(), client.ObjectKeyFromObject(l), l)
	must(s, client.IgnoreNotFound(err))
	if by := l.Spec.HolderIdentity; err == nil && by != nil && *by != holder && // isValidLease, manager.go:278
		!l.Spec.RenewTime.Add(time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second).Before(now) && !l.Spec.RenewTime.After(now) {
		return fmt.Errorf("can't update or invalidate the lease because it is held by different owner: %s", *by)
	}
	at, seconds := metav1.NewMicroTime(now), int32(duration.Seconds())
	l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &holder, AcquireTime: &at, RenewTime: &at, LeaseDurationSeconds: &seconds}
	if apierrors.IsNotFound(err) {
		return s.client.Create(s.Context(), l)
	}
	return s.client.Update(s.Context(), l)
}

// holder is who has the lease of a node; empty if there is none.
func (s *site) holder(node string) string {
	s.Helper()
	l := &coordinationv1.Lease{}
	err := s.client.Get(s.Context(), client.ObjectKey{Namespace: nodeLeases, Name: "node-" + node}, l)
	must(s, client.IgnoreNotFound(err))
	if err != nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// read lists the remediations, as NHC always does, and returns this one; nil if it is gone (manager:269).
func (n *nhc) read(cr *unstructured.Unstructured) *unstructured.Unstructured {
	n.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(cr.GroupVersionKind())
	must(n, n.client.List(n.Context(), list))
	for i := range list.Items {
		if list.Items[i].GetUID() == cr.GetUID() {
			return &list.Items[i]
		}
	}
	return nil
}

// condition is how NHC reads one (controller:877-895).
func (n *nhc) condition(cr *unstructured.Unstructured, name string) (status, reason string) {
	n.Helper()
	now := n.read(cr)
	if now == nil {
		return "", ""
	}
	conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
	for _, c := range conditions {
		if c := c.(map[string]any); c["type"] == name {
			return c["status"].(string), c["reason"].(string)
		}
	}
	return "", ""
}

// until waits for a condition, and for its reason if one is given.
func (n *nhc) until(cr *unstructured.Unstructured, name, status, reason string) {
	n.Helper()
	wait.Until(n, name+" is "+status+" "+reason, func() bool {
		s, r := n.condition(cr, name)
		return s == status && (reason == "" || r == reason)
	})
}

// timesOut is NHC's move at the timeout of a step, or at once if Succeeded is False (controller:655-681).
func (n *nhc) timesOut(cr *unstructured.Unstructured) {
	n.Helper()
	wait.Until(n, "the annotation is stored", func() bool {
		now := n.read(cr)
		annotations := now.GetAnnotations()
		annotations[kube.TimedOutAnnotation] = time.Now().Format(time.RFC3339) // controller:689
		now.SetAnnotations(annotations)
		err := n.client.Update(n.Context(), now) // manager:265
		if !apierrors.IsConflict(err) {
			must(n, err)
		}
		return err == nil
	})
}

// deletes is NHC's move for a healthy node (manager:321), and for one whose Node is gone (controller:466).
func (n *nhc) deletes(cr *unstructured.Unstructured) {
	n.Helper()
	must(n, n.client.Delete(n.Context(), n.read(cr))) // manager:257
}

// cleansUp gives the lease back once no remediation is left (manager:336-343, 456).
func (n *nhc) cleansUp(cr *unstructured.Unstructured, node string) {
	n.Helper()
	wait.Until(n, "the remediation is gone", func() bool { return n.read(cr) == nil })
	must(n, client.IgnoreNotFound(n.site.client.Delete(n.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: nodeLeases, Name: "node-" + node}})))
}

func withLeases(o *Options) { o.NodeLeases = nodeLeases }

// says returns the message of an event about a remediation.
func (n *nhc) says(cr *unstructured.Unstructured, reason string) (message string) {
	n.Helper()
	wait.Until(n, "the event "+reason, func() bool {
		events := &corev1.EventList{}
		must(n, n.site.client.List(n.Context(), events))
		i := slices.IndexFunc(events.Items, func(e corev1.Event) bool { return e.InvolvedObject.UID == cr.GetUID() && e.Reason == reason })
		if i >= 0 {
			message = events.Items[i].Message
		}
		return i >= 0
	})
	return message
}

// settles has the time pass for which a command may be carried out, and that a fence waits after its taint was removed.
func (m *machine) settles() {
	m.Helper()
	wait.Until(m, "no command is waited for", func() bool {
		f := m.fence()
		for i := range f.Status.Intents {
			f.Status.Intents[i].NotAfter = metav1.NewMicroTime(time.Now().Add(-time.Second))
		}
		err := m.client.Status().Update(m.Context(), f)
		if !apierrors.IsConflict(err) {
			must(m, err)
		}
		return err == nil
	})
	wait.Until(m, "the taint was removed", func() bool { f := m.fence(); return f != nil && f.Status.Untainted != nil })
	patch := fmt.Sprintf(`{"status":{"untainted":%q}}`, time.Now().Add(-fencing.SettleFor).UTC().Format(time.RFC3339))
	must(m, m.client.Status().Patch(m.Context(), m.fence(), client.RawPatch(types.MergePatchType, []byte(patch))))
}

// TestNodeHealthCheck: a dead node is remediated from the first move of NHC to the last. Its name is in an annotation, Succeeded is True once nothing of the boot
// is left and not before, and the remediation goes soon after the node was released.
func TestNodeHealthCheck(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	m.source()
	s.run(withLeases)
	m.bound()
	s.template("belay", map[string]string{"remediation.medik8s.io/multiple-templates-support": "true"})
	n := newNHC(s, "workers")
	m.mu.Lock()
	m.failing = errors.New("the BMC does not answer") // the volumes cannot move yet
	m.mu.Unlock()
	m.report(corev1.ConditionUnknown)
	cr := n.remediates("n1", "belay") // before the node is silent: it must not be fenced by the detector alone
	if cr.GetName() == "n1" {
		t.Fatal("the name is that of the node: the test shows nothing")
	}
	n.until(cr, "Succeeded", "False", "") // it renews its lease: nothing can prove its end
	m.dies(fencing.PowerOn)
	n.until(cr, "Processing", "True", "")
	f := m.past(fencing.Fencing)
	if f.Spec.Trigger != fencingv1.TriggerRemediation {
		t.Errorf("the trigger is %s", f.Spec.Trigger)
	}
	if by := s.holder("n1"); by != "NodeHealthCheck-workers" {
		t.Errorf("the lease is of %s: who asks for the fence has it", by)
	}
	if status, reason := n.condition(cr, "Succeeded"); status != "Unknown" {
		t.Errorf("Succeeded is %s (%s) while the machine runs", status, reason)
	}
	if status, _ := n.condition(cr, "PermanentNodeDeletionExpected"); status != "False" {
		t.Errorf("PermanentNodeDeletionExpected is %q", status)
	}
	m.mu.Lock()
	m.failing, m.power = nil, fencing.PowerOff
	m.mu.Unlock()
	n.until(cr, "Succeeded", "True", string(fencing.Moved))
	if phase := m.fence().Status.Phase; phase != fencingv1.Phase(fencing.Moved) || !m.moved() {
		t.Errorf("Succeeded in phase %s, moved %v", phase, m.moved())
	}
	n.until(cr, "Processing", "False", "")
	for reason, want := range map[string]string{"RemediationStarted": "[remediation] Remediation started", "RemediationFinished": "[remediation] Remediation finished"} {
		if got := n.says(cr, reason); got != want {
			t.Errorf("%s: %q", reason, got)
		}
	}
	m.boots()
	m.until(fencing.Releasing)
	n.deletes(cr)
	m.settles()
	n.cleansUp(cr, "n1")
	m.until(fencing.Released)
	if m.tainted(kube.IsolationTaint) {
		t.Error("the node is still isolated")
	}
}

// TestNodeHealthCheckReadyNode: a node that is Ready is not fenced, and NHC continues at once.
func TestNodeHealthCheckReadyNode(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.source()
	s.run(withLeases)
	s.template("belay", nil)
	n := newNHC(s, "workers")
	cr := n.remediates("n1", "belay")
	if cr.GetName() != "n1" {
		t.Errorf("the name is %s", cr.GetName())
	}
	n.until(cr, "Succeeded", "False", explain.RemediationNodeReady)
	n.until(cr, "Processing", "False", "")
	if text := n.says(cr, "RemediationCannotStart"); !strings.HasPrefix(text, "[remediation] ") {
		t.Error(text)
	}
	m.report(corev1.ConditionFalse)
	n.timesOut(cr)
	n.until(cr, "Succeeded", "False", explain.RemediationStopped)
	n.deletes(cr)
	n.cleansUp(cr, "n1")
	if m.fence() != nil {
		t.Error("it was fenced")
	}
}

// TestNodeHealthCheckWithoutASwitch: where nothing can prove that the machine is off, NHC continues at once; the fence ends before anything was commanded, and none
// begins while NHC has the lease of the node for its next remediator.
func TestNodeHealthCheckWithoutASwitch(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	s.run(withLeases)
	s.template("belay", nil)
	n := newNHC(s, "workers")
	must(t, n.lease("n1", "NodeHealthCheck-workers", time.Hour)) // NHC was first
	m.dies(fencing.PowerOn)
	cr := n.remediates("n1", "belay")
	n.until(cr, "Succeeded", "False", string(fencing.NoEvidence))
	n.timesOut(cr)
	wait.Until(t, "the fence has ended", func() bool { f := m.fence(); return f == nil || finished(f) })
	if m.tainted(kube.IsolationTaint) {
		t.Error("the node is still isolated")
	}
	n.until(cr, "Succeeded", "False", explain.RemediationStopped)
	wait.Until(t, "an event says who has the node", func() bool { return s.event(string(fencing.NodeLeaseHeld)) })
	if f := m.fence(); f != nil && !finished(f) {
		t.Errorf("another fence has begun beside NHC's next remediator: %s", f.Spec.Trigger)
	}
	n.deletes(cr)
	n.cleansUp(cr, "n1")
	wait.Until(t, "the detector's own fence is there", func() bool {
		f := m.fence()
		return f != nil && f.Spec.Trigger == fencingv1.TriggerNodeSilent && f.Status.Phase == fencingv1.Phase(fencing.Fencing)
	})
}

// TestNodeHealthCheckTimesOutAfterTheOff: once the machine was commanded, a timeout stops nothing, and neither does the end of the NodeHealthCheck.
func TestNodeHealthCheckTimesOutAfterTheOff(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	m.source()
	s.run(withLeases)
	m.bound()
	s.template("belay", nil)
	n := newNHC(s, "workers")
	m.mu.Lock()
	m.disobeys = true
	m.mu.Unlock()
	must(t, n.lease("n1", "NodeHealthCheck-workers", time.Hour))
	m.dies(fencing.PowerOn)
	cr := n.remediates("n1", "belay")
	wait.Until(t, "the machine was commanded", func() bool { _, offs := m.count(); return offs > 0 })
	n.timesOut(cr)
	time.Sleep(2 * remediateAgain) // it is looked at once a second
	if status, reason := n.condition(cr, "Succeeded"); status != "Unknown" {
		t.Errorf("Succeeded is %s (%s)", status, reason)
	}
	n.deletes(cr)
	time.Sleep(2 * remediateAgain)
	f := m.fence()
	if f == nil || f.DeletionTimestamp != nil || f.Status.Phase != fencingv1.Phase(fencing.Fencing) || f.Spec.Trigger != fencingv1.TriggerRemediation {
		t.Fatalf("the fence does not continue: %+v", f)
	}
	m.mu.Lock()
	m.power = fencing.PowerOff
	m.mu.Unlock()
	m.until(fencing.Moved)
	if n.read(cr) == nil {
		t.Error("the remediation was let go while its node is fenced: NHC would count the node as healthy")
	}
}

// TestNodeHealthCheckOfADeletedNode: NHC deletes the remediation at once when the Node is gone. That releases nothing, although nothing was commanded yet: the
// machine may still write, and the fence waits for evidence.
func TestNodeHealthCheckOfADeletedNode(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	m.recorded()
	s.run(withLeases)
	s.template("belay", nil)
	n := newNHC(s, "workers")
	must(t, n.lease("n1", "NodeHealthCheck-workers", time.Hour))
	m.dies(fencing.PowerOn)
	cr := n.remediates("n1", "belay")
	began := m.waits("no power switch is known")
	if began.Spec.Trigger != fencingv1.TriggerRemediation || !fenceState(began).MayEnd() {
		t.Fatalf("trigger %s, intents %v: the test shows nothing", began.Spec.Trigger, began.Status.Intents)
	}
	must(t, s.client.Delete(t.Context(), m.node()))
	n.deletes(cr)
	n.cleansUp(cr, "n1")
	time.Sleep(2 * remediateAgain)
	if f := m.fence(); f == nil || f.UID != began.UID || f.DeletionTimestamp != nil || finished(f) || m.moved() {
		t.Fatalf("the fence has ended with the remediation: %+v", f)
	}
}

// TestNodeLease: no fence begins while another component has the lease of the node. After that the detector takes it, so that other remediators wait, and
// releases it once the volumes have moved.
func TestNodeLease(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	m.source()
	s.run(withLeases)
	m.bound()
	m.mu.Lock()
	m.disobeys = true
	m.mu.Unlock()
	must(t, s.lease("n1", "node-maintenance", time.Hour))
	m.dies(fencing.PowerOn)
	wait.Until(t, "an event says who has the node", func() bool { return s.event(string(fencing.NodeLeaseHeld)) })
	if m.fence() != nil {
		t.Fatal("it is fenced while another component works on it")
	}
	must(t, s.lease("n1", "node-maintenance", time.Second)) // it expires
	m.past(fencing.Fencing)
	if by := s.holder("n1"); by != Name {
		t.Errorf("the lease is of %q", by)
	}
	if err := s.lease("n1", "NodeHealthCheck-workers", time.Minute); err == nil {
		t.Error("another remediator may begin meanwhile")
	}
	l := &coordinationv1.Lease{}
	must(t, s.client.Get(t.Context(), client.ObjectKey{Namespace: nodeLeases, Name: "node-n1"}, l))
	if len(l.OwnerReferences) != 1 || l.OwnerReferences[0].UID != m.node().UID {
		t.Errorf("owners %v", l.OwnerReferences)
	}
	m.mu.Lock()
	m.power = fencing.PowerOff
	m.mu.Unlock()
	m.until(fencing.Moved)
	wait.Until(t, "the lease was given back", func() bool { return s.holder("n1") == "" })
}

// TestExcludedFromRemediation: medik8s' label keeps a node from being fenced, by whom ever it is asked for.
func TestExcludedFromRemediation(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.source()
	node := m.node()
	must(t, s.client.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"remediation.medik8s.io/exclude-from-remediation":"true"}}}`))))
	s.run(withLeases)
	s.template("belay", nil)
	n := newNHC(s, "workers")
	m.dies(fencing.PowerOn)
	cr := n.remediates("n1", "belay")
	n.until(cr, "Succeeded", "False", string(fencing.NodeOptedOut))
	wait.Until(t, "an event says why it is not fenced", func() bool { return s.event(string(fencing.NodeOptedOut)) })
	if m.fence() != nil {
		t.Error("it is fenced")
	}
}

// TestRemediationWithoutAnnotation: a remediation names its node where it has no annotation. One of an unknown node has failed.
func TestRemediationWithoutAnnotation(t *testing.T) {
	s := newSite(t)
	s.fleet("n1", "n2")
	s.run(withLeases)
	n := newNHC(s, "workers")
	for name, want := range map[string]string{"n1": explain.RemediationNodeReady, "nowhere": explain.RemediationNoNode} {
		r := &fencingv1.BelayRemediation{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		must(t, n.client.Create(t.Context(), r))
		wait.Until(t, name+" is "+want, func() bool {
			must(t, s.client.Get(context.WithoutCancel(t.Context()), client.ObjectKeyFromObject(r), r))
			c := meta.FindStatusCondition(r.Status.Conditions, kube.ConditionSucceeded)
			return c != nil && c.Status == metav1.ConditionFalse && c.Reason == want
		})
		if len(r.Finalizers) > 0 {
			t.Errorf("%s is kept", name)
		}
	}
}

// TestRemediationTemplateIsChecked: what NHC reads of a template must be there.
func TestRemediationTemplateIsChecked(t *testing.T) {
	s := newSite(t)
	for _, spec := range []map[string]any{nil, {}, {"template": map[string]any{}}} {
		x := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "fencing.belay.dev/v1alpha1", "kind": "BelayRemediationTemplate"}}
		x.SetName("broken")
		x.SetNamespace("default")
		if spec != nil {
			x.Object["spec"] = spec
		}
		if err := s.client.Create(t.Context(), x); !apierrors.IsInvalid(err) {
			t.Errorf("%v: %v", spec, err)
		}
	}
}
