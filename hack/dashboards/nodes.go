package main

import "github.com/grafana/grafana-foundation-sdk/go/dashboard"

// nodes is the dashboard of belay-node and of the slots of nodes. Most of it also works with kubelets.
func nodes() (dashboard.Dashboard, error) {
	b := newBoard("belay-nodes", "belay / Nodes and slots", "What each node stages and publishes, what its driver answers, and how many volumes it has. Panels without nodeagent_ metrics also show kubelets.")
	b.choice("instance", "Node", "label_values(volume_manager_total_volumes, instance)")
	b.row("Now")
	b.value(value{title: "Oldest mount", unit: seconds, bad: 900, expr: `max(nodeagent_volume_pending_longest_seconds{instance=~"$instance", operation="mount"})`,
		description: "The longest current wait of a pod for its volume on a node."})
	b.value(value{title: "Oldest unmount", unit: seconds, bad: 900, expr: `max(nodeagent_volume_pending_longest_seconds{instance=~"$instance", operation="unmount"})`,
		description: "The longest current wait for an unmount."})
	b.value(value{title: "Waiting volumes", unit: number, expr: `sum(nodeagent_volumes_blocked{instance=~"$instance"}) or vector(0)`, description: "Volumes that wait on nodes."})
	b.value(value{title: "Unknown mounts", unit: number, bad: 1, expr: `sum(reconstruct_volume_operations_errors_total{instance=~"$instance"})`,
		description: "Mounts that nodes could not identify when their agent started."})
	b.value(value{title: "Full nodes", unit: number, bad: 1, expr: `sum(attacher_held_back{scope="node"})`, description: "Nodes for which the driver answered RESOURCE_EXHAUSTED."})
	b.value(value{title: "Published", unit: number, expr: `sum(volume_manager_total_volumes{instance=~"$instance", state="actual_state_of_world"})`,
		description: "Pairs of a pod and a volume."})

	b.row("Slots")
	b.graph("Attachable volumes of each node", "That pods name, on the twenty nodes with most. kubectl belay map shows how many a node could have.", number,
		query{"topk(20, sum by (node) (storage_count_attachable_volumes_in_use))", "{{node}}"})
	b.graph("Volumes of pods", "Pairs of a pod and a volume.", number,
		query{`sum(volume_manager_total_volumes{instance=~"$instance", state="desired_state_of_world"})`, "wanted"},
		query{`sum(volume_manager_total_volumes{instance=~"$instance", state="actual_state_of_world"})`, "published"})

	b.row("What waits")
	b.stack("Waiting volumes by reason", "kubectl belay runbook REASON prints what is safe to do.", number,
		query{`sum by (reason) (nodeagent_volumes_blocked{instance=~"$instance"})`, "{{reason}}"})
	b.graph("Longest wait by node and reason", "The ten longest.", seconds,
		query{`topk(10, max by (instance, reason) (nodeagent_volume_blocked_longest_seconds{instance=~"$instance"}))`, "{{instance}} {{reason}}"})
	b.durations("From the pod to its published volume", "With all waits and failures.",
		"volume_operation_total_seconds", `{instance=~"$instance", operation_name="overall_volume_mount"}`, "plugin_name")
	b.durations("Waits that ended, by reason", "How long they lasted.", "nodeagent_volume_blocked_seconds", `{instance=~"$instance"}`, "reason")

	b.row("Driver")
	b.durations("Duration of calls", "Of all results. The first bucket ends at 100 ms, so faster calls show as 95 ms.", "csi_operations_seconds", `{instance=~"$instance"}`, methodName)
	b.graph("Errors", "Answers other than OK; DeadlineExceeded: none in time.", perSec,
		query{shortMethod(`sum by (instance, method_name, grpc_status_code) (rate(csi_operations_seconds_count{instance=~"$instance", grpc_status_code!="OK"}[$__rate_interval]))`), "{{instance}} {{method}} {{grpc_status_code}}"})
	b.graph("Operations", "Attempts, by result.", perSec,
		query{`sum by (operation_name, status) (rate(storage_operation_duration_seconds_count{instance=~"$instance", operation_name!~"volume_(attach|detach)"}[$__rate_interval]))`, "{{operation_name}} {{status}}"})
	b.graph("Drivers", "Registration sockets of all nodes, and those whose driver is registered.", number,
		query{`sum(plugin_manager_total_plugins{instance=~"$instance", state="desired_state_of_world"})`, "sockets"},
		query{`sum(plugin_manager_total_plugins{instance=~"$instance", state="actual_state_of_world"})`, "registered"})
	b.process(`volume_manager_total_volumes{instance=~"$instance"}`)
	return b.Build()
}
