package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"belay.dev/belay/lab/labtest"
)

// TestNodeDriverMeasuresItsOwnTime: the time that the driver needs for a volume is subtracted from the agent's figures.
func TestNodeDriverMeasuresItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &nodeDriver{own: map[string]time.Duration{}, publishedAt: map[string]time.Time{}, changed: make(chan struct{})}
		d.setLatency(3 * time.Second)
		call := func(method, volume string) {
			t.Helper()
			request := &csi.NodePublishVolumeRequest{VolumeId: volume}
			_, err := d.clock(t.Context(), request, &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Node/" + method},
				func(context.Context, any) (any, error) { return nil, nil })
			must(t, err)
		}
		began := time.Now()
		call("NodeStageVolume", "v")
		waited, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := d.published(waited, "v"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a volume that is staged only: %v", err)
		}
		go call("NodePublishVolume", "v")
		at, err := d.published(t.Context(), "v")
		must(t, err)
		if took := at.Sub(began); took != 7*time.Second || d.ownTime("v") != 6*time.Second || d.count() != 1 {
			t.Errorf("published after %v, of which the driver says it took %v; %d volumes", took, d.ownTime("v"), d.count())
		}
		d.forget("v")
		if d.ownTime("v") != 0 || d.count() != 0 {
			t.Error("the volume was not forgotten")
		}
	})
}

func executeNode(ctx context.Context, out, progress io.Writer, args ...string) error {
	command := Command()
	command.SetArgs(append([]string{"node"}, args...))
	command.SetOut(out)
	command.SetErr(progress)
	command.SilenceErrors = true
	return command.ExecuteContext(ctx)
}

// TestNode runs all parts at small sizes: each figure is there. Targets are for a machine that has nothing else to do.
func TestNode(t *testing.T) {
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: the bench belongs to the long tests")
	}
	var out bytes.Buffer
	must(t, executeNode(t.Context(), &out, t.Output(), "--quick", "--no-targets", "--name", "bench-node-quick", "-o", "json"))
	assertGone(t, "bench-node-quick")
	var report Report
	must(t, json.Unmarshal(out.Bytes(), &report))
	must(t, report.writeText(t.Output()))
	if len(report.Parts) != len(nodeParts()) {
		t.Errorf("there are %d parts", len(report.Parts))
	}
	for _, part := range report.Parts {
		for _, figure := range part.Figures {
			if len(figure.Samples[planeBelay]) == 0 {
				t.Errorf("%s: %s was not measured", part.Name, figure.Name)
			}
		}
	}
}
