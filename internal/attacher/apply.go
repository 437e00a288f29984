package attacher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/publication"
	"belay.dev/belay/internal/telemetry"
)

// process decides about a key and does what was decided, until nothing is left
// to do but wait, or to call the driver.
func (a *Attacher) process(ctx context.Context, key publication.Key) (err error) {
	if !a.controller.Capabilities().Attach {
		return a.markTrivially(ctx, key)
	}
	if a.isIdentified(key) {
		return nil
	}
	var queue *callQueue
	// If another worker decides about it, a call is about to begin, and the key is queued again.
	a.decideAlone(key, func() { queue, err = a.decideAndApply(ctx, key) })
	if queue != nil {
		queue.Add(key) // now that its worker does not find it taken
	}
	return err
}

// isIdentified reports whether the volume of an attachment was found since its key was queued, and
// queues the volume's key.
func (a *Attacher) isIdentified(key publication.Key) bool {
	va, ok := a.objects.attachments.Get(key.Attachment)
	if !ok {
		return false
	}
	a.objects.search(va.Name)
	known := a.objects.keyOf(va)
	if known == key {
		return false
	}
	a.queue.Add(known)
	a.metrics.Waits(time.Now(), key, nil)
	return true
}

// decideAndApply returns the queue for the call that remains to be sent, if one does.
func (a *Attacher) decideAndApply(ctx context.Context, key publication.Key) (*callQueue, error) {
	if a.isOutdated(key) {
		a.rekey(key.Volume)
		a.metrics.Waits(time.Now(), key, nil)
		return nil, nil
	}
	for range maxTurns {
		shot, decision := a.decide(key)
		queue := a.queueOfCall(shot, &decision)
		if queue != nil && queue.reserve(key) {
			return queue, nil // the call begins at once; the other steps are done beside it
		}
		progressed, err := a.applyAll(ctx, shot, &decision)
		if err == nil && progressed {
			continue
		}
		if queue != nil {
			queue.join(key)
		}
		a.await(ctx, shot, decision)
		return queue, err
	}
	a.queue.Add(key) // others first
	return nil, nil
}

// isOutdated reports whether a volume was made exclusive, or shared, since its key was queued.
func (a *Attacher) isOutdated(key publication.Key) bool {
	return key.Volume != "" && a.objects.exclusive(key.Volume) != (key.Node == "")
}

func (a *Attacher) decide(key publication.Key) (snapshot, publication.Decision) {
	shot := a.observe(key)
	shot.seen.Draining = a.draining.Load()
	return shot, publication.Decide(time.Now(), shot.seen, a.policy)
}

// queueOfCall is the queue for the call that was decided on; nil if there is none, or if it cannot be sent now. The decision gets
// why the attachment waits.
func (a *Attacher) queueOfCall(shot snapshot, decision *publication.Decision) *callQueue {
	for _, step := range decision.Steps {
		step, ok := step.(publication.CallDriver)
		if !ok {
			continue
		}
		one := shot.subjects[step.Target()]
		queue, no := a.queueFor(one), a.holds.wait(time.Now(), attemptOf(shot.key, one, step))
		switch {
		case a.absence.hold(shot.key, a.controller.Present):
			queue, no = nil, refusal{reason: publication.DriverGone}
		case no.reason != "":
			queue = nil
		default:
			no.reason = publication.DriverBusy
		}
		decision.Wait(publication.Wait{Attachment: one.seen.Name, Reason: no.reason, Until: no.until})
		return queue
	}
	return nil
}

// rekey queues everything of a volume that was made exclusive, or shared, since
// its key was queued.
func (a *Attacher) rekey(volume string) {
	for _, va := range a.attachmentsOf(publication.Key{Volume: volume}) {
		a.wakeAttachment(va)
	}
	for _, r := range a.calls.ofVolume(volume) {
		a.queue.Add(a.objects.keyOfVolume(volume, r.node))
	}
}

