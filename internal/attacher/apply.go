package attacher

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
// to do but wait.
func (a *Attacher) process(ctx context.Context, key publication.Key) error {
	if !a.controller.Capabilities().Attach {
		return a.markTrivially(ctx, key)
	}
	if va, ok := a.objects.attachments.Get(key.Attachment); ok {
		a.objects.search(va.Name)
		if known := a.objects.keyOf(va); known != key {
			a.queue.Add(known) // which volume it is for is known by now
			a.metrics.Waits(time.Now(), key, nil)
			return nil
		}
	}
	// What is kept for the key from here on is for the next time.
	defer a.slots.giveBack(key, a.slots.keptFor(key))
	if key.Volume != "" && a.objects.exclusive(key.Volume) != (key.Node == "") {
		a.rekey(key.Volume)
		a.metrics.Waits(time.Now(), key, nil)
		return nil
	}
	for range maxTurns {
		shot := a.observe(key)
		shot.seen.Draining = a.isDraining()
		decision := publication.Decide(time.Now(), shot.seen, a.policy)
		progressed, err := a.applyAll(ctx, shot, &decision)
		if err != nil {
			return err
		}
		if !progressed {
			a.await(ctx, shot, decision)
			return nil
		}
	}
	a.queue.Add(key) // others first
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
	shot.logWaits(ctx, decision.Waits)
	var waiting []telemetry.Waiting
	for _, w := range decision.Waits {
		waiting = append(waiting, telemetry.Waiting{Attachment: w.Attachment, Detach: detaches[w.Attachment], Reason: w.Reason})
	}
	a.metrics.Waits(time.Now(), shot.key, waiting)
	if !decision.RecheckAt.IsZero() {
		a.queue.AddAfter(shot.key, time.Until(decision.RecheckAt))
	}
}

// applyAll does the steps of a decision. They are for different attachments: one
// that fails does not keep the others from being done. A call that may not begin now
// is one more wait.
func (a *Attacher) applyAll(ctx context.Context, shot snapshot, decision *publication.Decision) (progressed bool, err error) {
	var failed []error
	for _, step := range decision.Steps {
		one := shot.subjects[step.Target()]
		done, no, err := a.apply(ctx, shot, one, step)
		progressed = progressed || done
		if no.reason != "" {
			decision.Wait(publication.Wait{Attachment: one.seen.Name, Reason: no.reason, Until: no.until})
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("VolumeAttachment %s for node %s: %w", one.seen.Name, one.seen.Node, err))
		}
	}
	return progressed, errors.Join(failed...)
}

// apply does one step; done tells whether anything changed by it, no why a call may
// not begin.
func (a *Attacher) apply(ctx context.Context, shot snapshot, one *subject, step publication.Step) (done bool, no refusal, err error) {
	switch s := step.(type) {
	case publication.WriteFinalizers:
		done, err = a.writeFinalizers(ctx, shot.key, one, s)
	case publication.Reread:
		done, err = true, a.reread(ctx, one)
	case publication.CallDriver:
		done, no = a.call(ctx, shot, one, s)
	case publication.RecordAttached:
		done, err = true, a.recordAttached(ctx, one)
	case publication.RecordDetached:
		done, err = true, a.writeStatus(ctx, one.attachment, detachedPatch(one.attachment))
	case publication.RemoveFinalizer:
		done, err = true, a.removeFinalizer(ctx, one)
	case publication.RecordError:
		done, err = true, a.recordError(ctx, one, s)
	case publication.Forget:
		a.calls.forget(one.uid())
		done = true
	default:
		panic(fmt.Sprintf("unknown step %T", step)) // the set is sealed
	}
	return done, no, err
}

// call sends a call to the driver in its own goroutine. The key is woken when it
// has ended; until then the decision knows that it is in flight.
func (a *Attacher) call(ctx context.Context, shot snapshot, one *subject, step publication.CallDriver) (bool, refusal) {
	if a.absence.hold(shot.key, a.controller.Present) {
		return false, refusal{reason: publication.DriverGone}
	}
	taken, no := a.slots.take(time.Now(), want{
		key: shot.key, verb: step.Verb, node: one.seen.Node, suspect: one.record.hung, awaited: shot.seen.Awaited(),
	})
	if taken == nil {
		return false, no
	}
	try := attempt{uid: one.uid(), attachment: one.attachment, volume: one.source.identity, node: one.seen.Node,
		verb: step.Verb, nodeID: step.NodeID, inputs: one.seen.Inputs, attached: one.seen.Attached}
	if !a.admit() {
		a.slots.cancel(taken)
		return false, refusal{}
	}
	if !a.calls.begin(try, shot.seen.Exclusive) {
		a.inFlight.Done()
		a.slots.cancel(taken)
		return false, refusal{}
	}
	logger := klog.FromContext(ctx).WithValues(one.about()...)
	ctx = klog.NewContext(ctx, logger)
	logger.Info(verbs[step.Verb].begins, "call", step.Verb, "nodeID", step.NodeID)
	go func() {
		defer a.inFlight.Done()
		traced, end := trace(ctx, try, a.driver)
		ended := a.send(traced, one, step)
		end(ended.err)
		hung := a.slots.end(time.Now(), taken, ended.err)
		a.finish(logger, try, ended, hung)
		a.queue.Add(shot.key)
		if one.attachment != nil {
			a.wakeAttachment(one.attachment) // the key may be another one by now
		}
	}()
	return true, refusal{}
}

// result is how a call ended.
type result struct {
	publishContext map[string]string
	err            error
	took           time.Duration
}

// finish notes how a call ended.
func (a *Attacher) finish(logger klog.Logger, try attempt, r result, hung bool) {
	a.calls.hung(try.uid, hung)
	if r.err != nil {
		a.calls.fail(try.uid, r.err, time.Now())
		next := a.policy.NextAttempt(string(try.uid), a.calls.of(try.uid).call)
		logger.Error(r.err, verbs[try.verb].failed, "call", try.verb, "outcome", csi.OutcomeOf(r.err), "took", r.took, "nextAttempt", publication.Stamp(next))
		return
	}
	logger.Info(verbs[try.verb].done, "call", try.verb, "took", r.took)
	a.calls.confirm(try.uid, r.publishContext, time.Now())
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
		r.err = csi.Unanswered(ctx, r.err, csi.NoAnswerError{Driver: a.driver, Call: step.Verb.String(), Node: one.seen.Node, Timeout: a.timeout})
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
		a.calls.fail(one.uid(), fmt.Errorf("could not save the publish context: %w", err), time.Now())
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
