package attachdetach

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// The kinds whose caches a new leader waits for; ADR 17 has the argument for each kind.
var (
	nodeKind       = corev1.SchemeGroupVersion.WithKind("Node")
	attachmentKind = storagev1.SchemeGroupVersion.WithKind("VolumeAttachment")
	volumeKind     = corev1.SchemeGroupVersion.WithKind("PersistentVolume")
)

// catchUp returns when the caches have reached what the previous leader did, as far as
// not knowing it could attach an exclusive volume twice or detach one that is in use.
//
// VolumeAttachments and Nodes: the previous leader attached and reported by writing
// them, so a cache without its last writes takes an attached volume for a free one.
// PersistentVolumes: one that was made exclusive since still counts as shared in a
// cache that lags, and would be attached to a second node. Only those need a look that
// the cache calls shared and that are attached or in use.
// Pods, claims and CSIDrivers say what is wanted. Where they lag, a volume is attached
// that nothing waits for, or an unused one is detached too early: the blockers of S1
// and the check before each detach (S2) read VolumeAttachments and Nodes alone.
func (c *Controller) catchUp(ctx context.Context) error {
	for kind, informer := range c.state.informers {
		select {
		case <-informer.HasSyncedChecker().Done():
		case <-ctx.Done():
			return fmt.Errorf("wait for the first list of %s: %w", kind.Kind, context.Cause(ctx))
		}
	}
	barrier := kube.Barrier{
		Live: c.live, Client: c.client,
		Caches: map[schema.GroupVersionKind]toolscache.SharedIndexInformer{
			nodeKind: c.state.informers[nodeKind], attachmentKind: c.state.informers[attachmentKind],
		},
	}
	versions, err := barrier.Pass(ctx)
	if err != nil {
		return err
	}
	c.sinceAttachments, c.sinceNodes = versions[attachmentKind], versions[nodeKind]
	return kube.Confirm(ctx, c.live, volumeKind, c.state.informers[volumeKind], c.state.sharedInUse())
}

// sharedInUse are the PersistentVolumes that may be attached to several nodes as far as
// the cache knows, and that are attached, reported or in use somewhere.
func (w *clusterState) sharedInUse() []string {
	var names []string
	for _, item := range w.volumes.List() {
		pv := item.(*corev1.PersistentVolume)
		k, ok := kube.KeyOfVolume(pv)
		if !ok || !attachment.AllowsSeveralNodes(pv.Spec.AccessModes) {
			continue
		}
		unique := kube.UniqueVolumeName(k.Driver, k.Handle)
		if len(w.attachments.ByIndex(byPersistentVolume, pv.Name)) > 0 ||
			len(w.attachments.ByIndex(byVolume, unique)) > 0 || len(w.nodes.ByIndex(byVolume, unique)) > 0 {
			names = append(names, pv.Name)
		}
	}
	return names
}
