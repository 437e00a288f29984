package nodeagent

import (
	"context"

	"go.opentelemetry.io/otel/trace"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/telemetry"
)

// traceAttached records the trace that mounts continue, and the span of the wait until the volume was attached. The caller holds mu.
func (r *reports) traceAttached(v *volume, attachment, traceparent string) {
	traces := r.config.Traces
	if traces == nil || attachment == "" || v.trace.attachment == attachment {
		return
	}
	v.trace = volumeTrace{attachment: attachment, traceparent: telemetry.Traceparent(traceparent), over: v.state.Stage.Phase != nodevolume.Absent}
	var first *podVolume
	for _, p := range v.pods {
		v.trace.over = v.trace.over || p.Phase != nodevolume.Absent
		if p.toMount != nil && (first == nil || p.addedAt.Before(first.addedAt)) {
			first = p
		}
	}
	if v.trace.over || first == nil {
		return
	}
	o := r.spanOptions(v, first)
	o.Parent, o.Begin = v.trace.traceparent, first.addedAt
	_, span := traces.Start(context.Background(), "wait for attach", o)
	span.End(nil)
	if v.trace.traceparent == "" {
		v.trace.traceparent = span.Traceparent()
	}
}

func (r *reports) spanOptions(v *volume, p *podVolume) telemetry.SpanOptions {
	o := telemetry.SpanOptions{
		Kind: trace.SpanKindConsumer, Driver: v.driver, Handle: v.handle, PersistentVolume: v.specName(), Node: r.config.NodeName,
	}
	if v.trace.attachment != "" {
		o.Attachment = kube.AttachmentName(v.handle, v.driver, r.config.NodeName)
	}
	if p != nil {
		pod := p.podRef()
		o.PodNamespace, o.PodName, o.PodUID = pod.Namespace, pod.Name, string(pod.UID)
	}
	return o
}

// traced performs a step in a span.
func (r *reports) traced(ctx context.Context, v *volume, step nodevolume.Step, perform func(context.Context) error) error {
	if r.config.Traces == nil {
		return perform(ctx)
	}
	ctx, span := r.startSpan(ctx, v, step)
	err := perform(ctx)
	span.End(err)
	if _, publish := step.(nodevolume.Publish); publish && err == nil {
		r.mu.Lock()
		v.trace.over = true
		r.mu.Unlock()
	}
	return err
}

func (r *reports) startSpan(ctx context.Context, v *volume, step nodevolume.Step) (context.Context, telemetry.Span) {
	r.mu.Lock()
	o := r.spanOptions(v, v.findPod(nodevolume.KeyOf(step)))
	how := v.trace
	r.mu.Unlock()
	var name string
	switch step.(type) {
	case nodevolume.StageVolume:
		name = "stage volume"
	case nodevolume.Publish:
		name = "publish volume"
	case nodevolume.Unpublish:
		name, how.over = "unpublish volume", true
	default:
		name, how.over = "unstage volume", true
	}
	if how.over {
		o.Link = how.traceparent
	} else {
		o.Parent = how.traceparent
	}
	return r.config.Traces.Start(ctx, name, o)
}
