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
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/publication"
)

// act does the steps of a decision but the call. They are for different attachments: one
// that fails does not keep the others from being done. The decision gets which attachments wait for that.
func (a *Attacher) act(ctx context.Context, shot snapshot, decision *publication.Decision) (progressed bool, err error) {
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
func (a *Attacher) finish(logger logr.Logger, try attempt, r result) {
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
func (a *Attacher) logFailure(logger logr.Logger, try attempt, err error, values ...any) {
	next := a.policy.NextAttempt(string(try.uid), a.calls.of(try.uid).call)
	logger.Error(err, verbs[try.verb].failed, append(values, "nextAttempt", publication.FormatTime(next))...)
}

// refuse notes an attempt that failed before anything was sent.
func (a *Attacher) refuse(ctx context.Context, one *subject, try attempt, err error) {
	a.calls.refuse(try, err, time.Now())
	a.logFailure(log.FromContext(ctx).WithValues(one.about()...), try, err)
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
	silent := log.IntoContext(ctx, logr.Discard())
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
		a.logFailure(log.FromContext(ctx).WithValues(one.about()...), attempt{uid: one.uid(), verb: publication.Publish}, err)
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
