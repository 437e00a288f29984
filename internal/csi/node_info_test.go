package csi

import (
	"context"
	"path/filepath"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"

	"belay.dev/belay/internal/testing/csidriver"
)

// A driver restarts while NodeGetInfo is in flight, which fails with the earlier process. A driver registers once, so the call has
// to be repeated.
func TestInfoWhileTheDriverRestarts(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "csi.sock")
	first, next := csidriver.New(t, "d"), csidriver.New(t, "d")
	first.Address, next.Address, next.NodeInfo = socket, socket, &csispec.NodeGetInfoResponse{NodeId: "next"}
	first.OnNodeGetInfo = func(ctx context.Context) (*csispec.NodeGetInfoResponse, error) {
		go func() {
			first.Stop() // it takes the socket's file with it
			next.Start()
		}()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	first.Start()
	waitLongToConnect(t)
	node, err := DialNode(socket, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	info, err := node.Info(t.Context())
	if err != nil || info.NodeID != "next" {
		t.Errorf("%+v, %v", info, err)
	}
}
