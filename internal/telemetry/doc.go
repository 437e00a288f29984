// Package telemetry has the metrics of belay's programs: upstream's under upstream's names, so that dashboards keep working, and
// belay's own. docs/metrics.md lists them. It also has their traces, which docs/traces.md describes.
package telemetry
