package attacher

import (
	"context"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/kube"
)

// catchUp waits until the cache of VolumeAttachments includes all writes before the lease was won (ADR 17): a new
// leader must not decide on a state without the previous leader's last writes (S1). Objects that were deleted by then
// are gone from the cache.
//
// Without any VolumeAttachment there is none to mark, and the cache may still contain a deleted one. The next event or
// bookmark ends the wait; without an event there is nothing to attach or detach.
func (a *Attacher) catchUp(ctx context.Context) error {
	list, err := a.firstAttachment(ctx)
	if err != nil {
		return err
	}
	var mark func(context.Context) error
	if len(list.Items) > 0 {
		mark = func(ctx context.Context) error { return a.markAttachment(ctx, &list.Items[0]) }
	}
	log.FromContext(ctx).V(1).Info("Waiting for the watch cache", "resourceVersion", list.ResourceVersion)
	// The Attacher's own handler ends the wait: an informer calls its handlers in any order, and one that is late enqueues what Run has
	// enqueued, which is decided on twice then.
	handled := func() (<-chan struct{}, func(), error) { return a.attachmentHandled, func() {}, nil }
	return kube.AwaitVersion(ctx, a.objects.attachmentInformer.GetIndexer(), handled, list.ResourceVersion, mark)
}

// firstAttachment lists one VolumeAttachment at quorum, of any driver, for the resource version of the list. It retries
// until it succeeds or ctx is done.
func (a *Attacher) firstAttachment(ctx context.Context) (list *storagev1.VolumeAttachmentList, err error) {
	logged := ""
	for pause := writeRetryStart; ; pause = min(2*pause, writeRetryMax) {
		err = a.request(ctx, func(ctx context.Context) error {
			list, err = a.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{Limit: 1})
			return err
		})
		if err == nil || ctx.Err() != nil {
			return list, err
		}
		if err.Error() != logged {
			log.FromContext(ctx).Error(err, "Failed to list VolumeAttachments after winning the lease, retrying")
			logged = err.Error()
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// markAttachment causes an event that moves the watch cache past the list.
func (a *Attacher) markAttachment(ctx context.Context, va *storagev1.VolumeAttachment) error {
	body, err := kube.VersionMark(va)
	if err != nil {
		return err
	}
	return a.request(ctx, func(ctx context.Context) error {
		_, err := a.client.StorageV1().VolumeAttachments().Patch(ctx, va.Name, types.MergePatchType, body, metav1.PatchOptions{})
		return err
	})
}
