package diagnosis

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// chance makes the objects of a cluster from a seed: any of them may be missing, malformed, or refer to what does not exist.
type chance struct{ *rand.Rand }

func (c chance) maybe() bool { return c.IntN(2) == 0 }

func (c chance) pick(names ...string) string { return names[c.IntN(len(names))] }

func (c chance) time() metav1.Time {
	if c.IntN(4) == 0 {
		return metav1.Time{}
	}
	return metav1.NewTime(begin.Add(-time.Duration(c.IntN(1000)) * time.Second))
}

func (c chance) meta(namespace, name string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: c.time(), UID: types.UID(name)}
	if c.IntN(3) == 0 {
		at := c.time()
		m.DeletionTimestamp, m.DeletionGracePeriodSeconds = &at, new(int64(30))
	}
	return m
}

var begin = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

const fuzzDriver = "disk.example.com"

var (
	fuzzNamespaces = []string{"mine", "secretns"}
	fuzzNodes      = []string{"n1", "n2", "n3"}
)

func (c chance) snapshot() *Snapshot {
	s := &Snapshot{Now: begin, Namespaces: []string{"mine"}}
	for _, r := range []Resource{Pods, Claims, Volumes, Attachments, Nodes, CSINodes, Drivers, Leases} {
		if c.maybe() {
			s.Whole = append(s.Whole, r)
		}
	}
	for i := range 3 {
		for _, namespace := range fuzzNamespaces {
			c.addClaim(s, namespace, i)
		}
	}
	for _, node := range fuzzNodes {
		c.addNode(s, node)
	}
	if c.maybe() {
		s.Drivers = append(s.Drivers, &storagev1.CSIDriver{ObjectMeta: c.meta("", fuzzDriver), Spec: storagev1.CSIDriverSpec{AttachRequired: new(c.maybe())}})
	}
	if c.maybe() {
		lease := &coordinationv1.Lease{ObjectMeta: c.meta("secretns", "external-attacher-leader-disk-example-com")}
		if c.maybe() {
			lease.Spec.HolderIdentity, lease.Spec.RenewTime = new("secretns-attacher-pod"), &metav1.MicroTime{Time: c.time().Time}
		}
		s.Leases = append(s.Leases, lease)
	}
	c.addRecovery(s)
	return s
}

// addRecovery adds what recovery may have stored, in any state.
func (c chance) addRecovery(s *Snapshot) {
	switch c.IntN(4) {
	case 0: // it is not installed
		s.Absent = append(s.Absent, Ref{Resource: Fences}, Ref{Resource: FenceSources})
		return
	case 1: // it may not be read
		s.Unread = append(s.Unread, Unread{Ref: Ref{Resource: Fences}, Verb: "list", Forbidden: true, Message: "forbidden"})
		return
	}
	s.Whole = append(s.Whole, Fences)
	for _, node := range append([]string{"n-gone"}, fuzzNodes...) {
		if c.maybe() {
			s.Fences = append(s.Fences, c.fence(node))
		}
		if c.maybe() {
			s.FenceSources = append(s.FenceSources, c.source(node))
		}
		if c.maybe() {
			s.Leases = append(s.Leases, &coordinationv1.Lease{ObjectMeta: c.meta(c.pick("kube-node-lease", "kube-system"), c.pick(node, "belay-recovery-detector"))})
		}
		s.Events = append(s.Events, &corev1.Event{
			ObjectMeta: c.meta("default", node), InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node}, ReportingController: c.pick(Recovery, "x"),
			Reason: c.pick("TooManySilent", "Suspected", ""), Message: "secretns/secretns-password", LastTimestamp: c.time(),
		})
	}
	for _, lease := range s.Leases {
		if lease.Namespace != "secretns" && c.maybe() {
			lease.Spec.HolderIdentity, lease.Spec.RenewTime = new("x"), &metav1.MicroTime{Time: c.time().Time}
		}
	}
}

