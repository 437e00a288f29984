package recovery

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// readStorage reads which volumes could be taken from the boot one by one, and which the node still uses after that: of all drivers once volumes
// were taken, because the declaration may be withdrawn since. The caches are those of the attach/detach controller, which looks at each
// VolumeAttachment again before it deletes it.
func (t *turn) readStorage(ctx context.Context, seen *fencing.Observed) error {
	if t.Proofs == nil || t.node == nil {
		return nil
	}
	drivers, attachments := &storagev1.CSIDriverList{}, &storagev1.VolumeAttachmentList{}
	if err := t.client.List(ctx, drivers, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list CSIDrivers in the cache: %w", err)
	}
	cuts := map[string]bool{}
	for i := range drivers.Items {
		cuts[drivers.Items[i].Name] = kube.CutsAtUnpublish(&drivers.Items[i])
	}
	if err := t.client.List(ctx, attachments, client.MatchingFields{byNode: t.fence.Spec.NodeName}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list the VolumeAttachments of the node in the cache: %w", err)
	}
	attached := map[string]bool{}
	for i := range attachments.Items {
		va := &attachments.Items[i]
		attached[va.Name] = va.DeletionTimestamp == nil
		volume, known := kube.VolumeOfAttachment(va)
		if known && cuts[volume.Driver] && va.Annotations[kube.BootIDAnnotation] == t.fence.Spec.BootID {
			seen.Cut = append(seen.Cut, fencing.Volume(volume))
		}
	}
	slices.SortFunc(seen.Cut, func(a, b fencing.Volume) int { return strings.Compare(a.Driver+"^"+a.Handle, b.Driver+"^"+b.Handle) })
	taken := fenceState(t.fence).StorageProven
	for _, name := range t.node.Status.VolumesInUse {
		driver, handle, ok := kube.ParseUniqueVolumeName(string(name))
		if ok && (taken || cuts[driver]) && !attached[kube.AttachmentName(handle, driver, t.fence.Spec.NodeName)] {
			seen.Mounted = append(seen.Mounted, fencing.Volume{Driver: driver, Handle: handle})
		}
	}
	return nil
}

// proveVolumes stores that volumes may be taken from the boot one by one from now on.
func (t *turn) proveVolumes(ctx context.Context, volumes int) error {
	text := explain.FenceVolumes(volumes)
	err := t.patchStatus(ctx, func(s *fencingv1.NodeFenceStatus) {
		setCondition(s, conditionStorageFenced, metav1.ConditionTrue, "CutsAtUnpublish", text)
	})
	if err != nil {
		return err
	}
	t.mem.waits = "" // what to do about the wait is another thing now
	log.FromContext(ctx).Info("Volumes of the node may be detached one by one", "volumes", volumes)
	t.events.Eventf(t.regarding(), t.fence, corev1.EventTypeWarning, conditionStorageFenced, "Fence", "%s", text)
	return nil
}

// silentAgain stores that the node fell silent again.
func (t *turn) silentAgain(ctx context.Context, s fencing.SilentAgain) error {
	log.FromContext(ctx).Info("The node renewed its lease, and is silent again", "since", s.Renewal)
	return t.patchStatus(ctx, func(status *fencingv1.NodeFenceStatus) {
		status.SilentAgain = &fencingv1.SilentAgain{Renewal: s.Renewal, Time: micro(t.serverTime())}
	})
}

// allFences maps a CSIDriver to the fences that are not finished.
func (p *parts) allFences(ctx context.Context, _ client.Object) (all []reconcile.Request) {
	fences := &fencingv1.NodeFenceList{}
	if p.client.List(ctx, fences, client.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	for i := range fences.Items {
		if !finished(&fences.Items[i]) {
			all = append(all, request(fences.Items[i].Name)...)
		}
	}
	return all
}
