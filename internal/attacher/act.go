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
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/publication"
)

// act carries out the steps of a decision except calls to the driver, and passes the turn before. Each step is for another
// attachment, so a failed step does not stop the others. Attachments whose step failed get a wait in the decision.
func (a *Attacher) act(ctx context.Context, snap snapshot, decision *publication.Decision, pass func()) (progressed bool, err error) {
	var failed []error
	for _, step := range decision.Steps {
		if _, call := step.(publication.CallDriver); call {
			continue
		}
		pass()
		subj := snap.subjects[step.Target()]
		done, err := a.apply(ctx, snap, subj, step)
		progressed = progressed || done
		if err != nil {
			decision.Waits = slices.DeleteFunc(decision.Waits, func(w publication.Wait) bool { return w.Attachment == subj.seen.Name })
			decision.Wait(publication.Wait{Attachment: subj.seen.Name, Reason: publication.RecordingFailed})
			failed = append(failed, fmt.Errorf("VolumeAttachment %s for node %s: %w", subj.seen.Name, subj.seen.Node, err))
		}
	}
	return progressed, errors.Join(failed...)
}

// apply carries out one step; done reports whether anything changed.
func (a *Attacher) apply(ctx context.Context, snap snapshot, subj *subject, step publication.Step) (done bool, err error) {
	switch s := step.(type) {
	case publication.WriteFinalizers:
		return a.writeFinalizers(ctx, snap.key, subj, s)
	case publication.Reread:
		return true, a.reread(ctx, subj)
	case publication.AskNodes:
		answer := a.inUseAt(ctx, subj.source.handle, s.NodeID, subj.nodesThen(s.NodeID)...)
		a.calls.answered(subj.uid(), s.NodeID, publication.NodesAnswer{InUse: answer.known, At: time.Now()})
		if answer.known != decision.No {
			log.FromContext(ctx).Info("Not repeating the detach from the node that had the volume before", append(subj.logValues(), "nodeID", s.NodeID, "reason", answer.why)...)
		}
		return true, nil
	case publication.CancelCall:
		a.calls.cancel(subj.uid())
		return true, nil
	case publication.RecordAttached:
		return true, a.recordAttached(ctx, subj)
	case publication.RecordDetached:
		return true, a.writeStatus(ctx, subj.attachment, detachedPatch(subj.attachment))
	case publication.RemoveFinalizer:
		return true, a.removeFinalizer(ctx, subj)
	case publication.RecordError:
		return true, a.recordError(ctx, subj, s)
	case publication.Forget:
		a.calls.forget(subj.uid())
		return true, nil
	default:
		panic(fmt.Sprintf("unknown step %T", step)) // programmer error
	}
}

// result is the outcome of a call.
type result struct {
	publishContext map[string]string
	err            error
	took           time.Duration
}

// finish logs and records the outcome of a call.
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
	if a.calls.confirm(try.uid, r.publishContext, time.Now()) {
		a.metrics.TrustedDetach()
	}
}

// logFailure logs a failed attempt and the time of the next one.
func (a *Attacher) logFailure(logger logr.Logger, try attempt, err error, values ...any) {
	next := a.policy.NextAttempt(string(try.uid), a.calls.of(try.uid).call)
	logger.Error(err, verbs[try.verb].failed, append(values, "nextAttempt", publication.FormatTime(next))...)
}

// refuse records an attempt that failed before a call was sent.
func (a *Attacher) refuse(ctx context.Context, subj *subject, try attempt, err error) {
	a.calls.refuse(try, err, time.Now())
	a.logFailure(log.FromContext(ctx).WithValues(subj.logValues()...), try, err)
}

// errDeleted is the cause when a call is abandoned because its attachment is being deleted.
var errDeleted = errors.New("abandoned, because the VolumeAttachment was deleted")

