// Package telemetry holds the metrics of belay's programs: upstream's by upstream's
// names, so that dashboards go on working, and belay's own. docs/metrics.md lists them.
package telemetry
