package csi

import (
	"context"
	"fmt"
	"slices"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/accessmodes"
	"github.com/kubernetes-csi/csi-lib-utils/connection"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
)

// ShortTimeout limits the calls that a driver answers from memory: GetPluginInfo, and the two capability calls together. The process
// exits when it passes. On a busy machine an answer can take longer than csi-attacher's 1 s. Tests raise it.
var ShortTimeout = 10 * time.Second

// PublishRequest is ControllerPublishVolumeRequest in Kubernetes' terms.
type PublishRequest struct {
	VolumeHandle  string
	NodeID        string
	AccessModes   []corev1.PersistentVolumeAccessMode
	Block         bool   // raw block; FSType and MountFlags are not sent
	FSType        string // may be empty
	MountFlags    []string
	ReadOnly      bool // sent only if the driver has PUBLISH_READONLY
	VolumeContext map[string]string
	Secrets       Secrets // nil if the volume has none
	Migrated      bool    // for the "migrated" label of the metrics
}

// UnpublishRequest is ControllerUnpublishVolumeRequest.
type UnpublishRequest struct {
	VolumeHandle string
	NodeID       string
	Secrets      Secrets
	Migrated     bool
}

// Capabilities are a driver's capabilities that concern attaching.
type Capabilities struct {
	Attach                   bool // CONTROLLER_SERVICE and PUBLISH_UNPUBLISH_VOLUME
	PublishReadOnly          bool
	SingleNodeMultiWriter    bool
	ListVolumes              bool
	ListVolumePublishedNodes bool
}

func driverName(ctx context.Context, conn *grpc.ClientConn) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, ShortTimeout)
	defer cancel()
	name, err := rpc.GetDriverName(ctx, conn)
	if err != nil {
		return "", fmt.Errorf("get the name of the CSI driver: %w", err)
	}
	return name, nil
}

// Controller is a driver's Controller service.
type Controller struct {
	client       csispec.ControllerClient
	capabilities Capabilities
	present      func() bool // nil: always
}

// Present reports whether the driver is connected, as far as is known; always true without a Driver.
func (c *Controller) Present() bool { return c.present == nil || c.present() }

// NewController reads the driver's capabilities. The options apply to each call that the Controller sends later.
func NewController(ctx context.Context, conn *grpc.ClientConn, options ...grpc.CallOption) (*Controller, error) {
	capabilities, err := getCapabilities(ctx, conn)
	if err != nil {
		return nil, err
	}
	return &Controller{client: csispec.NewControllerClient(redacting{withOptions{conn, options}}), capabilities: capabilities}, nil
}

func getCapabilities(ctx context.Context, conn *grpc.ClientConn) (Capabilities, error) {
	ctx, cancel := context.WithTimeout(ctx, ShortTimeout)
	defer cancel()
	plugin, err := rpc.GetPluginCapabilities(ctx, conn)
	if err != nil {
		return Capabilities{}, fmt.Errorf("get the plugin capabilities of the CSI driver: %w", err)
	}
	if !plugin[csispec.PluginCapability_Service_CONTROLLER_SERVICE] {
		return Capabilities{}, nil
	}
	has, err := rpc.GetControllerCapabilities(ctx, conn)
	if err != nil {
		return Capabilities{}, fmt.Errorf("get the controller capabilities of the CSI driver: %w", err)
	}
	return Capabilities{
		Attach:                   has[csispec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME],
		PublishReadOnly:          has[csispec.ControllerServiceCapability_RPC_PUBLISH_READONLY],
		SingleNodeMultiWriter:    has[csispec.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER],
		ListVolumes:              has[csispec.ControllerServiceCapability_RPC_LIST_VOLUMES],
		ListVolumePublishedNodes: has[csispec.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES],
	}, nil
}

// Capabilities returns the capabilities that NewController has read.
func (c *Controller) Capabilities() Capabilities { return c.capabilities }

// CheckPublish returns why no request can be made for these access modes; nil if one can.
func (c *Controller) CheckPublish(modes []corev1.PersistentVolumeAccessMode) error {
	_, err := accessmodes.ToCSIAccessMode(modes, c.capabilities.SingleNodeMultiWriter)
	return err
}

