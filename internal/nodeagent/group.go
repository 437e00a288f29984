package nodeagent

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/telemetry"
)

// fsGroups changes the files of published volumes to the fsGroup of their pods.
type fsGroups struct {
	*volumeSet

	config  Config
	log     logr.Logger
	root    *mount.Root
	pods    *podManager
	reports *reports
}

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
func (g *fsGroups) applyFSGroup(ctx context.Context, c driverCall, r nodevolume.Record) error {
	w, change := c.toMount, &mount.GroupChange{GID: int(*c.toMount.pod.FSGroup)}
	if policy := w.pod.FSGroupChangePolicy; policy != nil && *policy == corev1.FSGroupChangeOnRootMismatch {
		// After an error the change itself reports why.
		if fits, err := g.root.HasGroup(r.Path, change.GID); err == nil && fits {
			return nil
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	running.Go(func() { g.endWhenReleased(ctx, w.pod.UID, cancel) })
	running.Go(func() { g.emitFSGroupProgress(ctx, w, r, change) })
	begun := time.Now()
	g.showGroupChange(w, change)
	err := g.config.changeGroup(g.root, ctx, r.Path, change)
	g.showGroupChange(w, nil)
	g.reports.metrics.Operation(telemetry.NodeOperation{
		Driver: w.driver, Migrated: w.migrated, Name: telemetry.OperationGroup, Failed: err != nil, Took: time.Since(begun),
	})
	cancel(nil)
	running.Wait()

	if err != nil {
		return explain.OwnershipNotSet(w.handle, err)
	}
	g.log.Info("Changed ownership of the volume to the pod's fsGroup", append(namesOf(r).values(), "group", change.GID,
		"files", change.Seen.Load(), "refused", change.Refused.Load(), "took", time.Since(begun).String())...)
	if refused := change.Refused.Load(); refused > 0 {
		g.reports.events.Event(w.pod.ref(), corev1.EventTypeWarning, explain.VolumePermissionChangeRefused,
			explain.OwnershipRefused(w.specName, refused, change.GID, change.FirstRefusal))
	}
	return nil
}

// showGroupChange shows the progress of an fsGroup change to WaitMounted; nil ends it.
func (g *fsGroups) showGroupChange(w *volumeToMount, change *mount.GroupChange) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p, _ := g.findPodVolume(w); p != nil {
		p.groupChange = change
	}
}

// endWhenReleased cancels the work for a pod when the pod is removed.
func (g *fsGroups) endWhenReleased(ctx context.Context, uid types.UID, end context.CancelCauseFunc) {
	for {
		p, known := g.pods.snapshot(uid)
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
func (g *fsGroups) emitFSGroupProgress(ctx context.Context, w *volumeToMount, r nodevolume.Record, change *mount.GroupChange) {
	where := strings.TrimPrefix(r.Path, "pods/")
	text := explain.OwnershipSlow(where)
	wait := time.NewTimer(g.config.fsGroupEventDelay)
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
		g.reports.events.Event(w.pod.ref(), corev1.EventTypeWarning, explain.VolumePermissionChangeInProgress, text)
		text = ""
		wait.Reset(g.config.fsGroupEventInterval)
	}
}
