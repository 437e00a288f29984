package nodeagent

import (
	"context"
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/nodeagent/plugins"
	"belay.dev/belay/internal/nodeagent/worker"
	"belay.dev/belay/internal/nodevolume"
)

// growth expands volumes: it reads the sizes of claims, calls NodeExpandVolume, and writes the result to the claim.
type growth struct {
	*volumeSet

	config   Config
	log      logr.Logger
	client   kubernetes.Interface
	records  *recordStore
	pods     *podManager
	plugins  *plugins.Plugins
	reports  *reports
	requests *requests
	calls    *driverCalls
}

// updateSize updates the size of a claim and its volume. It reports whether an expansion became due. The caller holds mu.
func (g *growth) updateSize(v *volume, size nodevolume.ClaimSize, capacity nodevolume.Size, mounting ...nodevolume.PublishKey) (due bool) {
	wasDue := v.state.Growth.Due()
	v.state.Growth.Update(size, capacity, mounting...)
	g.releaseWaitingPods(v)
	if wasDue || !v.state.Growth.Due() {
		return false
	}
	g.log.Info("Volume was expanded", append(v.logValues(nodevolume.PublishKey{}), "size", v.state.Growth.Current.Text, "capacity", capacity.Text)...)
	return true
}

// releaseWaitingPods releases the pods that no longer have to wait for the expansion. The caller holds mu.
func (g *growth) releaseWaitingPods(v *volume) {
	released := v.state.Growth.Release()
	for _, p := range v.pods {
		if !slices.Contains(released, p.Key) {
			continue
		}
		p.problem, p.step = nil, ""
		g.pods.notify(types.UID(p.Key.PodUID))
	}
}

// addSize adds the size that a new pod of the volume read. The caller holds mu.
func (g *growth) addSize(v *volume, w *volumeToMount) {
	if w.claim.name == "" {
		return
	}
	if w.readOnly {
		if w.size.Behind(w.capacity) {
			g.reports.emitGrowth(v.ensurePod(w.key()), corev1.EventTypeWarning, explain.FileSystemResizeFailed, explain.ExpandReadOnly(w.specName))
		}
		return
	}
	v.state.Growth.PodAdded()
	g.updateSize(v, w.size, w.capacity, w.key())
}

// readSize reads a claim, and its PersistentVolume if the claim has a new size. The order matters: the PersistentVolume is expanded before
// its claim is updated.
func (g *growth) readSize(ctx context.Context, w *volumeToMount, version string) error {
	claim, err := g.readClaim(ctx, w, version)
	if err != nil {
		return err
	}
	size := claimSize(claim)
	g.mu.Lock()
	v := g.all[w.name()]
	read := v != nil && v.state.Growth.NeedsRead(size)
	g.mu.Unlock()
	if !read {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, worker.APITimeout)
	defer cancel()
	pv, err := g.client.CoreV1().PersistentVolumes().Get(ctx, w.specName, metav1.GetOptions{ResourceVersion: version})
	if err != nil {
		return fmt.Errorf("read volume %s: %w", w.specName, err)
	}
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
		return fmt.Errorf("volume %s is bound to another claim", w.specName)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p, v := g.findPodVolume(w)
	if p == nil {
		return nil // the pod is gone
	}
	var mounting []nodevolume.PublishKey
	if p.Phase != nodevolume.Confirmed {
		mounting = append(mounting, p.Key)
	}
	if g.updateSize(v, size, sizeOf(pv.Spec.Capacity), mounting...) {
		g.queue.Add(v.name)
	}
	return nil
}

// mayExpand reports whether a pod's volume may have to be expanded on this node. Without EXPAND_VOLUME there is nothing to read for.
func (g *growth) mayExpand(w *volumeToMount) bool {
	if w.claim.name == "" || w.readOnly {
		return false
	}
	_, has := g.plugins.Registered(w.driver)
	return has == nil || has.Expand
}