// Publish calls ControllerPublishVolume and returns the publish context. The error is the driver's, unwrapped: its text is stored
// in the attachment's status as csi-attacher writes it.
func (c *Controller) Publish(ctx context.Context, r PublishRequest) (map[string]string, error) {
	mode, err := accessmodes.ToCSIAccessMode(r.AccessModes, c.capabilities.SingleNodeMultiWriter)
	if err != nil {
		return nil, err
	}
	capability := &csispec.VolumeCapability{AccessMode: &csispec.VolumeCapability_AccessMode{Mode: mode}}
	if r.Block {
		capability.AccessType = &csispec.VolumeCapability_Block{Block: &csispec.VolumeCapability_BlockVolume{}}
	} else {
		capability.AccessType = &csispec.VolumeCapability_Mount{Mount: &csispec.VolumeCapability_MountVolume{
			FsType: r.FSType, MountFlags: r.MountFlags,
		}}
	}
	reply, err := c.client.ControllerPublishVolume(withMigrated(ctx, r.Migrated), &csispec.ControllerPublishVolumeRequest{
		VolumeId:         r.VolumeHandle,
		NodeId:           r.NodeID,
		VolumeCapability: capability,
		// A driver without PUBLISH_READONLY must be sent false (CSI spec).
		Readonly:      r.ReadOnly && c.capabilities.PublishReadOnly,
		VolumeContext: r.VolumeContext,
		Secrets:       r.Secrets,
	})
	if err != nil {
		return nil, err
	}
	return reply.GetPublishContext(), nil
}

// Unpublish calls ControllerUnpublishVolume. Only OK means that the volume is no longer published: NOT_FOUND does not (CSI spec;
// external-attacher#165).
func (c *Controller) Unpublish(ctx context.Context, r UnpublishRequest) error {
	_, err := c.client.ControllerUnpublishVolume(withMigrated(ctx, r.Migrated), &csispec.ControllerUnpublishVolumeRequest{
		VolumeId: r.VolumeHandle,
		NodeId:   r.NodeID,
		Secrets:  r.Secrets,
	})
	return err
}

// maxPage is the maximum size of one page of a list. gRPC's default of 4 MiB holds some ten thousand volumes, and csi-attacher's
// default requests all at once.
const maxPage = 256 << 20

// VolumePage is one page of the driver's list of volumes.
type VolumePage struct {
	// Published has the CSI node IDs that each listed volume is published to. Some may be unknown nodes (CSI spec).
	Published []PublishedVolume
	// Next is the token of the next page; empty after the last one.
	Next string
}

// PublishedVolume is one entry of the driver's list.
type PublishedVolume struct {
	VolumeHandle string
	// Known: the entry says where the volume is published. Without NodeIDs, that is nowhere (CSI spec). An entry without a status, or
	// with empty node IDs only, says nothing.
	Known bool
	// NodeIDs are sorted. Each is there once, and none is empty.
	NodeIDs []string
}

// publishedTo returns the node IDs of an entry. The GCE PD driver v1.28.1 lists an empty one for each user of the disk, before the
// real ones (pkg/gce-pd-csi-driver/controller.go, line 1739): they name no node.
func publishedTo(status *csispec.ListVolumesResponse_VolumeStatus) (nodeIDs []string, known bool) {
	listed := status.GetPublishedNodeIds()
	if len(listed) == 0 || len(listed) == 1 && listed[0] != "" { // nearly always: nothing is copied
		return listed, status != nil
	}
	nodeIDs = slices.Compact(slices.Sorted(slices.Values(listed)))
	if nodeIDs[0] == "" {
		nodeIDs = nodeIDs[1:]
	}
	return nodeIDs, len(nodeIDs) > 0
}

// CanListPublished reports whether the driver can attach and lists where its volumes are published.
func (c Capabilities) CanListPublished() bool {
	return c.Attach && c.ListVolumes && c.ListVolumePublishedNodes
}

// ListVolumes reads one page, the first if token is empty. maxEntries limits it; 0 leaves that to the driver. Entries without a
// volume are omitted.
func (c *Controller) ListVolumes(ctx context.Context, maxEntries int32, token string) (VolumePage, error) {
	reply, err := c.client.ListVolumes(ctx, &csispec.ListVolumesRequest{MaxEntries: maxEntries, StartingToken: token},
		grpc.MaxCallRecvMsgSize(maxPage))
	if err != nil {
		return VolumePage{}, err
	}
	page := VolumePage{Next: reply.GetNextToken(), Published: make([]PublishedVolume, 0, len(reply.GetEntries()))}
	for _, entry := range reply.GetEntries() {
		if entry.GetVolume() == nil {
			continue
		}
		nodeIDs, known := publishedTo(entry.GetStatus())
		page.Published = append(page.Published, PublishedVolume{VolumeHandle: entry.GetVolume().GetVolumeId(), Known: known, NodeIDs: nodeIDs})
	}
	return page, nil
}

// withMigrated passes the "migrated" label to csi-lib-utils' metrics.
func withMigrated(ctx context.Context, migrated bool) context.Context {
	value := "false"
	if migrated {
		value = "true"
	}
	return context.WithValue(ctx, connection.AdditionalInfoKey, connection.AdditionalInfo{Migrated: value})
}
