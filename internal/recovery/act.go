package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// maxIntents and maxEvidence are the most entries that are kept in a NodeFence, as the CRD allows.
const maxIntents, maxEvidence = 8, 32

// act carries out one step.
func (t *turn) act(ctx context.Context, step fencing.Step) error {
	switch step.(type) {
	case fencing.List:
		return t.list(ctx)
	case fencing.ReadNode:
		return nil // each decision reads it
	}
	t.mem.left = nil
	switch s := step.(type) {
	case fencing.Enter:
		return t.enter(ctx, s)
	case fencing.Command:
		return t.command(ctx, s)
	case fencing.Ask:
		return t.ask(ctx)
	case fencing.Isolate, fencing.Unisolate, fencing.Taint, fencing.Untaint:
		return t.changeTaint(ctx, step)
	case fencing.DeletePod:
		return t.deletePod(ctx, s.Pod)
	case fencing.DeleteAttachment:
		return t.deleteAttachment(ctx, s.Attachment)
	case fencing.Unfence:
		return t.unfence(ctx, s.Attachment)
	case fencing.ProveVolumes:
		return t.proveVolumes(ctx, len(s.Volumes))
	case fencing.SilentAgain:
		return t.silentAgain(ctx, s)
	case fencing.Finish:
		return t.finish(ctx)
	}
	panic(fmt.Sprintf("recovery: unknown step %T", step)) // programmer error
}

// patchStatus changes the status, bound to the version that was decided on.
func (t *turn) patchStatus(ctx context.Context, change func(*fencingv1.NodeFenceStatus)) error {
	before := t.fence.DeepCopy()
	change(&t.fence.Status)
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := t.client.Status().Patch(ctx, t.fence, patch); err != nil {
		return fmt.Errorf("patch the status of NodeFence %s: %w", t.fence.Name, err)
	}
	return nil
}

// enter stores a phase. It makes one log line and one event.
func (t *turn) enter(ctx context.Context, s fencing.Enter) error {
	before := t.fence.Status.Phase
	err := t.patchStatus(ctx, func(status *fencingv1.NodeFenceStatus) {
		status.Phase, status.TaintValue, status.Missing, status.Advice = fencingv1.Phase(s.Phase), taintValue(t.fence.Spec.Epoch), nil, ""
		if !s.Untainted.IsZero() {
			at := metav1.NewTime(s.Untainted)
			status.Untainted = &at
		}
		if s.Evidence != "" {
			t.prove(status, s.Evidence)
		}
		if s.Phase == fencing.Fencing || s.Phase == fencing.Cancelled {
			meta.RemoveStatusCondition(&status.Conditions, conditionProven)
		}
		meta.RemoveStatusCondition(&status.Conditions, conditionBesideEarlier)
		if t.BesideUpstream {
			upstreamForces(status, s.Phase)
		}
		if s.Phase == fencing.Moved {
			setCondition(status, conditionVolumesReleased, metav1.ConditionTrue, "Detached", "no VolumeAttachment of the boot is left")
		}
		if s.Phase == fencing.Released || s.Phase == fencing.Cancelled {
			setCondition(status, conditionEnded, metav1.ConditionTrue, string(s.Phase), explain.FenceOver(t.causeOf(s.Phase)))
		}
	})
	t.mem.waits = ""
	if err != nil || string(before) == string(s.Phase) {
		return err
	}
	log.FromContext(ctx).Info("Fence entered phase", "phase", s.Phase, "from", before, "evidence", s.Evidence, "epoch", t.fence.Spec.Epoch)
	t.Metrics.Entered(t.fence.Name, s.Phase, t.now().Sub(t.fence.CreationTimestamp.Time))
	t.events.Eventf(t.regarding(), t.fence, eventType(s.Phase), string(s.Phase), "Fence", "%s", t.textOf(s))
	return nil
}

