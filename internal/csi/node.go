package csi

import (
	"context"
	"fmt"
	"math"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/accessmodes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
)

// Node is the Node service of one driver on this node.
type Node struct {
	conn   *grpc.ClientConn
	client spec.NodeClient
	calls  *calls
}

// dialUnix connects to a socket in the background. After a restart of the other side it reconnects within half a second.
func dialUnix(path string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix:"+path, append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 10 * time.Second,
		}))...)
	if err != nil {
		return nil, fmt.Errorf("connect to socket %s: %w", path, err)
	}
	return conn, nil
}

// DialNode connects to a driver's socket in the background. observe, if not nil, is called for each call that ended.
func DialNode(path string, observe func(Call)) (*Node, error) {
	running := &calls{}
	options := []grpc.DialOption{grpc.WithUnaryInterceptor(running.count)}
	if observe != nil {
		options = append(options, observed(observe))
	}
	conn, err := dialUnix(path, options...)
	if err != nil {
		return nil, err
	}
	return &Node{conn: conn, client: spec.NewNodeClient(conn), calls: running}, nil
}

// Close ends the connection and the calls on it.
func (n *Node) Close() error { return n.conn.Close() }

// Retire closes the connection when its calls have ended. It does not wait for them.
func (n *Node) Retire() { n.calls.whenIdle(func() { _ = n.conn.Close() }) }

// WatchConnection keeps the connection up and calls back each time it was established: a different driver may be behind it. It
// returns when ctx ends or the connection is closed.
func (n *Node) WatchConnection(ctx context.Context, again func()) {
	for {
		state := n.conn.GetState()
		switch state {
		case connectivity.Idle:
			n.conn.Connect()
		case connectivity.Ready:
			again()
		case connectivity.Shutdown:
			return
		case connectivity.Connecting, connectivity.TransientFailure:
		}
		if !n.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// NodeInfo is NodeGetInfo's reply.
type NodeInfo struct {
	NodeID string
	// MaxVolumes is the attach limit; 0 if the driver reports none.
	MaxVolumes int32
	Topology   map[string]string
}

// connectTimeout is how long Info waits for a connection, several times the pause between two attempts. Tests raise it.
var connectTimeout = 2 * time.Second

// infoAttempts is how often Info sends the request at most.
const infoAttempts = 4

// awaitConnection waits until the driver accepts the connection or ctx ends. The last attempt may have reached the socket of a
// driver that was just restarting.
func (n *Node) awaitConnection(patience context.Context) {
	n.conn.Connect()
	for state := n.conn.GetState(); state != connectivity.Ready && state != connectivity.Shutdown; state = n.conn.GetState() {
		if !n.conn.WaitForStateChange(patience, state) {
			return // the call returns the error
		}
	}
}

// Info calls NodeGetInfo, once the driver's socket exists. The connection may still lead to an earlier process of the driver that
// has just ended: then the call is repeated.
func (n *Node) Info(ctx context.Context) (NodeInfo, error) {
	patience, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var reply *spec.NodeGetInfoResponse
	err := status.Error(codes.Unavailable, "not asked")
	for try := 0; try < infoAttempts && status.Code(err) == codes.Unavailable; try++ {
		n.awaitConnection(patience)
		reply, err = n.client.NodeGetInfo(ctx, &spec.NodeGetInfoRequest{})
	}
	if err != nil {
		return NodeInfo{}, fmt.Errorf("NodeGetInfo: %w", err)
	}
	// A negative limit is invalid and means none, as for kubelet.
	limit := min(max(reply.GetMaxVolumesPerNode(), 0), math.MaxInt32)
	return NodeInfo{NodeID: reply.GetNodeId(), MaxVolumes: int32(limit), Topology: reply.GetAccessibleTopology().GetSegments()}, nil
}

// NodeCapabilities are the capabilities of a driver's Node service.
type NodeCapabilities struct {
	Stage, SingleNodeMultiWriter, VolumeMountGroup, Expand, Stats, Condition bool
}

// Capabilities calls NodeGetCapabilities.
func (n *Node) Capabilities(ctx context.Context) (NodeCapabilities, error) {
	reply, err := n.client.NodeGetCapabilities(ctx, &spec.NodeGetCapabilitiesRequest{})
	if err != nil {
		return NodeCapabilities{}, fmt.Errorf("NodeGetCapabilities: %w", err)
	}
	var has NodeCapabilities
	for _, c := range reply.GetCapabilities() {
		switch c.GetRpc().GetType() {
		case spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME:
			has.Stage = true
		case spec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER:
			has.SingleNodeMultiWriter = true
		case spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP:
			has.VolumeMountGroup = true
		case spec.NodeServiceCapability_RPC_EXPAND_VOLUME:
			has.Expand = true
		case spec.NodeServiceCapability_RPC_GET_VOLUME_STATS:
			has.Stats = true
		case spec.NodeServiceCapability_RPC_VOLUME_CONDITION:
			has.Condition = true
		default:
		}
	}
	return has, nil
}

// AccessMode is a PersistentVolume's access mode, as the API spells it.
type AccessMode string

// mode returns the CSI access mode, which depends on whether the driver distinguishes ReadWriteOnce and ReadWriteOncePod.
func (m AccessMode) mode(singleNodeMultiWriter bool) spec.VolumeCapability_AccessMode_Mode {
	modes := []corev1.PersistentVolumeAccessMode{corev1.PersistentVolumeAccessMode(m)}
	mode, _ := accessmodes.ToCSIAccessMode(modes, singleNodeMultiWriter) // UNKNOWN with an error
	return mode
}

// NodeVolume is the part of a request that stage and publish share.
type NodeVolume struct {
	ID          string
	Block       bool
	AccessMode  AccessMode
	FSType      string
	MountFlags  []string
	MountGroup  string
	Publish     map[string]string
	Context     map[string]string
	Secrets     Secrets
	StagingPath string
}

func (v NodeVolume) capability(has NodeCapabilities) *spec.VolumeCapability {
	out := &spec.VolumeCapability{
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: v.AccessMode.mode(has.SingleNodeMultiWriter)},
	}
	if v.Block {
		out.AccessType = &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}}
		return out
	}
	mount := &spec.VolumeCapability_MountVolume{FsType: v.FSType, MountFlags: v.MountFlags}
	if has.VolumeMountGroup {
		mount.VolumeMountGroup = v.MountGroup
	}
	out.AccessType = &spec.VolumeCapability_Mount{Mount: mount}
	return out
}

