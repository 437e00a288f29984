package telemetry

import (
	"testing"
)

// TestHostileTraceSettingsStopNothing: no OTEL_* variable, which a cluster may set for all its pods, keeps a program from starting: OpenTelemetry's
// specification says that what is not understood is warned of and ignored.
func TestHostileTraceSettingsStopNothing(t *testing.T) {
	for _, test := range []struct {
		name, value string
		traces      bool
	}{
		{"OTEL_RESOURCE_ATTRIBUTES", "team", true}, // without that attribute
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", false},
		{"OTEL_TRACES_EXPORTER", "zipkin", false},
		{"OTEL_TRACES_EXPORTER", "None", false},
	} {
		t.Run(test.name+"="+test.value, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			t.Setenv(test.name, test.value)
			traces, stop := StartTraces(t.Context(), "belay-controller", "v1")
			defer stop()
			if (traces != nil) != test.traces {
				t.Errorf("traces: %v, want %v", traces != nil, test.traces)
			}
		})
	}
}
