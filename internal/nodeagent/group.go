package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/telemetry"
)

// When a pod is told that giving its volume to its fsGroup takes long, and how often again, as kubelet does.
const (
	defaultSlowGroup      = 30 * time.Second
	defaultSlowGroupAgain = time.Minute
)

// errReleased ends the work for a pod that does not want the volume any more.
var errReleased = errors.New("the pod does not want the volume any more")

// groupByAgent says whether the agent gives the volume's files to the pod's fsGroup itself
// (KEP-1682). A driver with VOLUME_MOUNT_GROUP does it (KEP-2317).
func (c callable) groupByAgent() bool {
	w := c.want
	if w.pod.FSGroup == nil || w.block || w.readOnly || c.has.VolumeMountGroup {
		return false
	}
	switch c.rules.groupPolicy {
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

// giveToGroup changes group and mode of a published volume's files. It is a part of the
// publish, which is confirmed only after it: whatever cuts it short, it is done again.
func (m *volumeManager) giveToGroup(ctx context.Context, c callable, r nodevolume.Record) error {
	w, change := c.want, &mount.GroupChange{GID: int(*c.want.pod.FSGroup)}
	if policy := w.pod.FSGroupChangePolicy; policy != nil && *policy == corev1.FSGroupChangeOnRootMismatch {
		// Where that cannot be told, the change itself will say why.
		if fits, err := m.root.HasGroup(r.Path, change.GID); err == nil && fits {
			return nil
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var beside sync.WaitGroup
	beside.Go(func() { m.endWhenReleased(ctx, w.pod.UID, cancel) })
	beside.Go(func() { m.emitSlowGroup(ctx, w, r, change) })
	begun := time.Now()
	m.showGroupChange(w, change)
	err := m.config.giveToGroup(m.root, ctx, r.Path, change)
	m.showGroupChange(w, nil)
	m.metrics.Operation(telemetry.NodeOperation{
		Driver: w.driver, Migrated: w.migrated, Name: telemetry.OperationGroup, Failed: err != nil, Took: time.Since(begun),
	})
	cancel(nil)
	beside.Wait()

	if err != nil {
		return fmt.Errorf("applyFSGroup failed for vol %s: %w", w.handle, err)
	}
	m.log.Info("Changed ownership of the volume to the pod's fsGroup", "volume", w.name(), "pod", w.pod.UID, "group", change.GID,
		"files", change.Seen.Load(), "refused", change.Refused.Load(), "took", time.Since(begun).String())
	if refused := change.Refused.Load(); refused > 0 {
		m.events.Eventf(w.pod.ref(), corev1.EventTypeWarning, "VolumePermissionChangeRefused",
			"The file system of volume %q refused %d changes for fsGroup %d; the pod gets it as it is. The first: %v",
			w.specName, refused, change.GID, change.FirstRefusal)
	}
	return nil
}

// showGroupChange lets those who wait for the pod's volume see how far its change is.
func (m *volumeManager) showGroupChange(w *wantedVolume, change *mount.GroupChange) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, _ := m.publicationOf(w); p != nil {
		p.groupChange = change
	}
}

// endWhenReleased ends the work for a pod when its owner releases the pod.
func (m *volumeManager) endWhenReleased(ctx context.Context, uid types.UID, end context.CancelCauseFunc) {
	for {
		p, known := m.pods.look(uid)
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

// emitSlowGroup tells the pod that the change takes long and how far it is, in kubelet's words.
func (m *volumeManager) emitSlowGroup(ctx context.Context, w *wantedVolume, r nodevolume.Record, change *mount.GroupChange) {
	const help = "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods"
	where := strings.TrimPrefix(r.Path, "pods/")
	text := fmt.Sprintf("Setting volume ownership for %s is taking longer than expected, consider using OnRootMismatch - %s", where, help)
	wait := time.NewTimer(m.config.slowGroup)
	defer wait.Stop()
	for {
		select {
		case <-wait.C:
		case <-ctx.Done():
			return
		}
		if text == "" {
			text = fmt.Sprintf("Setting volume ownership for %s, processed %d files.", where, change.Seen.Load())
		}
		m.events.Event(w.pod.ref(), corev1.EventTypeWarning, "VolumePermissionChangeInProgress", text)
		text = ""
		wait.Reset(m.config.slowGroupAgain)
	}
}
