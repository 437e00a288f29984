package main

import "github.com/grafana/grafana-foundation-sdk/go/dashboard"

// volume is the dashboard of one claim. No metric of belay has a label with a volume: with 100,000 volumes they would be too many
// series. So this shows what the node of the volume reports about the claim.
func volume() (dashboard.Dashboard, error) {
	b := newBoard("belay-volume", "belay / One volume", "Which node has the volume of a claim, how full it is, and whether the driver reports it as healthy. `kubectl belay explain pvc/NAME` says what it waits for.")
	b.single("namespace", "Namespace", "label_values(kubelet_volume_stats_capacity_bytes, namespace)")
	b.single("claim", "Claim", `label_values(kubelet_volume_stats_capacity_bytes{namespace="$namespace"}, persistentvolumeclaim)`)
	const of = `{namespace="$namespace", persistentvolumeclaim="$claim"}`
	b.row("Now")
	b.value(value{title: "Nodes that have it", unit: number, expr: "count(kubelet_volume_stats_capacity_bytes" + of + ")", description: "Nodes on which it is published."})
	b.value(value{title: "Size", unit: bytes, expr: "max(kubelet_volume_stats_capacity_bytes" + of + ")", description: "Size of the file system."})
	b.value(value{title: "Used", unit: ratio, bad: 0.9, expr: "max(kubelet_volume_stats_used_bytes" + of + " / kubelet_volume_stats_capacity_bytes" + of + ")", description: "Part of the size that is used."})
	b.value(value{title: "Inodes used", unit: ratio, bad: 0.9, expr: "max(kubelet_volume_stats_inodes_used" + of + " / kubelet_volume_stats_inodes" + of + ")", description: "Part of the inodes that is used."})
	b.row("History")
	b.stack("Where it is", "Each area is a node that has the volume. A gap: it is moving, or nothing uses it.", number,
		query{"count by (instance) (kubelet_volume_stats_capacity_bytes" + of + ")", "{{instance}}"})
	b.graph("Space", "", bytes,
		query{"max(kubelet_volume_stats_capacity_bytes" + of + ")", "size"},
		query{"max(kubelet_volume_stats_used_bytes" + of + ")", "used"},
		query{"max(kubelet_volume_stats_available_bytes" + of + ")", "available"})
	b.graph("Inodes", "", number,
		query{"max(kubelet_volume_stats_inodes" + of + ")", "inodes"},
		query{"max(kubelet_volume_stats_inodes_used" + of + ")", "used"},
		query{"max(kubelet_volume_stats_inodes_free" + of + ")", "free"})
	b.graph("What volumes wait for on its nodes", "All volumes of the nodes that have it.", seconds,
		query{"max by (instance, reason) (nodeagent_volume_blocked_longest_seconds and on (instance) kubelet_volume_stats_capacity_bytes" + of + ")", "{{instance}} {{reason}}"})
	return b.Build()
}