// textOf is the text of the event about a phase.
func (t *turn) textOf(s fencing.Enter) string {
	state := fenceState(t.fence)
	text := explain.FencePhase(s.Phase, s.Evidence, state.Commanded())
	switch {
	case s.Phase == fencing.Cancelled && (t.node != nil || t.cause != fencing.CauseNothingLeft):
		text = explain.FenceCancelled(t.cause, state.Commanded())
	case t.node == nil:
		text = explain.FenceWithoutNode(s.Phase, s.Evidence, state)
	}
	if r := t.fence.Spec.Request; r != nil {
		text = truncate(explain.FenceRequested(s.Phase, r.By, r.Reason, text))
	}
	return text
}

// causeOf is why the fence is over, empty for one that is over because it is done.
func (t *turn) causeOf(p fencing.Phase) fencing.Cause {
	if p != fencing.Cancelled {
		return ""
	}
	return t.cause
}

// prove records the class of evidence with which the fence leaves Fencing.
func (t *turn) prove(status *fencingv1.NodeFenceStatus, class fencing.Class) {
	if provenBy(t.fence) == class {
		return
	}
	setCondition(status, conditionProven, metav1.ConditionTrue, string(class), explain.FenceEvidence(class))
	if s := t.fence.Spec.Statement; class == fencing.Stated && s != nil { // the statement may be another one later
		status.Evidence = lastOf(append(status.Evidence, fencingv1.Evidence{
			Class: string(class), BootID: t.fence.Spec.BootID, MachineID: t.fence.Spec.MachineID, Time: micro(t.now()), Source: s.By, Raw: s.Reason,
		}), maxEvidence)
	}
}

// upstreamForces records while kube-controller-manager's timer may run (hole 18): from the first deleted pod on, until no volume is left.
func upstreamForces(status *fencingv1.NodeFenceStatus, p fencing.Phase) {
	switch {
	case p == fencing.Evicting:
		setCondition(status, conditionUpstreamForces, metav1.ConditionTrue, "PodsDeleted", explain.UpstreamForces)
	case meta.FindStatusCondition(status.Conditions, conditionUpstreamForces) != nil && (p == fencing.Moved || p == fencing.Releasing):
		setCondition(status, conditionUpstreamForces, metav1.ConditionFalse, string(p), "kube-controller-manager has nothing left to detach by force for this fence")
	}
}

func setCondition(status *fencingv1.NodeFenceStatus, name string, value metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: name, Status: value, Reason: reason, Message: message})
}

func lastOf[T any](list []T, n int) []T { return list[max(0, len(list)-n):] }

// regarding is what the events of the fence are about: the Node while there is one.
func (t *turn) regarding() client.Object {
	if t.node != nil {
		return t.node
	}
	return t.fence
}

// ask stores a question for the fencer, unless another process waits for the answer to its own: two that overwrite each other's
// questions get no answers at all. That answer is an event for this process too.
func (t *turn) ask(ctx context.Context) error {
	if t.othersQuestion() {
		return nil
	}
	nonce := t.nonce()
	return t.patchStatus(ctx, func(s *fencingv1.NodeFenceStatus) {
		s.Question = &fencingv1.Question{Nonce: nonce, Time: micro(t.now())}
	})
}

// othersQuestion reports whether the record has a question of another process that may still be answered.
func (t *turn) othersQuestion() bool {
	q := t.fence.Status.Question
	if q == nil {
		return false
	}
	_, own := t.mem.asked[q.Nonce]
	return !own && !t.answered(q.Nonce) && t.now().Sub(q.Time.Time).Abs() < t.answerWithin
}

// command stores a command to switch off for the fencer (hole 5).
func (t *turn) command(ctx context.Context, c fencing.Command) error {
	i := fencingv1.Intent{Action: powerOff, Nonce: t.nonce(), NotAfter: micro(c.NotAfter), Renewal: c.Renewal}
	log.FromContext(ctx).Info("Commanding to switch the machine off", "machine", t.fence.Spec.MachineID, "notAfter", c.NotAfter)
	return t.patchStatus(ctx, func(s *fencingv1.NodeFenceStatus) { s.Intents = lastOf(append(s.Intents, i), maxIntents) })
}

