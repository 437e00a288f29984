package cluster

import (
	"fmt"
	"slices"
	"strconv"
)

// UserCSIAttacher is the user name of upstream's csi-attacher at the API server.
const UserCSIAttacher = "system:serviceaccount:" + labNamespace + ":csi-attacher"

// Sidecar is one run of an attacher in a bare lab.
type Sidecar struct {
	// Component is its name in the lab.
	Component string
	// Socket of the driver's controller service.
	Socket string
	// Args are flags beside those that every driver's manifest has.
	Args []string
	// Env are environment variables (NAME=value) beside those that it is shipped with.
	Env []string
}

// StartSidecar starts csi-attacher or belay-attacher as drivers' manifests do: flags as shipped, with leader election, but
// for what the lab's AttacherArgs, and then Args, say. One that exits is not started again.
func (c *Cluster) StartSidecar(plane string, o Sidecar) error {
	s := c.specs
	var program, config string
	switch plane {
	case PlaneBelay:
		program, config = s.own.path("belay-attacher"), identityAttacher
	case PlaneUpstream:
		program, config = s.upstream.Path("csi-attacher"), identityCSIAttacher
	default:
		return fmt.Errorf("the plane is %s or %s, not %q", PlaneBelay, PlaneUpstream, plane)
	}
	spec := s.component(o.Component, program, slices.Concat([]string{
		"--csi-address=" + o.Socket, "--kubeconfig=" + s.paths.kubeconfig(config), "--leader-election",
		"--leader-election-namespace=" + SidecarNamespace(plane), "--v=" + strconv.Itoa(s.options.Verbosity),
	}, s.options.AttacherArgs, o.Args)...)
	spec.Env = append(spec.Env, o.Env...)
	return c.launchOnce(spec)
}

// SidecarNamespace is where the lease of a plane's attacher lies. It is named external-attacher-leader-<driver>.
func SidecarNamespace(plane string) string {
	if plane == PlaneUpstream {
		return labNamespace
	}
	return belayNamespace
}
