package nodeagent

import (
	"context"

	"google.golang.org/grpc/codes"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/nodevolume"
)

// unstage calls NodeUnstageVolume and drops the record.
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
		end.said = "has STAGE_UNSTAGE_VOLUME no more and cannot undo what an earlier version did (remedy: umount " + staged + ")"
	}
	return m.end(v, begun, end)
}

// stagesNoMore: the driver does not know the call, and says that it does not stage. As with kubelet there is nothing that it could be asked
// to undo then. What an earlier version left is found by who removes the staging path: of what is mounted there nothing is
// removed, and the volume stays in use.
func (m *volumeManager) stagesNoMore(ctx context.Context, driver string, err error) bool {
	if code, ok := csi.Code(err); !ok || code != codes.Unimplemented {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, m.config.RPCTimeout)
	defer cancel()
	_, has, err := m.plugins.capabilities(ctx, driver)
	return err == nil && !has.Stage
}
