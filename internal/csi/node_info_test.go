package csi

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// nodeLife is one life of a driver's node service.
type nodeLife struct {
	csispec.UnimplementedNodeServer

	info func(context.Context) (*csispec.NodeGetInfoResponse, error)
}

func (l nodeLife) NodeGetInfo(ctx context.Context, _ *csispec.NodeGetInfoRequest) (*csispec.NodeGetInfoResponse, error) {
	return l.info(ctx)
}

func (l nodeLife) serve(t *testing.T, socket string) *grpc.Server {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Error(err)
		return nil
	}
	server := grpc.NewServer()
	csispec.RegisterNodeServer(server, l)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return server
}

// A driver restarts while NodeGetInfo is in flight, which fails with the earlier process. A driver registers once, so the call has
// to be repeated.
func TestInfoWhileTheDriverRestarts(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "csi.sock")
	var first *grpc.Server
	ready := make(chan struct{})
	next := nodeLife{info: func(context.Context) (*csispec.NodeGetInfoResponse, error) {
		return &csispec.NodeGetInfoResponse{NodeId: "next"}, nil
	}}
	first = nodeLife{info: func(ctx context.Context) (*csispec.NodeGetInfoResponse, error) {
		<-ready
		go func() {
			first.Stop() // it takes the socket's file with it
			next.serve(t, socket)
		}()
		<-ctx.Done()
		return nil, ctx.Err()
	}}.serve(t, socket)
	close(ready)
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
