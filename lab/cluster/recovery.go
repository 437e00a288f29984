package cluster

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"

	"belay.dev/belay/lab/proc"
)

// The parts of recovery, each a component with the rights that are shipped for it. With belay's plane the actor is part of
// belay-controller, which then needs no taint to believe it.
const (
	identityDetector = "belay-recovery-detector"
	identityFencer   = "belay-recovery-fencer"
	identityActor    = "belay-recovery-actor"

	recoveryDir    = "belay-recovery"
	fencingGroup   = "fencing.belay.dev"
	fencingVersion = fencingGroup + "/v1alpha1"
	bmcSecret      = "bmc" // as the shipped Role of the fencer names it
)

// recoveryIdentities are all parts of recovery.
func recoveryIdentities() []string {
	return []string{identityDetector, identityFencer, identityActor}
}

// recoveryArgs are the flags of a process that runs one part of recovery.
func (s specs) recoveryArgs(role string) []string {
	return append([]string{"--recovery-roles=" + role, "--recovery-profile=" + s.options.Recovery}, s.options.RecoveryArgs...)
}

// recoveryParts are the processes of recovery.
func (s specs) recoveryParts() []proc.Spec {
	if s.options.Recovery == "" {
		return nil
	}
	parts := map[string]string{identityDetector: "detector", identityFencer: "fencer"}
	if s.options.Plane == PlaneUpstream {
		parts[identityActor] = "actor"
	}
	var all []proc.Spec
	for _, identity := range recoveryIdentities() {
		role, runs := parts[identity]
		if !runs {
			continue
		}
		spec := s.component(identity, s.own.path("belay-controller"), "--kubeconfig="+s.kubeconfig(identity, identity), "--controllers=recovery",
			"--metrics-bind-address="+address(s.ports.Sidecars[identity]), "--metrics-secure=false",
			"--leader-elect-lease-duration="+leaseDuration, "--leader-elect-renew-deadline="+renewDeadline, "--leader-elect-retry-period="+retryPeriod,
			"--v="+strconv.Itoa(s.options.Verbosity))
		spec.Args = append(spec.Args, s.recoveryArgs(role)...)
		all = append(all, spec)
	}
	return all
}

// applyFenceSources names the BMC of each node, in a lab that runs recovery itself.
func (c *Cluster) applyFenceSources(ctx context.Context) error {
	if c.options.Recovery == "" {
		return nil
	}
	return c.ApplyFenceSources(ctx, belayNamespace)
}

// ApplyFenceSources names the BMC of each node, once the API server serves the resource, with the passwords in a Secret of the namespace.
func (c *Cluster) ApplyFenceSources(ctx context.Context, namespace string) error {
	if err := c.await(ctx, "the API of recovery", startWithin, c.servesFencing); err != nil {
		return err
	}
	objects := []*unstructured.Unstructured{{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{
			"namespace": namespace, "name": bmcSecret, "annotations": map[string]any{"fencing.belay.dev/addresses": loopback},
		},
		"stringData": map[string]any{"username": BMCUser, "password": BMCPassword},
	}}}
	for _, node := range c.options.nodeNames() {
		objects = append(objects, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": fencingVersion, "kind": "FenceSource", "metadata": map[string]any{"name": node},
			"spec": map[string]any{"levels": []any{map[string]any{"feeds": []any{map[string]any{
				"agent": "fence_ipmilan",
				"options": map[string]any{
					"ip": loopback, "ipport": strconv.Itoa(c.ports.BMCs[node]), "lanplus": "1", "cipher": "3", "power_wait": "0", "power_timeout": "4",
				},
				"secretRef": map[string]any{"namespace": namespace, "name": bmcSecret},
			}}}}},
		}})
	}
	return applyAll(ctx, c.RESTConfig(), objects)
}

// servesFencing fails until the API server serves both resources.
func (c *Cluster) servesFencing(context.Context) error {
	client, err := discovery.NewDiscoveryClientForConfig(c.RESTConfig())
	if err != nil {
		return fmt.Errorf("making a discovery client: %w", err)
	}
	list, err := client.ServerResourcesForGroupVersion(fencingVersion)
	if err != nil {
		return fmt.Errorf("asking for %s: %w", fencingVersion, err)
	}
	var served []string
	for i := range list.APIResources {
		served = append(served, list.APIResources[i].Name)
	}
	if !slices.Contains(served, "nodefences") || !slices.Contains(served, "fencesources") {
		return fmt.Errorf("%s is not served yet", fencingVersion)
	}
	return nil
}
