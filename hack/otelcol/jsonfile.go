package main

import (
	"context"
	"fmt"
	"os"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// jsonFileConfig configures an exporter that appends each batch to a file, as one line of OTLP's JSON.
type jsonFileConfig struct {
	Path string `mapstructure:"path"`
}

type jsonFile struct {
	path string

	mu   sync.Mutex
	file *os.File
}

func newJSONFileFactory() exporter.Factory {
	return exporter.NewFactory(component.MustNewType("jsonfile"), func() component.Config { return &jsonFileConfig{} },
		exporter.WithTraces(func(_ context.Context, _ exporter.Settings, config component.Config) (exporter.Traces, error) {
			return &jsonFile{path: config.(*jsonFileConfig).Path}, nil
		}, component.StabilityLevelDevelopment))
}

func (j *jsonFile) Start(context.Context, component.Host) (err error) {
	if j.file, err = os.OpenFile(j.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
		return fmt.Errorf("open the file of the traces: %w", err)
	}
	return nil
}

func (j *jsonFile) Shutdown(context.Context) error { return j.file.Close() }

func (j *jsonFile) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

func (j *jsonFile) ConsumeTraces(_ context.Context, traces ptrace.Traces) error {
	line, err := (&ptrace.JSONMarshaler{}).MarshalTraces(traces)
	if err != nil {
		return fmt.Errorf("encode the traces: %w", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, err = j.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write the traces: %w", err)
	}
	return nil
}