// send reads the secrets and makes one CSI call.
func (a *Attacher) send(ctx context.Context, subj *subject, step publication.CallDriver) (r result) {
	secrets, err := a.secretsOf(ctx, subj.uid(), subj.secretFor(step.Verb))
	if apierrors.IsNotFound(err) && subj.source.secret != nil {
		secrets, err = a.secrets(ctx, subj.source.secret) // the recorded one is gone
	}
	if err != nil {
		return result{err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout) // does not cover reading the secrets
	defer cancel()
	ctx, call := a.traces.StartCall(ctx, "csi.v1.Controller", csiMethods[step.Verb])
	begun := time.Now()
	defer func() {
		r.took = time.Since(begun)
		if r.err != nil && errors.Is(context.Cause(ctx), errDeleted) {
			r.err = fmt.Errorf("%w: %w", errDeleted, r.err)
		}
		r.err = csi.Unanswered(ctx, r.err, csi.NoAnswerError{Driver: a.driver, Call: step.Verb.String(), Node: a.nodeOf(subj, step.NodeID), Timeout: a.timeout})
		call.End(r.err)
	}()
	if step.Verb == publication.Publish {
		request := subj.source.publishRequest(step.NodeID, a.defaultFSType)
		request.Secrets = secrets
		r.publishContext, r.err = a.controller.Publish(ctx, request)
		return r
	}
	r.err = a.controller.Unpublish(ctx, csi.UnpublishRequest{
		VolumeHandle: subj.source.handle, NodeID: step.NodeID, Secrets: secrets, Migrated: subj.source.migrated,
	})
	return r
}

// secretsOf returns the secrets for a call: those read shortly before, or else the current ones.
func (a *Attacher) secretsOf(ctx context.Context, uid types.UID, ref *corev1.SecretReference) (csi.Secrets, error) {
	if secrets, ok := a.pendingSecrets.take(uid, ref); ok {
		return secrets, nil
	}
	return a.secrets(ctx, ref)
}

// secrets reads the Secret that a volume refers to. It is read for each call and not cached.
func (a *Attacher) secrets(ctx context.Context, ref *corev1.SecretReference) (csi.Secrets, error) {
	if ref == nil {
		return nil, nil
	}
	// client-go logs response bodies at -v=8 with the context's logger.
	silent := log.IntoContext(ctx, logr.Discard())
	var secret *corev1.Secret
	err := a.request(silent, func(ctx context.Context) (err error) {
		secret, err = a.client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		return err
	})
	if err != nil {
		return nil, explain.SecretNotLoaded(ref.Namespace, ref.Name, err)
	}
	found := make(csi.Secrets, len(secret.Data))
	for key, value := range secret.Data {
		found[key] = string(value)
	}
	return found, nil
}

// recordAttached writes the result of a successful ControllerPublishVolume to the status.
func (a *Attacher) recordAttached(ctx context.Context, subj *subject) error {
	ctx, span := a.startStep(ctx, subj, "record volume as attached")
	err := a.writeStatus(ctx, subj.attachment, attachedPatch(subj.attachment, subj.record.publishContext))
	span.End(err)
	if apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) {
		// The API server will never accept this publish context. An error in the status lets a person fix the cause.
		err = explain.PublishContextNotSaved(err)
		a.calls.fail(subj.uid(), err, time.Now())
		a.logFailure(log.FromContext(ctx).WithValues(subj.logValues()...), attempt{uid: subj.uid(), verb: publication.Publish}, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("record as attached: %w", err)
	}
	a.calls.recorded(subj.uid())
	return nil
}

func (a *Attacher) recordError(ctx context.Context, subj *subject, step publication.RecordError) error {
	stored := &storagev1.VolumeError{Message: step.Message, Time: metav1.Now()}
	if code, ok := csi.Code(subj.record.err); ok && step.OfCall && step.Verb == publication.Publish {
		number := int32(code)
		stored.ErrorCode = &number
	}
	if err := a.writeStatus(ctx, subj.attachment, errorPatch(subj.attachment, step.Verb, stored)); err != nil {
		return fmt.Errorf("record the error %q: %w", step.Message, err)
	}
	if step.OfCall {
		a.calls.recorded(subj.uid())
	}
	return nil
}

// clone returns a copy, never nil.
func clone(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for key, value := range maps.All(m) {
		out[key] = value
	}
	return out
}
