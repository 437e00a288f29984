package kube

import (
	"encoding/json"
	"fmt"
	"time"

	storagev1 "k8s.io/api/storage/v1"
)

// PublishedElsewhereAnnotation on a VolumeAttachment of an exclusive volume is an Elsewhere. belay-attacher writes it when two lists of the driver have
// had the volume at another node too, and removes it when a list no longer has.
const PublishedElsewhereAnnotation = "belay.dev/published-elsewhere"

// Elsewhere is another node that the driver lists an exclusive volume at.
type Elsewhere struct {
	NodeID string `json:"nodeID"`
	Node   string `json:"node,omitempty"` // that has this ID
	// Since is when the second such list was read, or the first that had the volume at this node instead, and Seen when a list showed it last, as of
	// the last write: it is written again while lists show it.
	Since time.Time `json:"since"`
	Seen  time.Time `json:"seen"`
}

const (
	// ElsewhereAgain is after what time belay-attacher writes it again: the API server deletes events after an hour (--event-ttl).
	ElsewhereAgain = 45 * time.Minute
	// elsewhereCounts is for how long it counts: the driver may be without belay-attacher since, or without its lists.
	elsewhereCounts = 3 * ElsewhereAgain
	// elsewhereAhead is how far in the future its times may be: clocks differ a little.
	elsewhereAhead = 5 * time.Minute
	// MaxNodeID is the length of the longest CSI node ID, in bytes (container-storage-interface/spec v1.12.0 csi.proto NodeGetInfoResponse.node_id).
	MaxNodeID = 256
)

// Encode returns the value of the annotation.
func (e Elsewhere) Encode() string {
	e.Since, e.Seen = e.Since.UTC().Truncate(time.Second), e.Seen.UTC().Truncate(time.Second)
	text, err := json.Marshal(e)
	if err != nil {
		panic(err) // strings and times of this century
	}
	return string(text)
}

// String names the other node.
func (e Elsewhere) String() string {
	if e.Node == "" {
		return fmt.Sprintf("the machine with the node ID %q", e.NodeID)
	}
	return fmt.Sprintf("node %q (node ID %q)", e.Node, e.NodeID)
}

// ElsewhereOf returns at which other node the driver lists the volume of a VolumeAttachment, if that was seen lately, and not in the future.
func ElsewhereOf(va *storagev1.VolumeAttachment, now time.Time) (e Elsewhere, ok bool) {
	if e, ok = elsewhereOf(va); !ok || !SeenLately(e.Seen, now) || e.Since.After(now.Add(elsewhereAhead)) {
		return Elsewhere{}, false
	}
	return e, true
}

// SeenLately reports whether what a list showed at that time counts.
func SeenLately(seen, now time.Time) bool {
	return now.Sub(seen) <= elsewhereCounts && !seen.After(now.Add(elsewhereAhead))
}

// elsewhereOf is ElsewhereOf, whenever it was seen.
func elsewhereOf(va *storagev1.VolumeAttachment) (e Elsewhere, ok bool) {
	text := va.Annotations[PublishedElsewhereAnnotation]
	ok = text != "" && json.Unmarshal([]byte(text), &e) == nil && e.NodeID != "" && len(e.NodeID) <= MaxNodeID && len(e.Node) <= MaxName
	return e, ok
}
