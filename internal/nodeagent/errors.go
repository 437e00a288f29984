package nodeagent

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/mount"
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

// errNotMounted fails a call that needs a pod's volumes and does not wait for them.
var errNotMounted = errors.New("not all volumes of the pod are mounted")

// waitError returns the error of a WaitMounted that timed out.
func waitError(cause error, uid types.UID, volumes []*VolumeWait) error {
	e := &WaitError{Pod: uid, Volumes: volumes, Cause: cause}
	var texts []string
	for _, v := range volumes {
		texts = append(texts, v.text)
	}
	e.text = explain.NotMounted(string(uid), cause, texts)
	return e
}

// unresolvedWait is the wait of a pod whose claims have not been read.
func (p *pod) unresolvedWait() []*VolumeWait {
	if p.problem == nil {
		return []*VolumeWait{{Reason: ClaimNotReady, text: explain.ClaimsNotRead}}
	}
	return []*VolumeWait{{
		Reason: ClaimNotReady, Since: p.problemSince, Err: p.problem, text: explain.NodeWait{Reason: ClaimNotReady, Detail: p.problem.Error()}.Waits(),
	}}
}

// volumeWait describes the wait of one volume. The caller holds mu.
func (m *volumeManager) volumeWait(w *volumeToMount, v *volume, p *podVolume) *VolumeWait {
	wait := &VolumeWait{Volume: w.volume, text: m.describeWait(w, v, p)}
	if v != nil {
		current := v.waits[w.key()]
		wait.Reason, wait.Since = current.reason, current.since
		if v.attachLimit != nil {
			wait.Err = v.attachLimit
			wait.text += "\n" + v.attachLimit.Error()
		}
	}
	if p != nil && p.problem != nil {
		wait.Err = errors.Join(p.problem, wait.Err)
	}
	return wait
}

// unmountWaitError returns the error of a WaitUnmounted that timed out.
func unmountWaitError(cause error, uid types.UID, left []*VolumeWait) error {
	var texts []string
	for _, wait := range left {
		texts = append(texts, wait.text)
	}
	slices.Sort(texts)
	return &WaitError{
		Pod: uid, Volumes: left, Cause: cause,
		text: explain.NotUnmounted(string(uid), cause, texts),
	}
}

// withRemedy adds what an administrator can do about the error, where that is known.
func (c *Config) withRemedy(err error) error {
	var remedy string
	switch {
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		remedy = explain.GrantAccess(c.NodeName)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		remedy = explain.FreeSpace(c.Root)
	case errors.Is(err, syscall.EROFS):
		remedy = explain.MakeWritable(c.Root)
	case errors.Is(err, mount.ErrSymlinkOutside):
		remedy = explain.ReplaceLink(c.Root)
	default:
		return err
	}
	return fmt.Errorf("%w; remedy: %s", err, remedy)
}
