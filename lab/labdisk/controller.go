package labdisk

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Sizes of volumes, bytes.
const (
	defaultBytes = 1 << 30
	minimumBytes = 1 << 20
	sectorBytes  = 4096 // sizes are rounded up to whole ones
)

// controller is the CSI Controller service of a personality.
type controller struct {
	csi.UnimplementedControllerServer
	driver string
	fabric *fabric
}

// hasAttach is false for the personality that has no ControllerPublishVolume.
func (c *controller) hasAttach() bool { return c.driver != DriverLocal }

func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	types := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if c.hasAttach() {
		types = append(types,
			csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
			csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
			csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES)
	}
	if c.driver == DriverDisk {
		types = append(types, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	}
	resp := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range types {
		resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}}})
	}
	return resp, nil
}

func (c *controller) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if r.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "name is empty")
	}
	if err := checkCapabilities(c.driver, r.GetVolumeCapabilities()); err != nil {
		return nil, err
	}
	if r.GetVolumeContentSource() != nil {
		return nil, status.Errorf(codes.InvalidArgument, "%s makes empty volumes only", c.driver)
	}
	size, err := c.size(r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	zones := zonesOf(r.GetAccessibilityRequirements())
	want := newVolume{Driver: c.driver, Name: r.GetName(), Bytes: size, Zone: zones[0]}
	v, err := c.fabric.create(want, func(have Volume) bool {
		return inRange(have.Bytes, r.GetCapacityRange()) && slices.Contains(zones, have.Zone)
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return &csi.CreateVolumeResponse{Volume: csiVolume(v)}, nil
}

// size chooses the size of a new volume. The file is sparse, but a volume larger than what the disk has left is refused.
func (c *controller) size(r *csi.CapacityRange) (int64, error) {
	size := max(r.GetRequiredBytes(), minimumBytes)
	if r.GetRequiredBytes() == 0 {
		size = defaultBytes
		if limit := r.GetLimitBytes(); limit > 0 {
			size = min(size, limit)
		}
	}
	rounded := (size + sectorBytes - 1) / sectorBytes * sectorBytes
	switch limit := r.GetLimitBytes(); {
	case r.GetRequiredBytes() < 0 || limit < 0:
		return 0, status.Error(codes.InvalidArgument, "capacity_range is negative")
	case limit > 0 && rounded > limit:
		return 0, status.Errorf(codes.OutOfRange, "no size between %d and %d bytes: sizes are whole sectors of %d bytes and at least %d",
			r.GetRequiredBytes(), limit, sectorBytes, minimumBytes)
	}
	free, err := c.free()
	if err != nil {
		return 0, err
	}
	if rounded > free {
		return 0, status.Errorf(codes.ResourceExhausted, "%d bytes are asked for, the disk that holds %s has %d left",
			rounded, c.fabric.opts.Dir, free)
	}
	return rounded, nil
}

// free is what the disk under the fabric has left, bytes.
func (c *controller) free() (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(c.fabric.opts.Dir, &fs); err != nil {
		return 0, status.Errorf(codes.Internal, "ask for the free space under %s: %v", c.fabric.opts.Dir, err)
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}

func (c *controller) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is empty")
	}
	if err := c.fabric.remove(c.driver, r.GetVolumeId()); err != nil {
		return nil, statusOf(err)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

func (c *controller) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	switch {
	case !c.hasAttach():
		return nil, status.Errorf(codes.Unimplemented, "%s has no attach", c.driver)
	case r.GetVolumeId() == "":
		return nil, status.Error(codes.InvalidArgument, "volume_id is empty")
	case r.GetNodeId() == "":
		return nil, status.Error(codes.InvalidArgument, "node_id is empty")
	}
	if err := checkCapability(c.driver, r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	mode := r.GetVolumeCapability().GetAccessMode().GetMode()
	a, err := c.fabric.attach(wantedAttachment{
		Driver: c.driver, Volume: r.GetVolumeId(), Node: r.GetNodeId(),
		ReadOnly:     r.GetReadonly() || isReaderOnly(mode),
		Shared:       isMultiNode(mode),
		SingleWriter: mode == csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{EpochKey: strconv.FormatUint(a.Epoch, 10)}}, nil
}

func (c *controller) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	switch {
	case !c.hasAttach():
		return nil, status.Errorf(codes.Unimplemented, "%s has no attach", c.driver)
	case r.GetVolumeId() == "":
		return nil, status.Error(codes.InvalidArgument, "volume_id is empty")
	}
	if err := c.fabric.detach(c.driver, r.GetVolumeId(), r.GetNodeId()); err != nil {
		return nil, statusOf(err)
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (c *controller) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is empty")
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume_capabilities is empty")
	}
	if _, err := c.fabric.get(c.driver, r.GetVolumeId()); err != nil {
		return nil, statusOf(err)
	}
	if err := checkCapabilities(c.driver, r.GetVolumeCapabilities()); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters()}}, nil
}

// ListVolumes pages by the order of creation: a token is "after-" and the sequence of the last volume listed, so that it
// stays good when volumes come and go between two pages.
func (c *controller) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	if r.GetMaxEntries() < 0 {
		return nil, status.Error(codes.InvalidArgument, "max_entries is negative")
	}
	s := c.fabric.snapshot()
	after := uint64(0)
	if token := r.GetStartingToken(); token != "" {
		digits, ok := strings.CutPrefix(token, "after-")
		n, err := strconv.ParseUint(digits, 10, 64)
		if !ok || err != nil || n == 0 || n >= s.NextSequence {
			return nil, status.Errorf(codes.Aborted, "starting_token %q is invalid: begin again without one", token)
		}
		after = n
	}
	resp := &csi.ListVolumesResponse{}
	last := uint64(0)
	for _, v := range s.Volumes {
		if v.Driver != c.driver || v.Sequence <= after {
			continue
		}
		if limit := int(r.GetMaxEntries()); limit > 0 && len(resp.Entries) == limit {
			resp.NextToken = "after-" + strconv.FormatUint(last, 10)
			break
		}
		entry := &csi.ListVolumesResponse_Entry{Volume: csiVolume(v)}
		if c.hasAttach() {
			entry.Status = &csi.ListVolumesResponse_VolumeStatus{}
			for _, a := range v.Attachments {
				entry.Status.PublishedNodeIds = append(entry.Status.PublishedNodeIds, a.Node)
			}
		}
		resp.Entries = append(resp.Entries, entry)
		last = v.Sequence
	}
	return resp, nil
}