func (c chance) fence(node string) *fencingv1.NodeFence {
	f := &fencingv1.NodeFence{ObjectMeta: c.meta("", node)}
	f.Spec.NodeName, f.Spec.MachineID, f.Spec.BootID = c.pick(node, ""), c.pick("m", "M", ""), c.pick("b", "")
	f.Spec.Release = fencingv1.ReleasePolicy(c.pick("Auto", "Manual", "", "x"))
	f.Status.Phase = fencingv1.Phase(c.pick("Suspected", "Isolating", "Fencing", "Tainting", "Evicting", "Detaching", "Moved", "Releasing", "Released", "Cancelled", "", "Unheard"))
	if c.maybe() {
		f.Finalizers = []string{kube.FenceFinalizer}
	}
	if c.maybe() {
		missing, _ := explain.FenceWait(fencing.Exits.Reasons()[c.IntN(len(fencing.Exits))])
		f.Status.Missing, f.Status.Advice = []string{c.pick(missing, missing, "another version", "")}, c.pick("", "read Secret secretns/secretns-password")
	}
	if c.maybe() {
		f.Status.Conditions = []metav1.Condition{{
			Type: c.pick("Proven", "Contradicted", "VolumesReleased"), Status: metav1.ConditionStatus(c.pick("True", "False", "")), Reason: c.pick("PoweredOff", "Stated", ""), LastTransitionTime: c.time(),
		}}
	}
	if c.maybe() {
		f.Spec.Statement = &fencingv1.Statement{By: c.pick("alice", ""), Reason: "secretns/secretns-password", MachineID: c.pick("m", ""), Expires: c.time()}
	}
	if c.maybe() {
		f.Status.Evidence = []fencingv1.Evidence{{Power: c.pick("On", "Off", "Unknown", ""), Raw: "password=x of secretns/secretns-password", Time: metav1.MicroTime(c.time())}, {}}
	}
	if c.maybe() {
		f.Status.Question = &fencingv1.Question{Nonce: c.pick("q", ""), Time: metav1.MicroTime(c.time())}
	}
	if c.maybe() {
		f.Status.Intents = []fencingv1.Intent{{Nonce: c.pick("i", ""), NotAfter: metav1.MicroTime(c.time())}}
	}
	return f
}

func (c chance) source(node string) *fencingv1.FenceSource {
	s := &fencingv1.FenceSource{ObjectMeta: c.meta("", node)}
	if c.maybe() {
		s.Spec.Levels = []fencingv1.FenceLevel{{}, {Feeds: []fencingv1.Feed{{Agent: "fence_a", SecretRef: &fencingv1.SecretReference{Namespace: "secretns", Name: "secretns-password"}}, {}}}}
	}
	if c.maybe() {
		s.Status.Bound = &fencingv1.Bound{NodeUID: node, BootID: c.pick("b", ""), MachineID: c.pick("m", "")}
	}
	if c.maybe() {
		s.Status.Conditions = []metav1.Condition{{
			Type: kube.ConditionFenceReady, Status: metav1.ConditionStatus(c.pick("True", "False", "")), Reason: c.pick("SaidOn", "TooManyFailures", ""), Message: "read Secret secretns/secretns-password",
		}}
	}
	return s
}

func handle(namespace string, i int) string { return fmt.Sprintf("h-%d-%d", i, len(namespace)) }

func (c chance) addClaim(s *Snapshot, namespace string, i int) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: c.meta(namespace, fmt.Sprintf("%s-claim-%d", namespace, i))}
	pv := &corev1.PersistentVolume{ObjectMeta: c.meta("", fmt.Sprintf("pv-%d-%d", len(namespace), i))}
	if c.IntN(4) > 0 {
		claim.Spec.VolumeName = pv.Name
	}
	if c.IntN(4) > 0 {
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: c.pick(fuzzDriver, fuzzDriver, ""), VolumeHandle: handle(namespace, i)}
		pv.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Namespace: namespace, Name: namespace + "-password"}
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: claim.Name}
	}
	if c.maybe() {
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.PersistentVolumeAccessMode(c.pick("ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod", ""))}
	}
	if c.IntN(4) > 0 {
		s.Claims = append(s.Claims, claim)
	}
	if c.IntN(4) > 0 {
		s.Volumes = append(s.Volumes, pv)
	}
	for j := range c.IntN(3) {
		c.addPod(s, namespace, claim.Name, fmt.Sprintf("%s-pod-%d-%d", namespace, i, j))
	}
	for _, node := range fuzzNodes {
		if c.IntN(3) == 0 {
			c.addAttachment(s, namespace, pv.Name, handle(namespace, i), node)
		}
	}
}

func (c chance) addPod(s *Snapshot, namespace, claim, name string) {
	pod := &corev1.Pod{ObjectMeta: c.meta(namespace, name)}
	pod.Spec.NodeName = c.pick("", "n1", "n2", "n3", "n-gone")
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.pick(claim, claim, "missing")}}}}
	pod.Status.Phase = corev1.PodPhase(c.pick("Pending", "Pending", "Running", "Succeeded", ""))
	if c.maybe() {
		pod.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionStatus(c.pick("True", "False")), LastTransitionTime: c.time(),
			Message: c.pick("", "0/3 nodes are available: 3 node(s) exceed max volume count", "0/3 nodes are available: 3 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod."),
		}}
	}
	if c.maybe() {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{}}
		if c.maybe() {
			pod.Status.ContainerStatuses[0].State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
		}
	}
	s.Pods = append(s.Pods, pod)
	if c.maybe() {
		s.Events = append(s.Events, &corev1.Event{
			ObjectMeta: c.meta(namespace, name), InvolvedObject: corev1.ObjectReference{UID: pod.UID}, Reason: c.pick("FailedMount", "FailedAttachVolume", "FailedScheduling"),
			Message: "secretns/pod-0-0 with secretns/other-claim has it", LastTimestamp: c.time(),
		})
	}
}

