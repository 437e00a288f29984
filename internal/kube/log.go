package kube

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	"belay.dev/belay/internal/decision"
)

// LimitLog returns the logger with a limit on each of its values: errors of drivers and of the API server quote what other clients wrote.
func LimitLog(logger logr.Logger) logr.Logger {
	return logger.WithSink(limitedSink{logger.WithCallDepth(1).GetSink()})
}

// limitedSink applies decision.Text to texts and errors.
type limitedSink struct{ logr.LogSink }

func (s limitedSink) Info(level int, message string, values ...any) {
	s.LogSink.Info(level, message, limited(values)...)
}

func (s limitedSink) Error(err error, message string, values ...any) {
	s.LogSink.Error(limitedError(err), message, limited(values)...)
}

func (s limitedSink) WithValues(values ...any) logr.LogSink {
	return limitedSink{s.LogSink.WithValues(limited(values)...)}
}

func (s limitedSink) WithName(name string) logr.LogSink { return limitedSink{s.LogSink.WithName(name)} }

func (s limitedSink) WithCallDepth(depth int) logr.LogSink {
	if inner, ok := s.LogSink.(logr.CallDepthLogSink); ok {
		return limitedSink{inner.WithCallDepth(depth)}
	}
	return s
}

// limited returns keys and values with a limit on the values. The caller's are not changed.
func limited(values []any) []any {
	kept := make([]any, len(values))
	for i, value := range values {
		kept[i] = limitedValue(value)
	}
	return kept
}

func limitedValue(value any) any {
	if err, ok := value.(error); ok {
		return limitedError(err)
	}
	if v := reflect.ValueOf(value); v.Kind() == reflect.String && v.Len() > decision.MaxText {
		return decision.Text(v.String())
	}
	return value
}

func limitedError(err error) error {
	if err == nil {
		return nil
	}
	if text := err.Error(); len(text) > decision.MaxText {
		return errors.New(decision.Text(text))
	}
	return err
}

// LimitEvents returns the recorder with a limit on the messages: an event that is larger than the API server accepts is lost.
func LimitEvents(recorder record.EventRecorder) record.EventRecorder {
	return limitedRecorder{recorder}
}

type limitedRecorder struct{ record.EventRecorder }

func (r limitedRecorder) Event(object runtime.Object, kind, reason, message string) {
	r.EventRecorder.Event(object, kind, reason, decision.Text(message))
}

func (r limitedRecorder) Eventf(object runtime.Object, kind, reason, format string, values ...any) {
	r.Event(object, kind, reason, fmt.Sprintf(format, values...))
}

func (r limitedRecorder) AnnotatedEventf(object runtime.Object, annotations map[string]string, kind, reason, format string, values ...any) {
	r.EventRecorder.AnnotatedEventf(object, annotations, kind, reason, "%s", decision.Text(fmt.Sprintf(format, values...)))
}
