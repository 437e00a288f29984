package main

import "github.com/grafana/grafana-foundation-sdk/go/dashboard"

// attacher is the dashboard of belay-attacher and the driver behind it.
func attacher() (dashboard.Dashboard, error) {
	b := newBoard("belay-attacher", "belay / Attacher and driver", "Calls of belay-attacher to the controller of a CSI driver: what is in flight, what hangs, what fails, and whether the storage agrees.")
	b.choice("job", "Job", "label_values(attacher_calls_limit, job)")
	b.row("Now")
	b.value(value{title: "Leaders", unit: number, good: 1, description: "Leading attachers: one for each driver.", expr: `count(attacher_calls_limit{job=~"$job"})`})
	b.value(value{title: "Use of --worker-threads", unit: ratio, bad: 1, expr: `sum(attacher_calls_in_flight{job=~"$job"}) / sum(attacher_calls_limit{job=~"$job"})`,
		description: "Calls in flight, as a part of those allowed. At 100 % for long: the driver is slower than its work."})
	b.value(value{title: "Hanging calls", unit: number, bad: 1, expr: `sum(attacher_calls_hanging{job=~"$job"})`,
		description: "Calls in flight for volumes whose last call was not answered in time."})
	b.value(value{title: "Oldest attach", unit: seconds, bad: 900, expr: `max(attacher_attachment_pending_longest_seconds{job=~"$job", operation="attach"})`,
		description: "Age of the oldest VolumeAttachment that is not attached yet."})
	b.value(value{title: "Oldest detach", unit: seconds, bad: 900, expr: `max(attacher_attachment_pending_longest_seconds{job=~"$job", operation="detach"})`,
		description: "Time since the oldest VolumeAttachment that is not detached yet was deleted."})
	b.value(value{title: "Full nodes", unit: number, bad: 1, expr: `sum(attacher_held_back{job=~"$job", scope="node"})`,
		description: "Nodes for which the driver answered RESOURCE_EXHAUSTED."})

	b.row("What waits")
	b.stack("Waiting VolumeAttachments by reason", "kubectl belay runbook REASON prints what is safe to do.", number,
		query{`sum by (operation, reason) (attacher_attachments_blocked{job=~"$job"}) > 0`, "{{operation}} {{reason}}"})
	b.graph("Longest wait by reason", "kubectl belay runbook REASON prints what is safe to do.", seconds,
		query{`max by (operation, reason) (attacher_attachment_blocked_longest_seconds{job=~"$job"}) > 0`, "{{operation}} {{reason}}"})
	b.stack("Calls in flight", "Calls to drivers that have not returned.", number,
		query{`sum by (operation) (attacher_calls_in_flight{job=~"$job"})`, "{{operation}}"})
	b.graph("Held back", "Full nodes and busy volumes, which get one call at a time, and hanging calls.", number,
		query{`sum by (scope) (attacher_held_back{job=~"$job"})`, "{{scope}}"},
		query{`sum(attacher_calls_hanging{job=~"$job"})`, "hanging calls"})

	b.row("Driver")
	const calls = `method_name=~".*Controller.*", job=~"$job"`
	b.graph("Calls", "By method and result.", perSec,
		query{shortMethod(`sum by (driver_name, method_name, grpc_status_code) (rate(csi_sidecar_operations_seconds_count{` + calls + `}[$__rate_interval]))`), "{{driver_name}} {{method}} {{grpc_status_code}}"})
	b.durations("Duration of calls", "Of all results. The first bucket ends at 100 ms, so faster calls show as 95 ms.", "csi_sidecar_operations_seconds", "{"+calls+"}", methodName)
	b.graph("Errors", "Answers other than OK.", perSec,
		query{shortMethod(`sum by (method_name, grpc_status_code) (rate(csi_sidecar_operations_seconds_count{` + calls + `, grpc_status_code!="OK"}[$__rate_interval]))`), "{{method}} {{grpc_status_code}}"})
	b.graph("Queues", "Entries that wait for a worker.", number, query{`sum by (name) (workqueue_depth{job=~"$job", name=~"csi-attacher-.*|belay-attacher-.*"})`, "{{name}}"})

	b.row("Comparison with the driver's list")
	b.graph("Disagreements", "Confirmed: in two lists, and acted on. Another client changes the storage.", number,
		query{`sum by (drift, result) (increase(attacher_reconcile_drifts_total{job=~"$job", result=~"confirmed|repeated"}[1h]))`, "{{drift}} {{result}}"})
	b.graph("Comparisons", "failed: the list could not be read completely.", perSec,
		query{`sum by (result) (rate(attacher_reconcile_duration_seconds_count{job=~"$job"}[$__rate_interval]))`, "{{result}}"})
	b.process("attacher_calls_limit")
	return b.Build()
}