// Stage calls NodeStageVolume.
func (n *Node) Stage(ctx context.Context, v NodeVolume, has NodeCapabilities) error {
	_, err := n.client.NodeStageVolume(ctx, &spec.NodeStageVolumeRequest{
		VolumeId: v.ID, PublishContext: v.Publish, StagingTargetPath: v.StagingPath,
		VolumeCapability: v.capability(has), Secrets: v.Secrets, VolumeContext: v.Context,
	})
	return wrap("NodeStageVolume", v.ID, v.secretValues().redactError(err))
}

// Publish calls NodePublishVolume.
func (n *Node) Publish(ctx context.Context, v NodeVolume, target Target, has NodeCapabilities) error {
	_, err := n.client.NodePublishVolume(ctx, &spec.NodePublishVolumeRequest{
		VolumeId: v.ID, PublishContext: v.Publish, StagingTargetPath: v.StagingPath, TargetPath: target.Path,
		VolumeCapability: v.capability(has), Readonly: target.ReadOnly, Secrets: v.Secrets, VolumeContext: v.Context,
	})
	return wrap("NodePublishVolume", v.ID, v.secretValues().redactError(err))
}

// Target is where and how a volume is published.
type Target struct {
	Path     string
	ReadOnly bool
}

// Unpublish calls NodeUnpublishVolume.
func (n *Node) Unpublish(ctx context.Context, id, target string) error {
	_, err := n.client.NodeUnpublishVolume(ctx, &spec.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	return wrap("NodeUnpublishVolume", id, err)
}

// Unstage calls NodeUnstageVolume.
func (n *Node) Unstage(ctx context.Context, id, stagingPath string) error {
	_, err := n.client.NodeUnstageVolume(ctx, &spec.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: stagingPath})
	return wrap("NodeUnstageVolume", id, err)
}

func wrap(call, volume string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s of volume %s: %w", call, volume, Secrets{}.redactError(err))
}
