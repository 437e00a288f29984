package nodevolume

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
)

// RecordVersion is the version of the records that this agent writes. It reads
// this one and refuses others: a record that is not understood keeps its volume
// in use, and is never guessed at.
const RecordVersion = 1

// Record is one stage, or one publish, on disk. It is written before the driver
// is called and removed after the driver confirmed the way back, so that what
// may be staged is always known.
type Record struct {
	Version int `json:"version"`
	// Kind is "stage" or "publish".
	Kind string `json:"kind"`
	// Driver and Handle are what the driver is called with.
	Driver string `json:"driver"`
	Handle string `json:"handle"`
	// SpecName is the PersistentVolume's name, or that of an inline volume in pod.spec.volumes.
	SpecName string `json:"specName"`
	// Inline: the volume is its pod's own. There is no record of a stage of it.
	Inline bool `json:"inline,omitempty"`
	Block  bool `json:"block,omitempty"`
	// Path is the staging or target path below the root.
	Path string `json:"path"`
	// InUse: it was made under the handshake over node.status.volumesInUse.
	InUse bool `json:"inUse,omitempty"`
	// Guessed: InUse is an assumption. An earlier record that told was torn.
	Guessed bool `json:"guessed,omitempty"`
	// AttachmentUID is that of the VolumeAttachment it was made with.
	AttachmentUID string `json:"attachmentUID,omitempty"`
	// SELinuxLabel is what the driver was told to mount the volume with, empty for none.
	SELinuxLabel string `json:"seLinuxLabel,omitempty"`
	// SolePod: the PersistentVolume's only access mode is ReadWriteOncePod.
	SolePod bool `json:"solePod,omitempty"`
	// BootID is that of the machine when the driver was called.
	BootID string `json:"bootID"`
	// Pod is the one that it was made for.
	Pod RecordPod `json:"pod"`
	// Confirmed: the driver said that it is done.
	Confirmed bool `json:"confirmed"`
	// Leaving: nobody wants it, and the way back has begun.
	Leaving bool `json:"leaving"`
}

// RecordPod is what the way back and its events need to know of a pod.
type RecordPod struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Volume is the name in pod.spec.volumes.
	Volume   string `json:"volume"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// Claim is the name of the claim through which it wants the volume, empty for none.
	Claim    string `json:"claim,omitempty"`
	ClaimUID string `json:"claimUID,omitempty"`
}

// The kinds of records.
const (
	StageKind   = "stage"
	PublishKind = "publish"
)

// After is the record for another call of its kind, where an earlier one may have done its
// work; the zero Record says that there was none. What that one was made under still holds.
func (r Record) After(earlier Record) Record {
	r.Guessed = !r.InUse && earlier.Guessed
	r.InUse = r.InUse || earlier.InUse
	r.AttachmentUID = cmp.Or(r.AttachmentUID, earlier.AttachmentUID)
	return r
}

// Encode is the record as it stands on disk. It is as long whatever Confirmed and Leaving say, so that they can be changed in place: a
// mix of before and after is one of the two, or torn if it was cut inside a mark.
func (r Record) Encode() ([]byte, error) {
	r.Version = RecordVersion
	out, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode %s record of volume %s: %w", r.Kind, r.Handle, err)
	}
	for _, mark := range []string{"confirmed", "leaving"} {
		out = bytes.ReplaceAll(out, []byte("\n  \""+mark+"\": true"), []byte("\n  \""+mark+"\":  true"))
	}
	return append(out, '\n'), nil
}

// ErrTorn says that a record is empty, cut off, or of another version.
var ErrTorn = errors.New("record cannot be read")

// DecodeRecord reads a record. The error wraps ErrTorn.
func DecodeRecord(raw []byte) (Record, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	var r Record
	if err := decoder.Decode(&r); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrTorn, err)
	}
	switch {
	case r.Version != RecordVersion:
		return Record{}, fmt.Errorf("%w: version %d, not %d", ErrTorn, r.Version, RecordVersion)
	case r.Kind != StageKind && r.Kind != PublishKind:
		return Record{}, fmt.Errorf("%w: kind %q", ErrTorn, r.Kind)
	case r.Driver == "" || r.Handle == "" || r.Path == "":
		return Record{}, fmt.Errorf("%w: driver, handle or path missing", ErrTorn)
	case r.Inline && (r.Kind != PublishKind || r.Pod.UID == ""):
		return Record{}, fmt.Errorf("%w: an inline volume that is not published for a pod", ErrTorn)
	case !filepath.IsLocal(r.Path):
		// The driver would be told to unmount it.
		return Record{}, fmt.Errorf("%w: path %q leads out of the root", ErrTorn, r.Path)
	}
	return r, nil
}

// Rebuilt is the phase of what a record found at start-up speaks of. Only a
// record of this boot whose mount still stands is believed; everything else is
// done again, which the CSI spec makes safe, or undone.
func (r Record) Rebuilt(bootID string, mounted Knowledge) Phase {
	sameBoot := r.BootID == bootID && bootID != ""
	if r.Confirmed && !r.Leaving && sameBoot && mounted == Yes {
		return Confirmed
	}
	return Uncertain
}
