package nodeagent

import (
	"context"

	"google.golang.org/grpc/codes"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/nodevolume"
)

// unstage calls NodeUnstageVolume and removes the record.
func (m *volumeManager) unstage(ctx context.Context, v *volume, step nodevolume.Unstage) error {
	client, err := m.plugins.client(v.driver)
	if err != nil {
		return err
	}
	begun, err := m.begin(v, step, nodevolume.Record{})
	if err != nil {
		return err
	}
	asked, staged := unanswered{method: "NodeUnstageVolume", step: stepUnstage}, m.root.Path(begun.Record.Path)
	err = m.ask(ctx, v, asked, func(ctx context.Context) error { return client.Unstage(ctx, v.handle, staged) })
	m.log.Info("Called NodeUnstageVolume", "volume", v.name, "outcome", csi.NodeOutcomeOf(err).String())
	end := ending{err: err, phase: begun.After(reply(err))}
	if m.stagesNoMore(ctx, v.driver, err) {
		end.err, end.phase = nil, nodevolume.Absent
		end.said = "no longer has STAGE_UNSTAGE_VOLUME and cannot unstage what an earlier version staged (remedy: umount " + staged + ")"
	}
	return m.end(v, begun, end)
}

// noLongerStages reports whether the driver returned UNIMPLEMENTED and no longer has STAGE_UNSTAGE_VOLUME. As in kubelet, nothing is left to
// call then. If an earlier version left a mount, tidy finds it and the volume stays in use.
func (m *volumeManager) stagesNoMore(ctx context.Context, driver string, err error) bool {
	if code, ok := csi.Code(err); !ok || code != codes.Unimplemented {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, m.config.RPCTimeout)
	defer cancel()
	_, has, err := m.plugins.capabilities(ctx, driver)
	return err == nil && !has.Stage
}
