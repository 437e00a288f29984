package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/kube"
)

// Kinds whose caches a new leader waits for (ADR 17).
var (
	nodeKind       = corev1.SchemeGroupVersion.WithKind("Node")
	attachmentKind = storagev1.SchemeGroupVersion.WithKind("VolumeAttachment")
	volumeKind     = corev1.SchemeGroupVersion.WithKind("PersistentVolume")
)

// catchUp waits until the caches include the previous leader's writes, as far as missing them could attach an exclusive
// volume twice or detach one that is in use.
//
// VolumeAttachments and Nodes: the previous leader attached and reported volumes by writing them. Without these writes,
// an attached volume would look free.
//
// PersistentVolumes: one that became exclusive is still shared in an old cache and could be attached to a second node.
// Only volumes that are shared in the cache and attached or in use need a check.
//
// Pods, claims and CSIDrivers only define what is desired. If they lag, an unneeded volume is attached or an unused one
// is detached too early: the blockers of S1 and the check before each detach (S2) use VolumeAttachments and Nodes only.
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

// sharedInUse returns the PersistentVolumes that are shared according to the cache and attached, reported or in use.
func (w *clusterState) sharedInUse() []string {
	var names []string
	for _, item := range w.volumes.List() {
		pv := item.(*corev1.PersistentVolume)
		k, ok := kube.KeyOfVolume(pv)
		if !ok || kube.Exclusive(pv) {
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

var errNotCaughtUp = errors.New("leading, but the caches have not caught up with the previous leader")

// readyz reports whether the process is ready: a standby has synced its caches, a leader has also caught up with the
// previous leader.
func (c *Controller) readyz(elected <-chan struct{}) func(*http.Request) error {
	return func(*http.Request) error {
		if err := c.rivals.check(); err != nil {
			return err
		}
		var reading []string
		for kind, informer := range c.state.informers {
			if !informer.HasSynced() {
				reading = append(reading, kind.Kind)
			}
		}
		if len(reading) > 0 {
			slices.Sort(reading)
			return fmt.Errorf("the caches are not synced yet: %s", strings.Join(reading, ", "))
		}
		select {
		case <-elected:
		default:
			return nil
		}
		select {
		case <-c.ready:
			return nil
		default:
			return errNotCaughtUp
		}
	}
}