// nonce returns a new nonce, asked now: before it is stored, so that no answer seems younger than it is. Those that the record has no more are forgotten: a fence
// may ask once a second, for weeks.
func (t *turn) nonce() string {
	maps.DeleteFunc(t.mem.asked, func(nonce string, at time.Time) bool { return t.now().Sub(at) >= sendWithin && !t.has(nonce) })
	n := uuid.NewString()
	t.mem.asked[n] = t.now()
	return n
}

// has reports whether the record has a nonce.
func (t *turn) has(nonce string) bool {
	q := t.fence.Status.Question
	return q != nil && q.Nonce == nonce || t.answered(nonce) ||
		slices.ContainsFunc(t.fence.Status.Intents, func(i fencingv1.Intent) bool { return i.Nonce == nonce })
}

// patchNode changes the Node, bound to the version that was decided on, and so to its UID.
func (t *turn) patchNode(ctx context.Context, change func(*corev1.Node)) error {
	before := t.node.DeepCopy()
	change(t.node)
	if err := t.client.Patch(ctx, t.node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("patch node %s: %w", before.Name, err)
	}
	return nil
}

func annotate(node *corev1.Node, name, value string) {
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, name, value)
}

func (t *turn) changeTaint(ctx context.Context, step fencing.Step) error {
	switch step.(type) {
	case fencing.Unisolate:
		return t.untaint(ctx, kube.IsolationTaint)
	case fencing.Untaint:
		return t.untaint(ctx, kube.OutOfServiceTaint)
	}
	if err := t.recorded(ctx); err != nil {
		return err
	}
	if _, isolates := step.(fencing.Isolate); isolates {
		return t.isolate(ctx)
	}
	return t.taint(ctx)
}

// recorded fails unless the fence that was decided on is still there, in the same phase. It is read after the Node, so that a taint that is bound to the Node's
// version always has a fence that removes it: after etcd was restored, it may have none, and another process may have cancelled it and removed its taint.
func (t *turn) recorded(ctx context.Context) error {
	now := &fencingv1.NodeFence{}
	if err := t.live.Get(ctx, client.ObjectKey{Name: t.fence.Name}, now); err != nil {
		return fmt.Errorf("read NodeFence %s: %w", t.fence.Name, err)
	}
	if now.UID != t.fence.UID || now.Status.Phase != t.fence.Status.Phase {
		return apierrors.NewConflict(fencingv1.GroupVersion.WithResource("nodefences").GroupResource(), t.fence.Name, errors.New("it is another object, or in another phase"))
	}
	return nil
}

func (t *turn) isolate(ctx context.Context) error {
	return t.patchNode(ctx, func(n *corev1.Node) {
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(x corev1.Taint) bool { return x.Key == kube.IsolationTaint })
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{
			Key: kube.IsolationTaint, Value: taintValue(t.fence.Spec.Epoch), Effect: corev1.TaintEffectNoSchedule,
		})
		annotate(n, kube.FenceEpochAnnotation, strconv.FormatInt(t.fence.Spec.Epoch, 10))
	})
}

// taint sets the out-of-service taint together with the boot that it is about: kube.OutOfService trusts it for no other one.
func (t *turn) taint(ctx context.Context) error {
	err := t.patchNode(ctx, func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{
			Key: kube.OutOfServiceTaint, Value: taintValue(t.fence.Spec.Epoch), Effect: corev1.TaintEffectNoExecute,
		})
		annotate(n, kube.FencedBootAnnotation, t.fence.Spec.BootID)
	})
	if err != nil {
		return err
	}
	log.FromContext(ctx).Info("Set the out-of-service taint", "value", taintValue(t.fence.Spec.Epoch))
	return nil
}

