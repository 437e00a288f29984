package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/nodevolume"
)

// ClaimNotReady is the reason of a pod whose claims or PersistentVolumes could not all be read, or fit together.
const ClaimNotReady nodevolume.Reason = "ClaimNotReady"

// ErrPodNotWanted says that a pod was never set, or was removed.
var ErrPodNotWanted = errors.New("the pod is not wanted on this node")

// RefusedError says that a pod can never be mounted by this agent.
type RefusedError struct{ why string }

func (e *RefusedError) Error() string { return e.why }

func refuse(format string, args ...any) error {
	return &RefusedError{why: fmt.Sprintf(format, args...)}
}

// WaitError is what belay.dev/belay/node.WaitError documents.
type WaitError struct {
	// Pod is whose volumes were waited for.
	Pod types.UID
	// Volumes are those that are not as they were waited for, one of them at least.
	Volumes []*VolumeWait
	// Cause is why the wait ended: that of the caller's context.
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

// VolumeWait is one volume of a pod that has to wait.
type VolumeWait struct {
	// Volume is its name in pod.spec.volumes; empty if it is not known yet which volumes the pod has.
	Volume string
	// Reason is what it waits for; empty while it is being worked on.
	Reason nodevolume.Reason
	// Since is since when it does; zero if that is not known.
	Since time.Time
	// Err is the last failure, or nil; an AttachLimitError may be in it.
	Err error

	text string
}

func (w *VolumeWait) Error() string { return w.text }

// Unwrap returns Err.
func (w *VolumeWait) Unwrap() error { return w.Err }

// errNotMounted ends what needs a pod's volumes and does not wait for them.
var errNotMounted = errors.New("not all volumes of the pod are mounted")

// waitError is the error of a wait for mounts that ended without them.
func waitError(cause error, uid types.UID, volumes []*VolumeWait) error {
	e := &WaitError{Pod: uid, Volumes: volumes, Cause: cause}
	e.text = errors.Join(e.Unwrap()...).Error()
	return e
}

// lookedUp is the wait of a pod of which it is not known which volumes it has.
func (p *pod) lookedUp() []*VolumeWait {
	if p.problem == nil {
		return []*VolumeWait{{Reason: ClaimNotReady, text: "the pod's claims have not been read yet"}}
	}
	return []*VolumeWait{{
		Reason: ClaimNotReady, Since: p.problemSince, Err: p.problem, text: explain.NodeWait{Reason: ClaimNotReady, Detail: p.problem.Error()}.Waits(),
	}}
}

// volumeWait is the wait of one volume, as words say it. The caller holds mu.
func (m *volumeManager) volumeWait(w *wantedVolume, v *volume, p *podVolume, words string) *VolumeWait {
	wait := &VolumeWait{Volume: w.volume, text: words}
	if v != nil {
		hold := v.holds[w.key()]
		wait.Reason, wait.Since = hold.reason, hold.since
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

// stillPublished is the error of a wait for the end of all mounts that ctx has ended.
func stillPublished(ctx context.Context, uid types.UID, left []*VolumeWait) error {
	var words []string
	for _, wait := range left {
		words = append(words, wait.text)
	}
	slices.Sort(words)
	return &WaitError{
		Pod: uid, Volumes: left, Cause: context.Cause(ctx),
		text: fmt.Sprintf("wait for the unmount of the volumes of pod %s: %v; still published: %s", uid, context.Cause(ctx), strings.Join(words, ", ")),
	}
}