func (c chance) addAttachment(s *Snapshot, namespace, pv, handle, node string) {
	va := &storagev1.VolumeAttachment{ObjectMeta: c.meta("", c.pick(kube.AttachmentName(handle, fuzzDriver, node), "by-hand-"+pv+node))}
	va.Spec.Attacher, va.Spec.NodeName = c.pick(fuzzDriver, "other"), node
	if c.IntN(4) > 0 {
		va.Spec.Source.PersistentVolumeName = &pv
	}
	va.Status.Attached = c.maybe()
	fail := &storagev1.VolumeError{Time: c.time(), Message: c.pick("", "rpc error: code = FailedPrecondition desc = in use", `failed to load secret "secretns/secretns-password": not found`, "\x00\xff")}
	if c.maybe() {
		fail.ErrorCode = new(c.Int32N(20))
	}
	switch c.IntN(3) {
	case 0:
		va.Status.AttachError = fail
	case 1:
		va.Status.DetachError = fail
	}
	if c.maybe() {
		va.Annotations = map[string]string{kube.DetachRequestedAnnotation: c.pick("not a time", begin.Format(time.RFC3339)), kube.VolumeHandleAnnotation: handle}
	}
	s.Attachments = append(s.Attachments, va)
}

func (c chance) addNode(s *Snapshot, name string) {
	if c.IntN(4) == 0 {
		return
	}
	node := &corev1.Node{ObjectMeta: c.meta("", name)}
	if c.IntN(4) > 0 {
		node.Annotations = map[string]string{kube.ManagedAttachAnnotation: "true"}
	}
	for i := range 3 {
		unique := c.pick(kube.UniqueVolumeName(fuzzDriver, handle("mine", i)), kube.UniqueVolumeName(fuzzDriver, handle("secretns", i)), "", "kubernetes.io/csi/", "x")
		if c.maybe() {
			node.Status.VolumesInUse = append(node.Status.VolumesInUse, corev1.UniqueVolumeName(unique))
		}
		if c.maybe() {
			node.Status.VolumesAttached = append(node.Status.VolumesAttached, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(unique)})
		}
	}
	if c.maybe() {
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionStatus(c.pick("True", "False", "Unknown", "")), LastTransitionTime: c.time()}}
	}
	if c.IntN(4) == 0 {
		node.Spec.Taints = []corev1.Taint{{Key: kube.OutOfServiceTaint}}
	}
	node.Status.NodeInfo.BootID, node.Status.NodeInfo.SystemUUID = c.pick("b", "b2", ""), c.pick("m", "M", "m2", "")
	s.Nodes = append(s.Nodes, node)
	if c.maybe() {
		s.CSINodes = append(s.CSINodes, &storagev1.CSINode{ObjectMeta: c.meta("", name)})
	}
}

// FuzzExplain explains each object of clusters that chance made. No answer may panic, lack a reason, a summary or a page, or have a
// name from the namespace that the reader may not read.
func FuzzExplain(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		s := chance{rand.New(rand.NewPCG(seed, 1))}.snapshot()
		for _, ref := range s.refs() {
			e, err := Explain(s, ref)
			if err != nil {
				continue // the object is missing
			}
			checkAnswer(t, seed, e)
		}
		for _, ref := range s.refs() {
			if answer, err := Timelines(s, ref); err == nil {
				checkTimeline(t, seed, answer)
			}
		}
		lists := fmt.Sprintf("%+v %+v %+v %+v", Stuck(s, "", 0), Stuck(s, "mine", time.Minute), Orphans(s, true), Map(s, "", ""))
		if strings.Contains(lists, "secretns") {
			t.Errorf("seed %d: a list has a hidden name: %s", seed, lists)
		}
		checkRecovery(t, seed, s)
		for _, va := range s.Attachments {
			if p, err := PlanForceDetach(s, va.Name); err == nil {
				checkPlan(t, seed, s, p)
			}
		}
	})
}

