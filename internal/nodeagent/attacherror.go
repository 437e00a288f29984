package nodeagent

import (
	"context"

	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodeagent/worker"
)

// planAttachError schedules reading the attachError of a volume that waits to be attached, if its CSIDriver has the limit refreshed.
// The caller holds mu.
func (t *tasks) planAttachError(v *volume) {
	if !v.waitsForAttach() {
		v.attachLimit = nil
		return
	}
	if !v.attachErrorPlanned && t.plugins.Rules(v.driver).LimitPeriod > 0 {
		v.attachErrorPlanned = true
		t.due.AddAfter(periodicTask{readAttachError, v.name}, t.config.attachErrorAfter)
	}
}

// readAttachError reads why a volume is not attached. If the node's attach limit is exhausted, it refreshes the limit at once and
// emits an event for the waiting pods.
func (t *tasks) readAttachError(ctx context.Context, name string) {
	t.mu.Lock()
	v := t.all[name]
	if v == nil {
		t.mu.Unlock()
		return
	}
	v.attachErrorPlanned = v.waitsForAttach() && t.plugins.Rules(v.driver).LimitPeriod > 0
	scheduled := v.attachErrorPlanned
	t.mu.Unlock()
	if !scheduled {
		return
	}
	defer t.due.AddAfter(periodicTask{readAttachError, name}, attachErrorAgain)
	ctx, cancel := context.WithTimeout(ctx, worker.APITimeout)
	defer cancel()
	va, err := t.client.StorageV1().VolumeAttachments().Get(ctx, kube.AttachmentName(v.handle, v.driver, t.config.NodeName), metav1.GetOptions{})
	if err != nil {
		return // retried with the next task
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !v.waitsForAttach() {
		return
	}
	problem := va.Status.AttachError
	if problem == nil || problem.ErrorCode == nil || codes.Code(*problem.ErrorCode) != codes.ResourceExhausted {
		v.attachLimit = nil
		return
	}
	v.attachLimit = &AttachLimitError{Volume: v.specName(), Driver: v.driver, Problem: problem.Message}
	t.reports.emitAttachLimit(v)
	if problem.Time.Equal(&v.exhaustedAt) {
		return // this attachError was already handled
	}
	v.exhaustedAt = problem.Time
	t.plugins.LimitExhausted(v.driver)
}
