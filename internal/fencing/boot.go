package fencing

import (
	"strings"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/identity"
)

// Knowledge is [decision.Knowledge].
type Knowledge = decision.Knowledge

// The values of Knowledge.
const (
	Unknown = decision.Unknown
	No      = decision.No
	Yes     = decision.Yes
)

// Boot is one run of one machine under one Node object. Evidence, fences and proofs are about a Boot, never of a node's name. An empty
// field is unknown.
type Boot struct {
	Node    string // metadata.name
	NodeUID string // metadata.uid
	ID      string // status.nodeInfo.bootID, new at each boot
	Machine string // status.nodeInfo.systemUUID
}

// MachineID returns the one form of a system UUID in which a Boot has it, as kubelets, BMCs and people write it in different ways; empty for
// one that identifies no machine.
func MachineID(uuid string) string { return strings.ToLower(identity.Of(uuid)) }

// Complete reports whether all is known that evidence has to match. An incomplete Boot is never fenced.
func (b Boot) Complete() bool {
	return b.Node != "" && b.NodeUID != "" && b.ID != "" && b.Machine != ""
}

// Relation is what a Node object says about an earlier boot.
type Relation uint8

const (
	// RelationUnknown: a part of the identity is missing on either side.
	RelationUnknown Relation = iota
	// SameBoot: the boot that was recorded.
	SameBoot
	// Rebooted: the same machine runs another boot, so the recorded one has ended.
	Rebooted
	// OtherMachine: another machine uses the name. It says nothing about the recorded one, which may still write.
	OtherMachine
)

// Since compares the boot that a Node shows now with an earlier one.
func (b Boot) Since(earlier Boot) Relation {
	switch {
	case b.Machine == "" || b.ID == "" || earlier.Machine == "" || earlier.ID == "":
		return RelationUnknown
	case b.Machine != earlier.Machine:
		return OtherMachine
	case b.ID != earlier.ID:
		return Rebooted
	}
	return SameBoot
}

// Replaces reports whether the boot is known to be of another machine than an earlier one.
func (b Boot) Replaces(earlier Boot) bool { return b.Since(earlier) == OtherMachine }
