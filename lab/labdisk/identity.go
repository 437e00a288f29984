package labdisk

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Identity is the CSI Identity service of a driver with a controller service.
type Identity struct {
	csi.UnimplementedIdentityServer
	Driver string
	// Zones adds the capability VOLUME_ACCESSIBILITY_CONSTRAINTS.
	Zones bool
}

// GetPluginInfo implements the Identity service.
func (i Identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.Driver, VendorVersion: "1.0.0"}, nil
}

// GetPluginCapabilities implements the Identity service.
func (i Identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	types := []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE}
	if i.Zones {
		types = append(types, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	}
	response := &csi.GetPluginCapabilitiesResponse{}
	for _, t := range types {
		response.Capabilities = append(response.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}})
	}
	return response, nil
}

// Probe implements the Identity service.
func (i Identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}
