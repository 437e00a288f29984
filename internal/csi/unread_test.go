package csi

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"belay.dev/belay/internal/testing/csidriver"
)

// The connection's log, which formats each reply whether it is written or not, is given nothing to format.
func TestReplyIsNotFormatted(t *testing.T) {
	d := csidriver.New(t, "list.test")
	d.Address = filepath.Join(csidriver.SocketDir(t), "csi.sock")
	d.ControllerServices = []csispec.ControllerServiceCapability_RPC_Type{csispec.ControllerServiceCapability_RPC_LIST_VOLUMES}
	d.List = func(context.Context, *csispec.ListVolumesRequest) (*csispec.ListVolumesResponse, error) {
		return &csispec.ListVolumesResponse{Entries: []*csispec.ListVolumesResponse_Entry{{Volume: &csispec.Volume{VolumeId: "v"}}}}, nil
	}
	d.Start()
	formatted := "nothing"
	look := func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		err := invoke(ctx, method, request, reply, conn, options...)
		if text, _ := json.Marshal(reply); method == csispec.Controller_ListVolumes_FullMethodName {
			formatted = string(text)
		}
		return err
	}
	conn, err := grpc.NewClient("unix://"+d.Address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(look))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c, err := NewController(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	page, err := c.ListVolumes(t.Context(), 0, "")
	if err != nil || len(page.Published) != 1 || page.Published[0].VolumeHandle != "v" {
		t.Fatalf("%+v, %v", page, err)
	}
	if formatted != "{}" {
		t.Errorf("the connection formats %s", formatted)
	}
}
