package nodeagent

import (
	"context"

	"go.opentelemetry.io/otel/trace"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/telemetry"
)

// volumeTrace is how the spans of a volume relate to the trace of its attach.
type volumeTrace struct {
	// attachment is the UID of the VolumeAttachment that the rest is about.
	attachment string
	// traceparent is that of the VolumeAttachment, or of the span of the wait for it if that has none.
	traceparent string
	// over is set when a pod has the volume: the attach that it waited for is complete. What follows has traces of its own, with a link.
	over bool
}

// traceAttached records the trace that mounts continue, and the span of the wait until the volume was attached. The caller holds mu.
func (m *volumeManager) traceAttached(v *volume, attachment, traceparent string) {
	traces := m.config.Traces
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
	o := m.spanOptions(v, first)
	o.Parent, o.Begin = v.trace.traceparent, first.addedAt
	_, span := traces.Start(context.Background(), "wait for attach", o)
	span.End(nil)
	if v.trace.traceparent == "" {
		v.trace.traceparent = span.Traceparent()
	}
}

func (m *volumeManager) spanOptions(v *volume, p *podVolume) telemetry.SpanOptions {
	o := telemetry.SpanOptions{
		Kind: trace.SpanKindConsumer, Driver: v.driver, Handle: v.handle, PersistentVolume: v.specName(), Node: m.config.NodeName,
	}
	if v.trace.attachment != "" {
		o.Attachment = kube.AttachmentName(v.handle, v.driver, m.config.NodeName)
	}
	if p != nil {
		pod := p.podRef()
		o.PodNamespace, o.PodName, o.PodUID = pod.Namespace, pod.Name, string(pod.UID)
	}
	return o
}

// traced performs a step in a span.
func (m *volumeManager) traced(ctx context.Context, v *volume, step nodevolume.Step, perform func(context.Context) error) error {
	if m.config.Traces == nil {
		return perform(ctx)
	}
	ctx, span := m.startSpan(ctx, v, step)
	err := perform(ctx)
	span.End(err)
	if _, publish := step.(nodevolume.Publish); publish && err == nil {
		m.mu.Lock()
		v.trace.over = true
		m.mu.Unlock()
	}
	return err
}

func (m *volumeManager) startSpan(ctx context.Context, v *volume, step nodevolume.Step) (context.Context, telemetry.Span) {
	m.mu.Lock()
	o := m.spanOptions(v, v.findPod(nodevolume.KeyOf(step)))
	how := v.trace
	m.mu.Unlock()
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
	return m.config.Traces.Start(ctx, name, o)
}
