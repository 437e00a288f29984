package main

import "github.com/grafana/grafana-foundation-sdk/go/dashboard"

// recovery is the dashboard of recovery from dead nodes.
func recovery() (dashboard.Dashboard, error) {
	b := newBoard("belay-recovery", "belay / Recovery", "Which nodes could be fenced, which are silent and why they are not fenced, and what each fence waits for.")
	b.row("Now")
	b.value(value{title: "Detectors", unit: number, good: 1, description: "Leading detectors.", expr: `sum(leader_election_master_status{name=~"belay-recovery|belay-recovery-detector"})`})
	b.value(value{title: "Fencers", unit: number, good: 1, description: "Leading fencers.", expr: `sum(leader_election_master_status{name=~"belay-recovery|belay-recovery-fencer"})`})
	b.value(value{title: "Could be fenced", unit: number, description: "Nodes whose power switch answers and is theirs.", expr: "sum(max by (node) (recovery_fence_source_ready))"})
	b.value(value{title: "Could not", unit: number, bad: 1, description: "kubectl get fencesources has the reason.", expr: "count(max by (node) (recovery_fence_source_ready)) - sum(max by (node) (recovery_fence_source_ready))"})
	b.value(value{title: "Silent, not fenced", unit: number, bad: 1, description: "Nodes that a brake, an opt-out or a sign of life keeps from being fenced.", expr: "count(max by (node) (recovery_node_not_fenced)) or vector(0)"})
	b.value(value{title: "Fences", unit: number, description: "Nodes that are being fenced.", expr: "count(max by (node) (recovery_fence_waits)) or vector(0)"})
	b.row("History")
	b.stack("What fences wait for", "kubectl belay runbook REASON prints what is safe to do.", number, query{"max by (node, reason) (recovery_fence_waits)", "{{node}} {{reason}}"})
	b.stack("Silent nodes that are not fenced", "kubectl belay runbook REASON prints what is safe to do.", number, query{"max by (node, reason) (recovery_node_not_fenced)", "{{node}} {{reason}}"})
	b.durations("Time until each phase", "Since the NodeFence was created.", "recovery_phase_reached_seconds", "", "phase")
	b.graph("Phases reached", "Fences that entered each phase, in the last hour.", number,
		query{"sum by (phase) (increase(recovery_phase_reached_seconds_count[1h]))", "{{phase}}"})
	b.stack("Nodes that could not be fenced", "Their power switch does not answer, refuses the login, or is not theirs.", number,
		query{"1 - max by (node) (recovery_fence_source_ready) > 0", "{{node}}"})
	b.graph("Detaches by force", "Of volumes of fenced nodes, in the last hour.", number,
		query{`sum by (reason) (increase(attach_detach_controller_attachdetach_controller_forced_detaches{reason=~"fenced|storage-fenced|out-of-service"}[1h]))`, "{{reason}}"})
	b.process("recovery_phase_reached_seconds_count")
	return b.Build()
}
