package inspect

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/diagnosis"
)

// Force carries out a plan, if the VolumeAttachment is still the one that was looked at. dryRun asks the API server to check the
// request and store nothing.
func (r *Reader) Force(ctx context.Context, p diagnosis.ForcePlan, dryRun bool) error {
	var all []string
	if dryRun {
		all = []string{metav1.DryRunAll}
	}
	attachments, name := r.clients.StorageV1().VolumeAttachments(), p.Subject.Name
	switch p.Action {
	case diagnosis.DeleteAttachment:
		uid := types.UID(p.UID)
		err := attachments.Delete(ctx, name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &p.ResourceVersion}, DryRun: all,
		})
		if err != nil {
			return fmt.Errorf("delete VolumeAttachment %s: %w", name, err)
		}
	case diagnosis.RemoveFinalizer:
		va, err := attachments.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read VolumeAttachment %s again: %w", name, err)
		}
		kept := []string{}
		for _, f := range va.Finalizers {
			if f != p.Finalizer {
				kept = append(kept, f)
			}
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID, "resourceVersion": p.ResourceVersion, "finalizers": kept}})
		if err != nil {
			return fmt.Errorf("encode the patch of VolumeAttachment %s: %w", name, err)
		}
		if _, err := attachments.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{DryRun: all}); err != nil {
			return fmt.Errorf("remove finalizer %s of VolumeAttachment %s: %w", p.Finalizer, name, err)
		}
	default:
		return fmt.Errorf("nothing to do for VolumeAttachment %s", name)
	}
	return nil
}
