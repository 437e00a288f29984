package nodeagent

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
)

// eventDedup suppresses repeated events about one object.
type eventDedup struct {
	text string
	at   time.Time
}

// repeatEventAfter is when an unchanged event is sent again: the API server drops events after an hour (kube-apiserver --event-ttl).
const repeatEventAfter = 20 * time.Minute

// isNew reports whether to send the event now, and remembers it if so.
func (t *eventDedup) isNew(text string, now time.Time) bool {
	if t.text == text && now.Sub(t.at) < repeatEventAfter {
		return false
	}
	t.text, t.at = text, now
	return true
}

// setBlocker stores the error that blocks volumes which wait for one of the reasons, or clears it if err is nil.
func (m *volumeManager) blocks(err error, reasons ...nodevolume.Reason) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, reason := range reasons {
		if err == nil {
			delete(m.trouble, reason)
			continue
		}
		m.trouble[reason] = err
	}
}

// reasonText describes a reason, with the error that blocks it. The caller holds mu.
func (m *volumeManager) why(reason nodevolume.Reason) string {
	if err := m.trouble[reason]; err != nil {
		return explain.LastError(reason, m.withRemedy(err).Error())
	}
	return explain.NodeReason(reason)
}

func (m *volumeManager) withRemedy(err error) error { return m.config.withRemedy(err) }

// withRemedy adds what an administrator can do about the error, where that is known.
func (c *Config) withRemedy(err error) error {
	var remedy string
	switch {
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		remedy = explain.GrantAccess(c.NodeName)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		remedy = explain.FreeSpace(c.Root)
	case errors.Is(err, syscall.EROFS):
		remedy = explain.MakeWritable(c.Root)
	case errors.Is(err, mount.ErrSymlinkOutside):
		remedy = explain.ReplaceLink(c.Root)
	default:
		return err
	}
	return fmt.Errorf("%w; remedy: %s", err, remedy)
}
