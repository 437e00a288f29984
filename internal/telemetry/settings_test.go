package telemetry

import (
	"testing"
)

// TestHostileTraceSettingsStopNothing: no OTEL_* variable, which a cluster may set for all its pods, keeps a program from starting: OpenTelemetry's
// specification says that what is not understood is warned of and ignored.
func TestHostileTraceSettingsStopNothing(t *testing.T) {
	for name, value := range map[string]string{
		"OTEL_RESOURCE_ATTRIBUTES":    "team",
		"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
		"OTEL_TRACES_EXPORTER":        "zipkin",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			t.Setenv(name, value)
			_, stop, err := StartTraces(t.Context(), "belay-controller", "v1")
			if err != nil {
				t.Errorf("%s=%s: the program does not start: %v", name, value, err)
				return
			}
			stop()
		})
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_TRACES_EXPORTER", "None")
	if _, _, err := StartTraces(t.Context(), "belay-controller", "v1"); err != nil {
		t.Errorf("None is not none: %v", err)
	}
}
