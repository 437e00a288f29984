// Package csi hides how belay talks to a CSI driver: the gRPC services and their messages, the connection, and what a gRPC error
// means for the state of a volume. Its callers see requests, replies and an Outcome.
package csi