func (c *controller) GetCapacity(_ context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	for _, capability := range r.GetVolumeCapabilities() {
		if !supports(c.driver, capability) {
			return &csi.GetCapacityResponse{}, nil
		}
	}
	free, err := c.free()
	if err != nil {
		return nil, err
	}
	return &csi.GetCapacityResponse{AvailableCapacity: free / sectorBytes * sectorBytes}, nil
}

// statusOf gives the refusals of the fabric the codes of the CSI spec.
func statusOf(err error) error {
	code := codes.Internal
	for refusal, c := range map[error]codes.Code{
		errVolumeNotFound: codes.NotFound,
		errNodeNotFound:   codes.NotFound,
		errIncompatible:   codes.AlreadyExists,
		errHeldElsewhere:  codes.FailedPrecondition,
		errStillHeld:      codes.FailedPrecondition,
		errWrongZone:      codes.FailedPrecondition,
		errTooMany:        codes.ResourceExhausted,
		errDiskFull:       codes.ResourceExhausted,
	} {
		if errors.Is(err, refusal) {
			code = c
		}
	}
	return status.Error(code, err.Error())
}

func csiVolume(v Volume) *csi.Volume {
	return &csi.Volume{VolumeId: v.Handle, CapacityBytes: v.Bytes,
		AccessibleTopology: []*csi.Topology{{Segments: map[string]string{TopologyKey: v.Zone}}}}
}

// zonesOf lists the zones that will do, the best first: never none.
func zonesOf(r *csi.TopologyRequirement) []string {
	var zones []string
	for _, t := range append(append([]*csi.Topology{}, r.GetPreferred()...), r.GetRequisite()...) {
		if zone := t.GetSegments()[TopologyKey]; zone != "" && !slices.Contains(zones, zone) {
			zones = append(zones, zone)
		}
	}
	if len(zones) == 0 {
		return []string{DefaultZone}
	}
	return zones
}

func inRange(size int64, r *csi.CapacityRange) bool {
	return size >= r.GetRequiredBytes() && (r.GetLimitBytes() == 0 || size <= r.GetLimitBytes())
}
