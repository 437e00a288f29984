package attacher

import (
	"context"

	"go.opentelemetry.io/otel/trace"

	"belay.dev/belay/internal/publication"
	"belay.dev/belay/internal/telemetry"
)

// spanOptions describes a span for an attachment. An attach continues the trace of the controller, which waits for it. A detach begins
// one of its own, with a link: the deletion of an object cannot write an annotation.
func (a *Attacher) spanOptions(subj *subject, verb publication.Verb) telemetry.SpanOptions {
	o := telemetry.SpanOptions{
		Kind: trace.SpanKindConsumer, Driver: a.driver, Handle: subj.source.handle, Attachment: subj.seen.Name, Node: subj.seen.Node,
	}
	if subj.source.pv != nil {
		o.PersistentVolume = subj.source.pv.Name
	}
	if verb == publication.Publish {
		o.Parent = traceparent(subj.attachment)
	} else {
		o.Link = traceparent(subj.attachment)
	}
	return o
}

// startSpan starts the span of an attempt, including the reading of its secrets.
func (a *Attacher) startSpan(ctx context.Context, subj *subject, try attempt) (context.Context, telemetry.Span) {
	if a.traces == nil {
		return ctx, telemetry.Span{}
	}
	o := a.spanOptions(subj, try.verb)
	o.Node, o.NodeID = a.nodeOf(subj, try.nodeID), try.nodeID
	return a.traces.Start(ctx, spanNames[try.verb], o)
}

// startStep starts the span of a step of an attach, if the controller traces it. Without that the step would be a trace of its own.
func (a *Attacher) startStep(ctx context.Context, subj *subject, name string) (context.Context, telemetry.Span) {
	if a.traces == nil || traceparent(subj.attachment) == "" {
		return ctx, telemetry.Span{}
	}
	return a.traces.Start(ctx, name, a.spanOptions(subj, publication.Publish))
}

// spanNames are the terms of the glossary. The controller's spans are called "attach" and "detach".
var spanNames = map[publication.Verb]string{publication.Publish: "attach by driver", publication.Unpublish: "detach by driver"}

var csiMethods = map[publication.Verb]string{
	publication.Publish: "ControllerPublishVolume", publication.Unpublish: "ControllerUnpublishVolume",
}
