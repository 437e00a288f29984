package nodeagent

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/nodeagent/worker"
	"belay.dev/belay/internal/nodevolume"
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

// readSize reads a claim, and its PersistentVolume if the claim has a new size. The order matters: the PersistentVolume is expanded before
// its claim is updated.
func (m *volumeManager) readSize(ctx context.Context, w *volumeToMount, version string) error {
	claim, err := m.readClaim(ctx, w, version)
	if err != nil {
		return err
	}
	size := claimSize(claim)
	m.mu.Lock()
	v := m.all[w.name()]
	read := v != nil && v.state.Growth.NeedsRead(size)
	m.mu.Unlock()
	if !read {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, worker.APITimeout)
	defer cancel()
	pv, err := m.client.CoreV1().PersistentVolumes().Get(ctx, w.specName, metav1.GetOptions{ResourceVersion: version})
	if err != nil {
		return fmt.Errorf("read volume %s: %w", w.specName, err)
	}
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
		return fmt.Errorf("volume %s is bound to another claim", w.specName)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p, v := m.findPodVolume(w)
	if p == nil {
		return nil // the pod is gone
	}
	var mounting []nodevolume.PublishKey
	if p.Phase != nodevolume.Confirmed {
		mounting = append(mounting, p.Key)
	}
	if m.updateSize(v, size, sizeOf(pv.Spec.Capacity), mounting...) {
		m.queue.Add(v.name)
	}
	return nil
}

// mayExpand reports whether a pod's volume may have to be expanded on this node. Without EXPAND_VOLUME there is nothing to read for.
func (m *volumeManager) mayExpand(w *volumeToMount) bool {
	if w.claim.name == "" || w.readOnly {
		return false
	}
	_, has := m.plugins.Registered(w.driver)
	return has == nil || has.Expand
}

// syncPause returns the time to the next resync: the period, extended by up to a half to spread the reads.
func syncPause(period time.Duration, jitter float64) time.Duration {
	return period + time.Duration(jitter*float64(period)/2)
}
