package nodeagent

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodeagent/worker"
	"belay.dev/belay/internal/nodevolume"
)

// lookUpAttachment reads the VolumeAttachment for the next decision.
func (m *volumeManager) lookUpAttachment(ctx context.Context, v *volume) error {
	m.mu.Lock()
	begun := v.state.BeginRead(m.status.View(v.name))
	m.mu.Unlock()
	found, traceparent, err := m.readAttachment(ctx, v)
	m.mu.Lock()
	defer m.mu.Unlock()
	v.state.Read(begun, found)
	if found.Attached == nodevolume.Yes {
		m.reports.traceAttached(v, found.UID, traceparent)
	}
	return err
}

// recheckAttachment is the last check before a call: the VolumeAttachment must be the one that the decision was based on. It is read again
// if reading secrets or tokens for the call may have taken time.
func (m *volumeManager) recheckAttachment(ctx context.Context, v *volume, c driverCall, readAPI bool) error {
	if readAPI && c.attachment.UID != "" {
		if err := m.lookUpAttachment(ctx, v); err != nil {
			m.reports.logger(v, c.toMount.key()).Error(err, "Failed to read the VolumeAttachment again, retrying", "attachment", kube.AttachmentName(v.handle, v.driver, m.config.NodeName))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.checkDecision(v)
}

// checkDecision returns errOutdated if the decision for the running step no longer holds. The caller holds mu.
func (m *volumeManager) checkDecision(v *volume) error {
	if !v.state.StillValid(m.status.View(v.name), m.plugins.Rules(v.driver).AttachRequired) {
		return errOutdated
	}
	return nil
}

// readAttachment reads the VolumeAttachment live: a node may get it by name, but not watch it. It also returns the trace context of an
// attached volume.
func (m *volumeManager) readAttachment(ctx context.Context, v *volume) (found nodevolume.Attachment, traceparent string, err error) {
	name := kube.AttachmentName(v.handle, v.driver, m.config.NodeName)
	ctx, cancel := context.WithTimeout(ctx, worker.APITimeout)
	defer cancel()
	va, err := m.client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nodevolume.Attachment{Attached: nodevolume.No}, "", explain.AttachmentNotRead(v.handle, name, err)
	case err != nil:
		return nodevolume.Attachment{}, "", explain.AttachmentNotRead(v.handle, name, err)
	case va.DeletionTimestamp != nil:
		return nodevolume.Attachment{Attached: nodevolume.No}, "", errors.New(explain.AttachmentDeleting(name))
	case va.Status.Attached:
		return nodevolume.Attachment{Attached: nodevolume.Yes, UID: string(va.UID), Metadata: va.Status.AttachmentMetadata},
			va.Annotations[kube.TraceparentAnnotation], nil
	case va.Status.AttachError != nil:
		return nodevolume.Attachment{Attached: nodevolume.No}, "", errors.New(va.Status.AttachError.Message)
	default:
		return nodevolume.Attachment{Attached: nodevolume.No}, "", errors.New(explain.NotAttachedFor(v.handle, name))
	}
}

// checkDecisionAndPod checks again after everything is prepared for a call, as a slow disk can delay that. The pod may be gone as well.
func (m *volumeManager) checkDecisionAndPod(v *volume, step nodevolume.Step) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods.state(types.UID(nodevolume.KeyOf(step).PodUID)).Removed {
		return errReleased
	}
	return m.checkDecision(v)
}
