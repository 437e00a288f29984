package nodeagent

import (
	"context"
	"fmt"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/nodevolume"
)

// republish calls NodePublishVolume again for a running pod, with current secrets and tokens. The record and the target stay, even after a
// failure: the pod uses the mount (k/k#121271).
func (m *volumeManager) republish(ctx context.Context, v *volume, step nodevolume.Republish) error {
	begun, err := m.begin(v, step, nodevolume.Record{})
	if err != nil {
		return err
	}
	err = m.callRepublish(ctx, v, m.podVolume(v, step.Key))
	confirmation := nodevolume.Confirmation{}
	if err == nil {
		confirmation = confirmedNow()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v.state.End(begun, begun.After(reply(err)), confirmation)
	if err != nil {
		return fmt.Errorf("publish again for the running pod, which keeps its mount: %w", err)
	}
	return nil
}

func (m *volumeManager) callRepublish(ctx context.Context, v *volume, p *podVolume) error {
	c, err := m.requests.newDriverCall(v, p.Key)
	if err != nil {
		return err
	}
	record := p.Record
	c.label = record.SELinuxLabel
	call, err := m.requests.publishCall(ctx, c)
	if err != nil {
		return err
	}
	if err := m.recheckAttachment(ctx, v, c, c.readsAPI()); err != nil {
		return err
	}
	err = m.callPublish(ctx, v, c, p.Key, call, record)
	m.reports.logger(v, p.Key).V(1).Info("Called NodePublishVolume again", "outcome", csi.NodeOutcomeOf(err).String())
	if err != nil {
		return err
	}
	// The driver may have written new files, which need the pod's fsGroup.
	return m.finishPublish(ctx, c, record)
}
