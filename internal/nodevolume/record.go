package nodevolume

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
)

// RecordVersion is the version of the records that this agent writes. Other versions are refused: a record that cannot be read
// keeps its volume in use, and its content is never guessed.
const RecordVersion = 1

// Record is one stage or publish on disk. It is written before the driver is called and removed after the driver confirmed the
// unpublish or unstage, so that whatever may be mounted is known.
type Record struct {
	Version int `json:"version"`
	// Kind is "stage" or "publish".
	Kind string `json:"kind"`
	// Driver and Handle are what the driver is called with.
	Driver string `json:"driver"`
	Handle string `json:"handle"`
	// SpecName is the PersistentVolume's name, or that of an inline volume in pod.spec.volumes.
	SpecName string `json:"specName"`
	// Inline: the volume is its pod's own. Such a volume has no record of a stage.
	Inline bool `json:"inline,omitempty"`
	Block  bool `json:"block,omitempty"`
	// Path is the staging or target path below the root.
	Path string `json:"path"`
	// Root is the root directory in requests to the driver, as it was configured when the first was sent, if symbolic links lead from
	// there to the root: the driver has to be called with the same path until the record is gone. Empty stands for the resolved root, as
	// for all records of earlier versions.
	Root string `json:"root,omitempty"`
	// InUse: the record was made under the volumesInUse handshake.
	InUse bool `json:"inUse,omitempty"`
	// Guessed: InUse is an assumption, because an earlier record was torn.
	Guessed bool `json:"guessed,omitempty"`
	// AttachmentUID is the UID of the VolumeAttachment with which the mount was made.
	AttachmentUID string `json:"attachmentUID,omitempty"`
	// SELinuxLabel is the label that the driver was asked to mount the volume with, empty for none.
	SELinuxLabel string `json:"seLinuxLabel,omitempty"`
	// SolePod: the PersistentVolume has only the access mode ReadWriteOncePod.
	SolePod bool `json:"solePod,omitempty"`
	// BootID is the boot ID of the machine when the driver was called.
	BootID string `json:"bootID"`
	// Pod is the pod for which the mount was made.
	Pod RecordPod `json:"pod"`
	// Confirmed: the driver confirmed the call.
	Confirmed bool `json:"confirmed"`
	// Leaving: no pod wants the mount, and its unpublish or unstage has begun.
	Leaving bool `json:"leaving"`
}

// RecordPod is what an unmount and its events need to know about a pod.
type RecordPod struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Volume is the name in pod.spec.volumes.
	Volume   string `json:"volume"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// Claim is the name of the pod's claim for the volume, empty for none.
	Claim    string `json:"claim,omitempty"`
	ClaimUID string `json:"claimUID,omitempty"`
}

const (
	StageKind   = "stage"
	PublishKind = "publish"
)

// After adds to the record for another call what an earlier record of the same mount holds. The zero Record stands for no earlier
// one.
func (r Record) After(earlier Record) Record {
	r.Guessed = !r.InUse && earlier.Guessed
	r.InUse = r.InUse || earlier.InUse
	r.AttachmentUID = cmp.Or(r.AttachmentUID, earlier.AttachmentUID)
	if earlier.Path == r.Path {
		r.Root = earlier.Root
	}
	return r
}

// Encode returns the content of the file. Its length does not depend on Confirmed and Leaving, so that these can be changed in
// place: a mix of the old and the new content is one of the two, or is torn if it was cut inside a mark.
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

// ErrTorn is returned for a record that is empty, cut off, or of another version.
var ErrTorn = errors.New("record cannot be read")

// DecodeRecord reads a record. The error wraps ErrTorn.
func DecodeRecord(raw []byte) (Record, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	var r Record
	if err := decoder.Decode(&r); err != nil {
		return Record{}, fmt.Errorf("%w: not valid JSON: %w", ErrTorn, err)
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
	case r.Root != "" && (!filepath.IsAbs(r.Root) || filepath.Clean(r.Root) != r.Root):
		return Record{}, fmt.Errorf("%w: root %q is not an absolute path", ErrTorn, r.Root)
	case !filepath.IsLocal(r.Path):
		// The driver would be asked to unmount it.
		return Record{}, fmt.Errorf("%w: path %q leads out of the root", ErrTorn, r.Path)
	}
	return r, nil
}

// Rebuilt returns the phase for a record found at start-up. Only a confirmed record of this boot whose mount still exists is
// trusted; anything else is called again, which is safe according to the CSI specification, or undone.
func (r Record) Rebuilt(bootID string, mounted Knowledge) Phase {
	sameBoot := r.BootID == bootID && bootID != ""
	if r.Confirmed && !r.Leaving && sameBoot && mounted == Yes {
		return Confirmed
	}
	return Uncertain
}