// untaint removes the fence's own taint of a key.
func (t *turn) untaint(ctx context.Context, key string) error {
	err := t.patchNode(ctx, func(n *corev1.Node) {
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(x corev1.Taint) bool {
			return x.Key == key && x.Value == taintValue(t.fence.Spec.Epoch)
		})
		if key == kube.OutOfServiceTaint {
			delete(n.Annotations, kube.FencedBootAnnotation)
		}
	})
	if err != nil {
		return err
	}
	log.FromContext(ctx).Info("Removed a taint", "taint", key, "value", taintValue(t.fence.Spec.Epoch))
	return nil
}

// recordTaint stores whether the Node has the out-of-service taint of the fence, as it was read: the process that set or removed it may have ended
// before it could store that.
func (t *turn) recordTaint(ctx context.Context, seen fencing.Observed) error {
	if seen.Exists == fencing.Unknown || seen.OutOfService == meta.IsStatusConditionTrue(t.fence.Status.Conditions, conditionTainted) {
		return nil
	}
	return t.patchStatus(ctx, func(s *fencingv1.NodeFenceStatus) {
		if seen.OutOfService {
			setCondition(s, conditionTainted, metav1.ConditionTrue, "OutOfService", "the node has the out-of-service taint of this fence")
		} else {
			setCondition(s, conditionTainted, metav1.ConditionFalse, "Removed", "the fence's out-of-service taint was removed")
		}
	})
}

func (t *turn) deletePod(ctx context.Context, p fencing.Pod) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}
	uid := types.UID(p.UID)
	err := t.client.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &uid})
	switch {
	case gone(err):
		return nil
	case err != nil:
		return fmt.Errorf("delete pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	log.FromContext(ctx).Info("Deleted a pod whose node has ended", "pod", klog.KRef(p.Namespace, p.Name), "uid", p.UID)
	return nil
}

func (t *turn) deleteAttachment(ctx context.Context, a fencing.Attachment) error {
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: a.Name}}
	uid := types.UID(a.UID)
	err := t.client.Delete(ctx, va, client.Preconditions{UID: &uid, ResourceVersion: &a.Version})
	switch {
	case gone(err):
		return nil
	case err != nil:
		return fmt.Errorf("delete VolumeAttachment %s: %w", a.Name, err)
	}
	log.FromContext(ctx).Info("Deleted a VolumeAttachment whose node has ended", "attachment", a.Name)
	return nil
}

// unfence records on a VolumeAttachment, bound to its UID and version, that no other fence is to begin for the boot.
func (t *turn) unfence(ctx context.Context, a fencing.Attachment) error {
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: a.Name}}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": a.UID, "resourceVersion": a.Version, "annotations": map[string]string{kube.UnfencedBootAnnotation: t.fence.Spec.BootID},
	}})
	if err != nil {
		return fmt.Errorf("encode the annotation of VolumeAttachment %s: %w", a.Name, err)
	}
	switch err := t.client.Patch(ctx, va, client.RawPatch(types.MergePatchType, patch)); {
	case gone(err):
		return nil
	case err != nil:
		return fmt.Errorf("record on VolumeAttachment %s that its boot is not fenced again: %w", a.Name, err)
	}
	log.FromContext(ctx).Info("Recorded on a VolumeAttachment that its boot is not fenced again", "attachment", a.Name)
	return nil
}

// gone reports whether a write found nothing, or another object or version: then it is listed and decided again.
func gone(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }

// finish drops the finalizer. A finished fence stays as a record until the next one, or until a client deletes it.
func (t *turn) finish(ctx context.Context) error {
	before := t.fence.DeepCopy()
	controllerutil.RemoveFinalizer(t.fence, finalizer)
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := t.client.Patch(ctx, t.fence, patch); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove the finalizer of NodeFence %s: %w", t.fence.Name, err)
	}
	t.forget(t.fence.UID)
	return nil
}

// eventType is Warning for what takes something away.
func eventType(p fencing.Phase) string {
	if slices.Contains([]fencing.Phase{fencing.Moved, fencing.Releasing, fencing.Released, fencing.Cancelled}, p) {
		return corev1.EventTypeNormal
	}
	return corev1.EventTypeWarning
}
