package attachdetach

import (
	"context"
	"errors"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/telemetry"
)

// An attach is one trace: its root lasts from when a pod needs the volume until the volume is reported as attached, and belay-attacher
// and belay-node continue it through the annotation of the VolumeAttachment. docs/traces.md has all spans.

// Keys of spans that are kept open; a VolumeAttachment's name may come again, its UID does not.
func attachSpan(name string) string   { return "attach " + name }
func detachSpan(uid types.UID) string { return "detach " + string(uid) }

// spanOptions describes a span of this volume at a node.
func (w *work) spanOptions(node attachment.NodeName, attachmentName string) telemetry.SpanOptions {
	o := telemetry.SpanOptions{
		Driver: w.key.Driver, Handle: w.key.Handle, PersistentVolume: w.now.volumeNameAt(node), Attachment: attachmentName, Node: string(node),
	}
	if pods := w.now.pods[node]; len(pods) > 0 { // the oldest
		o.PodNamespace, o.PodName, o.PodUID = pods[0].Namespace, pods[0].Name, string(pods[0].UID)
	}
	return o
}

// startAttach starts the root span of an attach, and the span of the request that creates the VolumeAttachment. It writes the context of
// the root to the object. requested ends the request, and the root too if it failed.
func (w *work) startAttach(ctx context.Context, s attachment.Attach, va *storagev1.VolumeAttachment) (_ context.Context, requested func(error)) {
	if w.traces == nil {
		return ctx, func(error) {}
	}
	o := w.spanOptions(s.Node, va.Name)
	since, blockedBy := w.metrics.WantedSince(w.key, s.Node)
	o.Begin = since
	ctx, root := w.traces.Start(ctx, "attach", o)
	if blockedBy != "" {
		_, wait := w.traces.Start(ctx, "wait until the volume may be attached", telemetry.SpanOptions{Begin: since, Reason: string(blockedBy)})
		wait.End(nil)
	}
	if va.Annotations == nil {
		va.Annotations = map[string]string{}
	}
	va.Annotations[kube.TraceparentAnnotation] = root.Traceparent()
	w.traces.Keep(attachSpan(va.Name), root)
	ctx, create := w.traces.Start(ctx, "create VolumeAttachment", telemetry.SpanOptions{})
	return ctx, func(err error) {
		create.End(err)
		if err != nil {
			w.traces.Take(attachSpan(va.Name)).End(err)
		}
	}
}

// startReport starts the span of the request that reports the volume. reported ends it, and the trace of the attach if the volume is
// reported now.
func (w *work) startReport(ctx context.Context, s attachment.Report) (_ context.Context, reported func(stored bool, err error)) {
	if w.traces == nil {
		return ctx, func(bool, error) {}
	}
	root := w.traces.Kept(attachSpan(s.Attachment.Name)).Traceparent()
	if root == "" { // another process began the attach, or it is reported again
		return ctx, func(bool, error) {}
	}
	ctx, span := w.traces.Start(ctx, "report volume as attached", telemetry.SpanOptions{Parent: root, Node: string(s.Node)})
	return ctx, func(stored bool, err error) {
		span.End(err)
		if stored {
			w.traces.Take(attachSpan(s.Attachment.Name)).End(nil)
		}
	}
}

// startDetach starts the root span of a detach, which lasts until the VolumeAttachment is gone. It is a trace of its own, linked to that
// of the attach: hours may lie between the two. requested ends the span if the request failed.
func (w *work) startDetach(ctx context.Context, s attachment.ForceDetach) (_ context.Context, requested func(error)) {
	if w.traces == nil {
		return ctx, func(error) {}
	}
	w.traces.Take(attachSpan(s.Attachment.Name)).EndAs("detached before the volume was reported as attached")
	o := w.spanOptions(s.Node, s.Attachment.Name)
	if va, ok := w.state.attachments.Get(s.Attachment.Name); ok && string(va.UID) == s.Attachment.UID {
		o.Link = va.Annotations[kube.TraceparentAnnotation]
	}
	if s.Authority != nil {
		o.Reason = s.Authority.String()
	}
	ctx, span := w.traces.Start(ctx, "detach", o)
	key := detachSpan(types.UID(s.Attachment.UID))
	w.traces.Keep(key, span)
	return ctx, func(err error) {
		if err != nil {
			w.traces.Take(key).End(err)
		}
	}
}

var errAttachmentDeleted = errors.New("the VolumeAttachment was deleted before the volume was reported as attached")

// traceDeleted ends the spans of an attachment that is gone.
func (c *Controller) traceDeleted(va *storagev1.VolumeAttachment) {
	if c.traces == nil {
		return
	}
	c.traces.Take(detachSpan(va.UID)).End(nil)
	if root := c.traces.Kept(attachSpan(va.Name)); root.Traceparent() != "" && root.Traceparent() == va.Annotations[kube.TraceparentAnnotation] {
		c.traces.Take(attachSpan(va.Name)).End(errAttachmentDeleted)
	}
}
