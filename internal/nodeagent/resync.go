package nodeagent

import (
	"context"
	"maps"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// wasEdited reports whether more than the status of a pod has changed.
func wasEdited(was, is *corev1.Pod) bool {
	return was.Generation != is.Generation || !maps.Equal(was.Annotations, is.Annotations) || !maps.Equal(was.Labels, is.Labels)
}

// resync reads the claims of a pod periodically: a node may not watch them, so this is how it finds an expanded volume of a running pod.
func (m *podManager) resync(ctx context.Context, uid types.UID) {
	m.mu.Lock()
	p := m.known[uid]
	if p == nil || p.removed || len(p.toMount) == 0 && !p.resolved {
		m.mu.Unlock()
		return
	}
	if left := time.Until(p.syncAt); left > 0 {
		// The queue keeps only the earliest time per key: it may have replaced that of the resync.
		m.queue.AddAfter(uid, left)
		m.mu.Unlock()
		return
	}
	version := "0" // from the watch cache: a short delay does not matter
	if p.syncAt.IsZero() {
		version = "" // the next resync is a whole period away
	}
	m.syncLater(uid, p)
	volumes := p.toMount
	m.mu.Unlock()
	for _, w := range volumes {
		if !m.on.mayExpand(w) {
			continue
		}
		if err := m.on.readSize(ctx, w, version); err != nil && ctx.Err() == nil {
			m.log.V(1).Info("Failed to read the size of the PersistentVolumeClaim", append(m.logValues(uid), "claim", klog.KRef(w.pod.Namespace, w.claim.name), "volume", w.specName, "err", err)...)
		}
	}
}

// syncLater schedules the next resync. The caller holds mu.
func (m *podManager) syncLater(uid types.UID, p *pod) {
	pause := m.schedule.batch(syncPause(m.config.SyncPeriod, rand.Float64()), m.config.SyncPeriod) //nolint:gosec // spreads reads
	p.syncAt = time.Now().Add(pause)
	m.queue.AddAfter(uid, pause)
}
