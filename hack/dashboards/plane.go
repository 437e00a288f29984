package main

import "github.com/grafana/grafana-foundation-sdk/go/dashboard"

// plane is the dashboard of belay-controller.
func plane() (dashboard.Dashboard, error) {
	b := newBoard("belay-plane", "belay / Plane", "Attach and detach: what waits and why, how long each phase of a VolumeAttachment takes, and what belay-controller writes.")
	b.row("Now")
	b.value(value{title: "Leaders", unit: number, good: 1, description: "Exactly one belay-controller leads.",
		expr: `sum(leader_election_master_status{name="belay-controller"})`})
	b.value(value{title: "Halted", unit: number, bad: 1, description: "1: another attach/detach controller runs, and belay-controller writes nothing.",
		expr: "max(attachdetach_halted)"})
	b.value(value{title: "Lease age", unit: seconds, bad: 8, description: "Time since the leader renewed its lease. It renews it every 2 s by default, and loses it after 15 s.",
		expr: "max(attachdetach_lease_age_seconds)"})
	b.value(value{title: "Waiting volumes", unit: number, expr: "sum(volumes_blocked) or vector(0)", description: "Volumes that wait for attach or detach. kubectl belay stuck lists them."})
	b.value(value{title: "Longest wait", unit: seconds, bad: 600, expr: "max(volume_blocked_longest_seconds) or vector(0)", description: "The longest current wait."})
	b.value(value{title: "Attached", unit: number, expr: `sum(attachdetach_controller_total_volumes{state="actual_state_of_world"}) or vector(0)`,
		description: "Pairs of a volume and a node that are, or may be, attached."})

	b.row("What waits")
	b.stack("Waiting volumes by reason", "kubectl belay runbook REASON prints what is safe to do.", number, query{"sum by (reason) (volumes_blocked)", "{{reason}}"})
	b.graph("Longest wait by reason", "kubectl belay runbook REASON prints what is safe to do.", seconds, query{"max by (reason) (volume_blocked_longest_seconds)", "{{reason}}"})
	b.durations("Waits that ended, by reason", "How long they lasted.", "volume_blocked_seconds", "", "reason")
	b.graph("Volumes wanted and attached", "Attached above wanted for long: orphans, which take slots of their nodes (kubectl belay orphans).", number,
		query{`sum by (plugin_name) (attachdetach_controller_total_volumes{state="desired_state_of_world"})`, "{{plugin_name}} wanted"},
		query{`sum by (plugin_name) (attachdetach_controller_total_volumes{state="actual_state_of_world"})`, "{{plugin_name}} attached"})

	b.row("Moves")
	b.durations("Duration of each phase", "create, report, release and delete are belay's or the node's; attach and detach are the attacher's and the driver's.",
		"volumeattachment_phase_seconds", "", "phase")
	b.graph("Attaches and detaches", "Answers of the attachers.", perSec,
		query{`sum by (operation_name, status) (rate(storage_operation_duration_seconds_count{operation_name=~"volume_attach|volume_detach"}[$__rate_interval]))`, "{{operation_name}} {{status}}"})
	b.graph("Detaches by force", "Of volumes that may have been in use, in the last hour.", number,
		query{"sum by (reason) (increase(attach_detach_controller_attachdetach_controller_forced_detaches[1h]))", "{{reason}}"})
	b.graph("Foreign writes", "What only the leader may write, by other components, in the last hour. It should be 0.", number,
		query{"sum by (resource) (increase(attachdetach_foreign_writes_total[1h]))", "{{resource}}"})

	b.row("Controller")
	b.graph("API writes", "By result; code 0: no answer.", perSec,
		query{"sum by (resource, verb, code) (rate(attachdetach_api_writes_total[$__rate_interval]))", "{{verb}} {{resource}} {{code}}"})
	b.graph("Reconciliation of a volume", "A worker's time, and the time in the queue before.", seconds,
		query{`histogram_quantile(0.95, sum by (le) (rate(controller_runtime_reconcile_time_seconds_bucket{controller="attachdetach"}[$__rate_interval])))`, "reconcile p95"},
		query{`histogram_quantile(0.95, sum by (le) (rate(workqueue_queue_duration_seconds_bucket{name="attachdetach"}[$__rate_interval])))`, "queue p95"})
	b.process(`leader_election_master_status{name="belay-controller"}`)
	return b.Build()
}
