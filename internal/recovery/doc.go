// Package recovery is the shell of [fencing]: it finds nodes that are lost, has them proven to have ended, and lets their volumes go. It
// keeps its state in NodeFences, so that it can be stopped at any moment.
//
// Three parts share the work, and may run in one process or apart, each with rights of its own. The detector listens to the leases of the
// nodes and creates NodeFences; it reads no Secret and changes nothing else. The fencer runs the fence agents with their Secrets; it changes
// nothing but the answers in a NodeFence and the state of a FenceSource. The actor decides (fencing.Decide) and changes Nodes, pods and
// VolumeAttachments; it has no Secret either. The NodeFence is all that they say to each other: the actor stores a question or a command
// with a nonce, the fencer answers with the nonce.
package recovery