// await has the key looked at again when the decision said so, and says why it waits.
func (a *Attacher) await(ctx context.Context, shot snapshot, decision publication.Decision) {
	detaches := make(map[string]bool, len(shot.seen.Attachments))
	for _, seen := range shot.seen.Attachments {
		detaches[seen.Name] = seen.Deleting || seen.Gone
	}
	var waiting []telemetry.Waiting
	for _, w := range decision.Waits {
		waiting = append(waiting, telemetry.Waiting{Attachment: w.Attachment, Detach: detaches[w.Attachment], Reason: w.Reason})
	}
	shot.logWaits(ctx, decision.Waits, a.metrics.Waits(time.Now(), shot.key, waiting))
	if !decision.RecheckAt.IsZero() {
		a.queue.AddAfter(shot.key, time.Until(decision.RecheckAt))
	}
}

// applyAll does the steps of a decision but the call. They are for different attachments: one
// that fails does not keep the others from being done. The decision gets which attachments wait for that.
func (a *Attacher) applyAll(ctx context.Context, shot snapshot, decision *publication.Decision) (progressed bool, err error) {
	var failed []error
	for _, step := range decision.Steps {
		if _, call := step.(publication.CallDriver); call {
			continue
		}
		one := shot.subjects[step.Target()]
		done, err := a.apply(ctx, shot, one, step)
		progressed = progressed || done
		if err != nil {
			decision.Waits = slices.DeleteFunc(decision.Waits, func(w publication.Wait) bool { return w.Attachment == one.seen.Name })
			decision.Wait(publication.Wait{Attachment: one.seen.Name, Reason: publication.RecordingFailed})
			failed = append(failed, fmt.Errorf("VolumeAttachment %s for node %s: %w", one.seen.Name, one.seen.Node, err))
		}
	}
	return progressed, errors.Join(failed...)
}

// apply does one step; done tells whether anything changed by it.
func (a *Attacher) apply(ctx context.Context, shot snapshot, one *subject, step publication.Step) (done bool, err error) {
	switch s := step.(type) {
	case publication.WriteFinalizers:
		return a.writeFinalizers(ctx, shot.key, one, s)
	case publication.Reread:
		return true, a.reread(ctx, one)
	case publication.RecordAttached:
		return true, a.recordAttached(ctx, one)
	case publication.RecordDetached:
		return true, a.writeStatus(ctx, one.attachment, detachedPatch(one.attachment))
	case publication.RemoveFinalizer:
		return true, a.removeFinalizer(ctx, one)
	case publication.RecordError:
		return true, a.recordError(ctx, one, s)
	case publication.Forget:
		a.calls.forget(one.uid())
		return true, nil
	default:
		panic(fmt.Sprintf("unknown step %T", step)) // the set is sealed
	}
}

// result is how a call ended.
type result struct {
	publishContext map[string]string
	err            error
	took           time.Duration
}

// finish notes how a call ended.
func (a *Attacher) finish(logger klog.Logger, try attempt, r result) {
	if r.err != nil {
		a.calls.fail(try.uid, r.err, time.Now())
		values := []any{"call", try.verb, "took", r.took}
		if try.verb == publication.Publish && csi.OutcomeOf(r.err) != csi.Failed {
			values = append(values, "mayBePublished", true)
		}
		a.logFailure(logger, try, r.err, values...)
		return
	}
	logger.Info(verbs[try.verb].done, "call", try.verb, "took", r.took)
	a.calls.confirm(try.uid, r.publishContext, time.Now())
}

// logFailure logs an attempt that failed, and when it is repeated.
func (a *Attacher) logFailure(logger klog.Logger, try attempt, err error, values ...any) {
	next := a.policy.NextAttempt(string(try.uid), a.calls.of(try.uid).call)
	logger.Error(err, verbs[try.verb].failed, append(values, "nextAttempt", publication.FormatTime(next))...)
}

