// Package fenceagent runs programs of the ClusterLabs fence-agents family (https://github.com/ClusterLabs/fence-agents), and commands with
// the same contract (docs/fence-command.md). It asks for the power state, switches off, and never reboots.
package fenceagent
