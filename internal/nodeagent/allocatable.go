package nodeagent

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodevolume"
)

// AttachLimitReason is the reason with which kubelet rejects a pod whose volumes do not
// fit on the node any more (KEP-4876).
const AttachLimitReason = "VolumeAttachmentLimitExceeded"

// AttachLimitError says that the storage refuses to attach another volume to this node.
type AttachLimitError struct {
	Volume  string // the PersistentVolume's name
	Driver  string
	Problem string // the attachError's message
}

// Error is the problem, begun as kubelet begins it.
func (e *AttachLimitError) Error() string {
	return explain.AttachLimit(e.Volume, e.Driver, e.Problem)
}

// How long a volume waits to be attached before its attachError is looked at, and until
// it is looked at again. A node cannot watch VolumeAttachments.
const (
	attachErrorAfter = 5 * time.Second
	attachErrorAgain = 30 * time.Second
)

// planAttachError has the attachError of a volume read when it waits long to be attached
// and its driver wants its limit kept. The caller holds mu.
func (m *volumeManager) planAttachError(v *volume) {
	if !v.waitsForAttach() {
		v.attachLimit = nil
		return
	}
	if !v.attachErrorPlanned && m.plugins.limitPeriod(v.driver) > 0 {
		v.attachErrorPlanned = true
		m.tasks.AddAfter(periodicTask{readAttachError, v.name}, m.config.attachErrorAfter)
	}
}

func (v *volume) waitsForAttach() bool {
	for _, hold := range v.holds {
		if hold.reason == nodevolume.NotAttached {
			return true
		}
	}
	return false
}

// readAttachError looks why a volume is not attached. If the storage says that the node is
// full its limit is refreshed at once, and the pods that wait are told.
func (m *volumeManager) readAttachError(ctx context.Context, name string) {
	m.mu.Lock()
	v := m.all[name]
	if v == nil {
		m.mu.Unlock()
		return
	}
	v.attachErrorPlanned = v.waitsForAttach() && m.plugins.limitPeriod(v.driver) > 0
	goOn := v.attachErrorPlanned
	m.mu.Unlock()
	if !goOn {
		return
	}
	defer m.tasks.AddAfter(periodicTask{readAttachError, name}, attachErrorAgain)
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	va, err := m.client.StorageV1().VolumeAttachments().Get(ctx, kube.AttachmentName(v.handle, v.driver, m.config.NodeName), metav1.GetOptions{})
	if err != nil {
		return // nothing new is known
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
		return // this one has been acted upon
	}
	v.exhaustedAt = problem.Time
	m.plugins.exhausted(v.driver)
}

// emitAttachLimit tells each pod that waits, once. The caller holds mu.
func (m *volumeManager) emitAttachLimit(v *volume) {
	text := v.attachLimit.Error()
	for key, hold := range v.holds {
		i := slices.IndexFunc(v.pods, func(p *podVolume) bool { return p.Key == key })
		if hold.reason != nodevolume.NotAttached || i < 0 || !v.pods[i].told.isNew(text, time.Now()) {
			continue
		}
		m.events.Event(v.pods[i].podOf(), corev1.EventTypeWarning, AttachLimitReason, text)
	}
}
