package nodekill

import (
	"context"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"belay.dev/belay/internal/kube"
)

// call is one call of the agent, as the driver between sees it.
type call struct {
	driver, volume, target string
	method                 Method
	// When it came in, when the driver set to work, was done, and answered; zero as long as it has not.
	arrived, worked, done, answered time.Time
	failed                          bool
}

// momentAt is how far the call was at a time; empty if it had not come in.
func (c call) momentAt(at time.Time) Moment {
	before := func(t time.Time) bool { return t.IsZero() || at.Before(t) }
	switch {
	case before(c.arrived):
		return ""
	case before(c.worked) && before(c.answered):
		return Arrived
	case before(c.done) && before(c.answered):
		return AtWork
	case before(c.answered):
		return Done
	default:
		return Answered
	}
}

// calls are all that came in, oldest first.
type calls struct {
	mu  sync.Mutex
	all []*call // guarded by mu, as their fields
}

// add adds a call, note sets the time of one of its moments.
func (c *calls) add(one *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, one)
}

func (c *calls) note(at *time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*at = time.Now()
}

func (c *calls) end(one *call, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one.answered, one.failed = time.Now(), err != nil
}

// snapshot copies them.
func (c *calls) snapshot() []call {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]call, 0, len(c.all))
	for _, one := range c.all {
		out = append(out, *one)
	}
	return out
}

// between is the CSI driver that stands in front of one of labdisk's personalities. It reports what it sees, and now
// and then answers Unavailable, before the work or after it.
type between struct {
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer

	name   string
	behind csi.NodeClient
	// hidden, if it is set, is a folder for stages that the agent does not know: to the agent the driver is one that
	// does not stage.
	hidden string
	// attached: the volumes take part in the handshake over volumesInUse.
	attached bool
	socket   string

	calls *calls
	// at is called at each moment of a call, while the call waits.
	at func(Method, Moment)
	// listed reads the Node live and reports a violation if it does not list the volume in use.
	listed func(when, unique string)

	mu     sync.Mutex
	random *rand.Rand // guarded by mu
	serial sync.Mutex // held by what hidden makes two calls
}

// serve registers the driver below the agent's root until the test ends.
func (b *between) serve(t *testing.T, root, behind string) {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+behind, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	b.behind = csi.NewNodeClient(conn)
	b.socket = filepath.Join(root, "plugins", b.name, "csi.sock")
	server := grpc.NewServer(grpc.UnaryInterceptor(b.intercept))
	csi.RegisterNodeServer(server, b)
	listen(t, server, b.socket)
	registrar := grpc.NewServer()
	registration.RegisterRegistrationServer(registrar, b)
	listen(t, registrar, filepath.Join(root, "plugins_registry", b.name+".sock"))
}

func listen(t *testing.T, server *grpc.Server, socket string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
}

func (b *between) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: b.name, Endpoint: b.socket, SupportedVersions: []string{"1.0.0"}}, nil
}

func (b *between) NotifyRegistrationStatus(context.Context, *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	return &registration.RegistrationStatusResponse{}, nil
}

// intercept follows a call through its moments.
func (b *between) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	c := &call{driver: b.name, method: Method(info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]), arrived: time.Now()}
	if !slices.Contains(methods(), c.method) {
		return handle(ctx, request)
	}
	c.volume = request.(interface{ GetVolumeId() string }).GetVolumeId()
	switch r := request.(type) {
	case interface{ GetTargetPath() string }:
		c.target = r.GetTargetPath()
	case interface{ GetStagingTargetPath() string }:
		c.target = r.GetStagingTargetPath()
	}
	b.calls.add(c)
	reply, err := b.work(ctx, c, request, handle)
	b.calls.end(c, err)
	go b.at(c.method, Answered)
	return reply, err
}

func (b *between) work(ctx context.Context, c *call, request any, handle grpc.UnaryHandler) (any, error) {
	needsListing := b.attached && (c.method == Stage || c.method == Unstage || b.hidden != "" && c.method == Publish)
	if needsListing {
		b.listed(string(c.method)+" came in", kube.UniqueVolumeName(b.name, c.volume))
	}
	b.at(c.method, Arrived)
	if b.draw(30) {
		return nil, status.Error(codes.Unavailable, "the driver between was not in the mood")
	}
	b.calls.note(&c.worked)
	go b.at(c.method, AtWork)
	// A driver continues a call when its caller dies.
	reply, err := handle(context.WithoutCancel(ctx), request)
	b.calls.note(&c.done)
	if needsListing {
		b.listed(string(c.method)+" was done", kube.UniqueVolumeName(b.name, c.volume))
	}
	b.at(c.method, Done)
	if err == nil && b.draw(30) {
		return nil, status.Error(codes.Unavailable, "the driver between has lost the reply")
	}
	return reply, err
}

// draw is true once in so many times.
func (b *between) draw(of int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.random.IntN(of) == 0
}

func (b *between) NodeGetInfo(ctx context.Context, r *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return b.behind.NodeGetInfo(ctx, r)
}

func (b *between) NodeGetCapabilities(ctx context.Context, r *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	reply, err := b.behind.NodeGetCapabilities(ctx, r)
	if b.hidden != "" && err == nil {
		reply.Capabilities = slices.DeleteFunc(reply.Capabilities, func(c *csi.NodeServiceCapability) bool {
			return c.GetRpc().GetType() == csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
		})
	}
	return reply, err
}

func (b *between) NodeGetVolumeStats(ctx context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	return b.behind.NodeGetVolumeStats(ctx, r)
}

func (b *between) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return b.behind.NodeStageVolume(ctx, r)
}

func (b *between) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return b.behind.NodeUnstageVolume(ctx, r)
}

func (b *between) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if b.hidden == "" {
		return b.behind.NodePublishVolume(ctx, r)
	}
	b.serial.Lock()
	defer b.serial.Unlock()
	r.StagingTargetPath = filepath.Join(b.hidden, r.GetVolumeId())
	if _, err := b.behind.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: r.GetVolumeId(), PublishContext: r.GetPublishContext(), StagingTargetPath: r.GetStagingTargetPath(),
		VolumeCapability: r.GetVolumeCapability(), VolumeContext: r.GetVolumeContext(),
	}); err != nil {
		return nil, err
	}
	return b.behind.NodePublishVolume(ctx, r)
}

func (b *between) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if b.hidden == "" {
		return b.behind.NodeUnpublishVolume(ctx, r)
	}
	b.serial.Lock()
	defer b.serial.Unlock()
	reply, err := b.behind.NodeUnpublishVolume(ctx, r)
	if err != nil {
		return nil, err
	}
	_, err = b.behind.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{
		VolumeId: r.GetVolumeId(), StagingTargetPath: filepath.Join(b.hidden, r.GetVolumeId()),
	})
	if err != nil && status.Code(err) != codes.FailedPrecondition { // another pod has it still
		return nil, err
	}
	return reply, nil
}
