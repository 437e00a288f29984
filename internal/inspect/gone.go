package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
)

// Gone reads what shows whether the machine of VolumeAttachments is part of the cluster.
func (r *Reader) Gone(ctx context.Context) *diagnosis.Snapshot {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	x := r.start()
	parallel(
		func() { x.attachments(ctx) },
		func() { x.drivers(ctx) },
		func() { x.csiNodes(ctx) },
		func() { x.nodes(ctx) },
		func() { x.volumes(ctx) },
	)
	return x.finish()
}

// Declarer asks the API server who the user is, and whether it may patch VolumeAttachments.
func (r *Reader) Declarer(ctx context.Context) diagnosis.Author {
	return r.author(ctx, authorizationv1.ResourceAttributes{Group: "storage.k8s.io", Version: "v1", Resource: string(diagnosis.Attachments), Verb: "patch"})
}

// DeclareGone carries out a plan for the VolumeAttachments that are still those that were looked at. dryRun asks the API server to check the
// requests and store nothing.
func (r *Reader) DeclareGone(ctx context.Context, p *diagnosis.GonePlan, now time.Time, dryRun bool) (declared int, err error) {
	options := metav1.PatchOptions{FieldManager: kube.DeclarationManager}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	var failed []error
	for i := range p.Attachments {
		a := &p.Attachments[i]
		text, err := json.Marshal(p.Declaration(a, now))
		if err != nil {
			return declared, fmt.Errorf("encode the declaration for VolumeAttachment %s: %w", a.Name, err)
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": a.UID, "resourceVersion": a.ResourceVersion, "annotations": map[string]string{kube.DeclaredGoneAnnotation: string(text)},
		}})
		if err != nil {
			return declared, fmt.Errorf("encode the patch of VolumeAttachment %s: %w", a.Name, err)
		}
		if _, err := r.clients.StorageV1().VolumeAttachments().Patch(ctx, a.Name, types.MergePatchType, patch, options); err != nil {
			failed = append(failed, fmt.Errorf("write the declaration on VolumeAttachment %s: %w", a.Name, err))
			continue
		}
		declared++
	}
	return declared, errors.Join(failed...)
}
