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

// catchUp returns when the cache of VolumeAttachments has reached what the API server knew
// after the lease was won (ADR 17): a new leader must not decide on what was so before the
// previous leader's last writes (S1). Every object that had ended by then is gone from the
// cache, also one that the cache never showed before.
//
// Where there is no VolumeAttachment there is nothing to mark, and the cache may still show
// one whose volume the previous leader has detached: the next event, or the next bookmark,
// ends the wait, and without an event there is nothing to attach or detach.
func (a *Attacher) catchUp(ctx context.Context) error {
	list, err := a.firstAttachment(ctx)
	if err != nil {
		return err
	}
	var mark func(context.Context) error
	if len(list.Items) > 0 {
		mark = func(ctx context.Context) error { return a.markAttachment(ctx, &list.Items[0]) }
	}
	log.FromContext(ctx).V(1).Info("Waiting for the watch cache", "version", list.ResourceVersion)
	return kube.AwaitVersion(ctx, a.objects.attachmentInformer, list.ResourceVersion, mark)
}

// firstAttachment lists one VolumeAttachment at quorum, of whichever driver, for the version
// of the list. It tries until it has an answer or is told to stop.
func (a *Attacher) firstAttachment(ctx context.Context) (list *storagev1.VolumeAttachmentList, err error) {
	logged := ""
	for pause := writeRetryStart; ; pause = min(2*pause, writeRetryMax) {
		err = a.ask(ctx, func(ctx context.Context) error {
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

// markAttachment makes an event that takes the watch cache past the list.
func (a *Attacher) markAttachment(ctx context.Context, va *storagev1.VolumeAttachment) error {
	body, err := kube.VersionMark(va)
	if err != nil {
		return err
	}
	return a.ask(ctx, func(ctx context.Context) error {
		_, err := a.client.StorageV1().VolumeAttachments().Patch(ctx, va.Name, types.MergePatchType, body, metav1.PatchOptions{})
		return err
	})
}
