package nodeagent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/telemetry"
)

// A slow fsGroup change emits its first event after defaultFSGroupEventDelay, and then one per interval, as in kubelet.
const (
	defaultFSGroupEventDelay    = 30 * time.Second
	defaultFSGroupEventInterval = time.Minute
)

// errReleased aborts the work for a pod that no longer needs the volume.
var errReleased = errors.New("the pod no longer needs the volume")

// agentAppliesFSGroup reports whether the agent applies the pod's fsGroup (KEP-1682), and not a driver with VOLUME_MOUNT_GROUP (KEP-2317).
func (c driverCall) agentAppliesFSGroup() bool {
	w := c.toMount
	if w.pod.FSGroup == nil || w.block || w.readOnly || c.capabilities.VolumeMountGroup {
		return false
	}
	switch c.rules.GroupPolicy {
	case storagev1.NoneFSGroupPolicy:
		return false
	case storagev1.FileFSGroupPolicy:
		return true
	default:
		return w.fsType != "" && slices.ContainsFunc(w.accessModes, func(m corev1.PersistentVolumeAccessMode) bool {
			return m == corev1.ReadWriteOnce || m == corev1.ReadWriteOncePod
		})
	}
}

// applyFSGroup changes group and mode of a published volume's files. The publish is confirmed only after it, so an interrupted change is
// repeated.
func (m *volumeManager) applyFSGroup(ctx context.Context, c driverCall, r nodevolume.Record) error {
	w, change := c.toMount, &mount.GroupChange{GID: int(*c.toMount.pod.FSGroup)}
	if policy := w.pod.FSGroupChangePolicy; policy != nil && *policy == corev1.FSGroupChangeOnRootMismatch {
		// After an error the change itself reports why.
		if fits, err := m.root.HasGroup(r.Path, change.GID); err == nil && fits {
			return nil
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	running.Go(func() { m.endWhenReleased(ctx, w.pod.UID, cancel) })
	running.Go(func() { m.emitFSGroupProgress(ctx, w, r, change) })
	begun := time.Now()
	m.showGroupChange(w, change)
	err := m.config.changeGroup(m.root, ctx, r.Path, change)
	m.showGroupChange(w, nil)
	m.metrics.Operation(telemetry.NodeOperation{
		Driver: w.driver, Migrated: w.migrated, Name: telemetry.OperationGroup, Failed: err != nil, Took: time.Since(begun),
	})
	cancel(nil)
	running.Wait()

	if err != nil {
		return explain.OwnershipNotSet(w.handle, err)
	}
	m.log.Info("Changed ownership of the volume to the pod's fsGroup", append(namesOf(r).values(), "group", change.GID,
		"files", change.Seen.Load(), "refused", change.Refused.Load(), "took", time.Since(begun).String())...)
	if refused := change.Refused.Load(); refused > 0 {
		m.events.Event(w.pod.ref(), corev1.EventTypeWarning, explain.VolumePermissionChangeRefused,
			explain.OwnershipRefused(w.specName, refused, change.GID, change.FirstRefusal))
	}
	return nil
}

// showGroupChange shows the progress of an fsGroup change to WaitMounted; nil ends it.
func (m *volumeManager) showGroupChange(w *volumeToMount, change *mount.GroupChange) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, _ := m.findPodVolume(w); p != nil {
		p.groupChange = change
	}
}

// endWhenReleased cancels the work for a pod when the pod is removed.
func (m *volumeManager) endWhenReleased(ctx context.Context, uid types.UID, end context.CancelCauseFunc) {
	for {
		p, known := m.pods.snapshot(uid)
		if !known || p.removed {
			end(errReleased)
			return
		}
		select {
		case <-p.changed:
		case <-ctx.Done():
			return
		}
	}
}

// emitFSGroupProgress emits kubelet's events about the progress of a slow change.
func (m *volumeManager) emitFSGroupProgress(ctx context.Context, w *volumeToMount, r nodevolume.Record, change *mount.GroupChange) {
	where := strings.TrimPrefix(r.Path, "pods/")
	text := explain.OwnershipSlow(where)
	wait := time.NewTimer(m.config.fsGroupEventDelay)
	defer wait.Stop()
	for {
		select {
		case <-wait.C:
		case <-ctx.Done():
			return
		}
		if text == "" {
			text = explain.OwnershipProgress(where, change.Seen.Load())
		}
		m.events.Event(w.pod.ref(), corev1.EventTypeWarning, explain.VolumePermissionChangeInProgress, text)
		text = ""
		wait.Reset(m.config.fsGroupEventInterval)
	}
}
