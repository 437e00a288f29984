package nodeagent

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodeagent/worker"
	"belay.dev/belay/internal/nodevolume"
)

// AttachLimitReason is the reason with which kubelet rejects a pod whose volumes exceed the node's attach limit (KEP-4876).
const AttachLimitReason = explain.VolumeAttachmentLimitExceeded

// AttachLimitError reports that the storage system refused to attach another volume to this node.
type AttachLimitError struct {
	Volume  string // the PersistentVolume's name
	Driver  string
	Problem string // the attachError's message
}

// Error returns the attachError with kubelet's prefix.
func (e *AttachLimitError) Error() string {
	return explain.AttachLimit(e.Volume, e.Driver, e.Problem)
}

// A node cannot watch VolumeAttachments: it reads the attachError of a volume once it has waited for attachErrorAfter, and then every
// attachErrorAgain.
const (
	attachErrorAfter = 5 * time.Second
	attachErrorAgain = 30 * time.Second
)

// planAttachError schedules reading the attachError of a volume that waits to be attached, if its CSIDriver has the limit refreshed.
// The caller holds mu.
func (m *volumeManager) planAttachError(v *volume) {
	if !v.waitsForAttach() {
		v.attachLimit = nil
		return
	}
	if !v.attachErrorPlanned && m.plugins.Rules(v.driver).LimitPeriod > 0 {
		v.attachErrorPlanned = true
		m.tasks.AddAfter(periodicTask{readAttachError, v.name}, m.config.attachErrorAfter)
	}
}

func (v *volume) waitsForAttach() bool {
	for _, wait := range v.waits {
		if wait.reason == nodevolume.NotAttached {
			return true
		}
	}
	return false
}

// readAttachError reads why a volume is not attached. If the node's attach limit is exhausted, it refreshes the limit at once and
// emits an event for the waiting pods.
func (m *volumeManager) readAttachError(ctx context.Context, name string) {
	m.mu.Lock()
	v := m.all[name]
	if v == nil {
		m.mu.Unlock()
		return
	}
	v.attachErrorPlanned = v.waitsForAttach() && m.plugins.Rules(v.driver).LimitPeriod > 0
	scheduled := v.attachErrorPlanned
	m.mu.Unlock()
	if !scheduled {
		return
	}
	defer m.tasks.AddAfter(periodicTask{readAttachError, name}, attachErrorAgain)
	ctx, cancel := context.WithTimeout(ctx, worker.APITimeout)
	defer cancel()
	va, err := m.client.StorageV1().VolumeAttachments().Get(ctx, kube.AttachmentName(v.handle, v.driver, m.config.NodeName), metav1.GetOptions{})
	if err != nil {
		return // retried with the next task
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !v.waitsForAttach() {
		return
	}
	problem := va.Status.AttachError
	if problem == nil || problem.ErrorCode == nil || codes.Code(*problem.ErrorCode) != codes.ResourceExhausted {
		v.attachLimit = nil
		return
	}
	v.attachLimit = &AttachLimitError{Volume: v.specName(), Driver: v.driver, Problem: problem.Message}
	m.emitAttachLimit(v)
	if problem.Time.Equal(&v.exhaustedAt) {
		return // this attachError was already handled
	}
	v.exhaustedAt = problem.Time
	m.plugins.LimitExhausted(v.driver)
}

// emitAttachLimit emits one event for each waiting pod. The caller holds mu.
func (m *volumeManager) emitAttachLimit(v *volume) {
	text := v.attachLimit.Error()
	for _, p := range v.pods {
		if v.waits[p.Key].reason == nodevolume.NotAttached {
			m.emitWarning(p, AttachLimitReason, text)
		}
	}
}