// refuse notes an attempt that failed before anything was sent.
func (a *Attacher) refuse(ctx context.Context, one *subject, try attempt, err error) {
	a.calls.refuse(try, err, time.Now())
	a.logFailure(klog.FromContext(ctx).WithValues(one.about()...), try, err)
}

// send fetches the secrets and sends one request.
func (a *Attacher) send(ctx context.Context, one *subject, step publication.CallDriver) (r result) {
	secrets, err := a.secretsOf(ctx, one)
	if err != nil {
		return result{err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout) // of the call alone
	defer cancel()
	begun := time.Now()
	defer func() {
		r.took = time.Since(begun)
		r.err = csi.Unanswered(ctx, r.err, csi.NoAnswerError{Driver: a.driver, Call: step.Verb.String(), Node: a.nodeOf(one, step.NodeID), Timeout: a.timeout})
	}()
	if step.Verb == publication.Publish {
		request := one.source.publishRequest(step.NodeID, a.defaultFSType)
		request.Secrets = secrets
		r.publishContext, r.err = a.controller.Publish(ctx, request)
		return r
	}
	r.err = a.controller.Unpublish(ctx, csi.UnpublishRequest{
		VolumeHandle: one.source.handle, NodeID: step.NodeID, Secrets: secrets, Migrated: one.source.migrated,
	})
	return r
}

// secretsOf returns the secrets of a call: those that were read for it, or that the Secret
// has now.
func (a *Attacher) secretsOf(ctx context.Context, one *subject) (csi.Secrets, error) {
	ref := one.source.secret
	if secrets, ok := a.pendingSecrets.take(one.uid(), ref); ok {
		return secrets, nil
	}
	return a.secrets(ctx, ref)
}

// secrets reads the Secret that a volume names, anew for each request and never
// kept for longer. Without a reference there are none.
func (a *Attacher) secrets(ctx context.Context, ref *corev1.SecretReference) (csi.Secrets, error) {
	if ref == nil {
		return nil, nil
	}
	// client-go logs the bodies of answers from -v=8 on, by the context's logger.
	silent := klog.NewContext(ctx, logr.Discard())
	var secret *corev1.Secret
	err := a.ask(silent, func(ctx context.Context) (err error) {
		secret, err = a.client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("failed to load secret \"%s/%s\": %w", ref.Namespace, ref.Name, err)
	}
	found := make(csi.Secrets, len(secret.Data))
	for key, value := range secret.Data {
		found[key] = string(value)
	}
	return found, nil
}

// recordAttached stores the result of a publish.
func (a *Attacher) recordAttached(ctx context.Context, one *subject) error {
	err := a.writeStatus(ctx, one.attachment, attachedPatch(one.attachment, one.record.publishContext))
	if apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) {
		// The API server will never take this publish context. Said in the status
		// it can be mended.
		err = fmt.Errorf("could not save the publish context: %w", err)
		a.calls.fail(one.uid(), err, time.Now())
		a.logFailure(klog.FromContext(ctx).WithValues(one.about()...), attempt{uid: one.uid(), verb: publication.Publish}, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("record as attached: %w", err)
	}
	a.calls.recorded(one.uid())
	return nil
}

func (a *Attacher) recordError(ctx context.Context, one *subject, step publication.RecordError) error {
	stored := &storagev1.VolumeError{Message: step.Message, Time: metav1.Now()}
	if code, ok := csi.Code(one.record.err); ok && step.OfCall && step.Verb == publication.Publish {
		number := int32(code)
		stored.ErrorCode = &number
	}
	if err := a.writeStatus(ctx, one.attachment, errorPatch(one.attachment, step.Verb, stored)); err != nil {
		return fmt.Errorf("record the error %q: %w", step.Message, err)
	}
	if step.OfCall {
		a.calls.recorded(one.uid())
	}
	return nil
}

// clone copies a map that is about to be changed, also a nil one.
func clone(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for key, value := range maps.All(m) {
		out[key] = value
	}
	return out
}