// refs are the objects that the reader may ask about.
func (s *Snapshot) refs() []Ref {
	refs := []Ref{{Resource: Nodes, Name: "n-gone"}, {Resource: Pods, Namespace: "mine", Name: "none"}}
	for _, pod := range s.Pods {
		if s.mayName(pod.Namespace) {
			refs = append(refs, podRef(pod))
		}
	}
	for _, claim := range s.Claims {
		if s.mayName(claim.Namespace) {
			refs = append(refs, Ref{Resource: Claims, Namespace: claim.Namespace, Name: claim.Name})
		}
	}
	for _, pv := range s.Volumes {
		refs = append(refs, Ref{Resource: Volumes, Name: pv.Name})
	}
	for _, va := range s.Attachments {
		refs = append(refs, Ref{Resource: Attachments, Name: va.Name})
	}
	for _, node := range fuzzNodes {
		refs = append(refs, Ref{Resource: Nodes, Name: node})
	}
	return refs
}

func checkAnswer(t *testing.T, seed uint64, e Explanation) {
	t.Helper()
	text := fmt.Sprintf("%+v", e)
	for i := range e.Findings {
		found := &e.Findings[i]
		if found.Reason == "" || found.Summary == "" || found.Subject.Name == "" {
			t.Errorf("seed %d, %s: a finding lacks reason, summary or subject: %+v", seed, e.Subject, found)
		}
		for _, step := range found.Next {
			if strings.Contains(step.Command, "  ") || strings.HasSuffix(step.Command, "/") || strings.Contains(step.Command, "node.kubernetes.io/out-of-service=") && step.Danger == "" {
				t.Errorf("seed %d, %s, %s: not to be copied: %q", seed, e.Subject, found.Reason, step.Command)
			}
		}
		text += fmt.Sprintf("%+v %+v", found.Volume, found.Holders)
	}
	if strings.Contains(text, "secretns") {
		t.Errorf("seed %d, %s: the answer has a hidden name: %s", seed, e.Subject, text)
	}
}

// over reports whether nothing of the boot is left to be taken, so that a statement would be about the next one.
func over(f *fence) bool {
	return slices.Contains([]fencing.Phase{fencing.Moved, fencing.Releasing, fencing.Released, fencing.Cancelled}, f.Phase)
}

// checkRecovery: no answer about a fence panics, lacks a reason or has a hidden name, and a statement is planned only for a fence that awaits
// evidence about a machine that is not known to run.
func checkRecovery(t *testing.T, seed uint64, s *Snapshot) {
	t.Helper()
	x := newState(s)
	author := Author{Name: "alice", May: decision.Yes}
	for _, node := range append([]string{"n-gone", "none"}, fuzzNodes...) {
		e, err := Evidence(s, node)
		if err == nil && (e.Reason == "" || e.Summary == "" || e.State == "" || e.Verdict == "") {
			t.Errorf("seed %d: the evidence of %s lacks something: %+v", seed, node, e)
		}
		if e.State == Fenceable && (e.Source == nil || e.Source.Ready != "True" || !e.Source.Current) {
			t.Errorf("seed %d: %s could be fenced without a switch that is its own: %+v", seed, node, e)
		}
		state, _ := PlanStatement(s, node, StatementRequest{PoweredOff: true, Machine: "m", Reason: "r", Expires: time.Hour}, author)
		release, _ := PlanUnfence(s, node, "", author)
		text, err := json.Marshal([]any{e, state, release})
		if err != nil || strings.Contains(string(text), "secretns") {
			t.Errorf("seed %d: %v: an answer about the fence of %s has a hidden name: %s", seed, err, node, text)
		}
		if state.Action != "" && (x.node(node).State == NodeReady || over(x.fenceOf(node)) || x.fenceOf(node).Boot.Machine == "") {
			t.Errorf("seed %d: a statement is planned about a node that may live, or was released: %+v", seed, state)
		}
		if f := x.fenceOf(node); release.Action != "" && (f.Intent.Nonce != "" && f.Phase == fencing.Tainting || f.Proven()) && (f.Phase != fencing.Moved || !f.ManualRelease) {
			t.Errorf("seed %d: a release is planned that would change nothing: %+v", seed, release)
		}
	}
}

// checkPlan: a finalizer is removed only where no driver is left, and a node that may use the volume is a risk.
func checkPlan(t *testing.T, seed uint64, s *Snapshot, p ForcePlan) {
	t.Helper()
	x := newState(s)
	va := x.attachments[p.Subject.Name]
	if p.Action == RemoveFinalizer && (!x.removed(va.Spec.Attacher) || len(p.Risks) == 0) {
		t.Errorf("seed %d: %s: a finalizer would be removed although the driver may be installed, or without a risk", seed, va.Name)
	}
	node := x.nodes[va.Spec.NodeName]
	if p.Action != "" && len(p.Risks) == 0 && (node == nil || !kube.OutOfService(node) && !kube.Ready(node) || kube.Ready(node) && p.Holder.InUse != "no") {
		t.Errorf("seed %d: %s: a detach from a node that may use the volume has no risk: %+v", seed, va.Name, p)
	}
}
