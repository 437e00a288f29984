package nodeagent

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/nodevolume"
)

// ClaimNotReady is the reason while a pod's claims or PersistentVolumes cannot all be read, or do not match.
const ClaimNotReady = explain.ClaimNotReady

// ErrPodNotWanted reports that a pod was never set, or was removed.
var ErrPodNotWanted = errors.New("the pod is not wanted on this node")

// RefusedError reports that the agent can never mount the volumes of a pod.
type RefusedError struct{ why string }

func (e *RefusedError) Error() string { return e.why }

func refuse(why string) error { return &RefusedError{why: why} }

// WaitError is documented at belay.dev/belay/node.WaitError.
type WaitError struct {
	// Pod is the UID of the pod.
	Pod types.UID
	// Volumes are the volumes that are not mounted, or not unmounted, yet; at least one.
	Volumes []*VolumeWait
	// Cause is the cause of the caller's context, or ErrClosed.
	Cause error

	text string
}

func (e *WaitError) Error() string { return e.text }

// Unwrap returns the cause and all of Volumes.
func (e *WaitError) Unwrap() []error {
	all := []error{e.Cause}
	for _, v := range e.Volumes {
		all = append(all, v)
	}
	return all
}

// VolumeWait is a volume of a pod that is not mounted, or not unmounted, yet.
type VolumeWait struct {
	// Volume is its name in pod.spec.volumes; empty while the pod's claims have not been read.
	Volume string
	// Reason is what the volume waits for; empty while a step is running.
	Reason nodevolume.Reason
	// Since is when the wait began; zero if unknown.
	Since time.Time
	// Err is the last failure, or nil. It may wrap an AttachLimitError.
	Err error

	text string
}

func (w *VolumeWait) Error() string { return w.text }

// Unwrap returns Err.
func (w *VolumeWait) Unwrap() error { return w.Err }

// ErrClosed is returned by Run after Close, and is the cause of a WaitError once Close or Run has returned.
var ErrClosed = errors.New("the node agent was closed")

// errRunTwice rejects a second Run: the first one releases everything when it returns.
var errRunTwice = errors.New("Run was already called; create another node agent")

// errReleased aborts the work for a pod that no longer needs the volume.
var errReleased = errors.New("the pod no longer needs the volume")

// errOutdated aborts a step whose decision no longer holds.
var errOutdated = errors.New("the VolumeAttachment may have been recreated since the decision")

// affinityError reports that the volume's node affinity excludes this node.
type affinityError struct {
	volume string
	err    error
}

func (e *affinityError) Error() string {
	return explain.AffinityDiffers(e.volume, e.err)
}

func (e *affinityError) Unwrap() error { return e.err }

// errRuntimeNotQueried is why containers may run before the first answer of the runtime.
var errRuntimeNotQueried = errors.New("the container runtime has not been queried yet")

// AttachLimitReason is the reason with which kubelet rejects a pod whose volumes exceed the node's attach limit (KEP-4876).
const AttachLimitReason = explain.VolumeAttachmentLimitExceeded

// AttachLimitError reports that the storage system refused to attach another volume to this node.
type AttachLimitError struct {
	Volume  string // the PersistentVolume's name
	Driver  string
	Problem string // the attachError's message
}

// Error returns the attachError with kubelet's prefix.
func (e *AttachLimitError) Error() string {
	return explain.AttachLimit(e.Volume, e.Driver, e.Problem)
}
