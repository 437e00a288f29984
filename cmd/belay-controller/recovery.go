package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cliflag "k8s.io/component-base/cli/flag"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/preflight"
	"belay.dev/belay/internal/recovery"
	"belay.dev/belay/internal/telemetry"
)

// Values of --controllers.
const (
	controllerAttachDetach = "attachdetach"
	controllerRecovery     = "recovery"
)

// Values of --recovery-roles.
const (
	roleDetector = "detector"
	roleFencer   = "fencer"
	roleActor    = "actor"
)

var (
	allControllers = []string{controllerAttachDetach, controllerRecovery}
	allRoles       = []string{roleDetector, roleFencer, roleActor}
	profiles       = map[string]fencing.Profile{fencing.Default.Name: fencing.Default, fencing.Fast.Name: fencing.Fast}
)

// recoveryOptions are the flags of recovery.
type recoveryOptions struct {
	roles   []string
	profile string
	node    string
	dryRun  bool
	agents  string
	brakes  fencing.Brakes
	chance  time.Duration
	// leases is the namespace of medik8s' leases.
	leases string
}

func (o *options) recoveryFlags(sets *cliflag.NamedFlagSets) {
	f, r := sets.FlagSet("Recovery of volumes from dead nodes"), &o.recovery
	r.brakes = fencing.DefaultBrakes()
	f.StringSliceVar(&r.roles, "recovery-roles", allRoles,
		"The parts of recovery that this process runs: detector, fencer, actor. Each needs the permissions of its file in deploy/belay-recovery. Run them as three Deployments so that no process can both read the passwords of the power switches and delete pods.")
	f.StringVar(&r.profile, "recovery-profile", fencing.Default.Name,
		"How soon a silent node is suspected: \"default\" after 25s, for kubelets with default settings; \"fast\" after 10s, for kubelets with nodeLeaseDurationSeconds: 10, nodeStatusUpdateFrequency: 1s and nodeStatusReportFrequency: 5m. A node whose lease lasts longer is given more time.")
	f.StringVar(&r.node, "recovery-node-name", "", "Name of the node that this process runs on, which is never fenced. Set it from spec.nodeName.")
	f.BoolVar(&r.dryRun, "recovery-dry-run", false, "Report by events, logs and metrics which nodes would be fenced, and fence none.")
	f.StringVar(&r.agents, "recovery-agent-path", "/usr/sbin", "Directories, separated by colons, with the fence agents that FenceSources may name.")
	f.Float64Var(&r.brakes.Share, "recovery-max-silent-share", r.brakes.Share,
		"Share of the nodes that may be fenced, 0 to 1, that may be silent at a time. If more are, no fence begins, and neither if half of all nodes are, unless this allows more. One silent node is always allowed.")
	f.Float64Var(&r.brakes.ZoneShare, "recovery-max-silent-zone-share", r.brakes.ZoneShare, "The same for the nodes of one zone (topology.kubernetes.io/zone).")
	f.IntVar(&r.brakes.Fences, "recovery-max-fences", r.brakes.Fences, "The most nodes to which a command to switch off is sent within --recovery-fence-window. 0 begins no fence.")
	f.DurationVar(&r.brakes.Window, "recovery-fence-window", r.brakes.Window, "See --recovery-max-fences.")
	f.DurationVar(&r.chance, "recovery-chance", fencing.Default.Chance, "How long a silent node that is not Ready is given a chance, at most, because its machine refuses connections, answers without the key that its kubelet had, or announced that it stops. It ends before that when a pod with a volume was evicted from the node. 0: only then.")
	f.StringVar(&r.leases, "recovery-node-leases", "", "Namespace of the Leases by which medik8s' operators agree on who works on a node, usually medik8s-leases. With it, the detector serves BelayRemediations, begins no fence while another component has the lease of a node, and takes it when it fences by itself. See docs/nodehealthcheck.md.")
	f.IntVar(&r.brakes.InFlight, "recovery-max-in-flight", r.brakes.InFlight, "The most fences at a time that may send a command and are not Detaching yet.")
}

// runs reports whether this process runs the controller.
func (o *options) runs(controller string) bool { return slices.Contains(o.controllers, controller) }

func (o *options) validateRecovery() error {
	r := &o.recovery
	if err := oneOf("controllers", o.controllers, allControllers); err != nil {
		return err
	}
	if err := oneOf("recovery-roles", r.roles, allRoles); err != nil {
		return err
	}
	if _, known := profiles[r.profile]; !known {
		return fmt.Errorf("--recovery-profile must be %s or %s, not %q", fencing.Default.Name, fencing.Fast.Name, r.profile)
	}
	for flag, share := range map[string]float64{"recovery-max-silent-share": r.brakes.Share, "recovery-max-silent-zone-share": r.brakes.ZoneShare} {
		if !(share >= 0 && share <= 1) {
			return fmt.Errorf("--%s is %v, but must be from 0 to 1", flag, share)
		}
	}
	if r.brakes.Fences < 0 || r.brakes.InFlight < 1 || r.brakes.Window <= 0 {
		return errors.New("--recovery-max-fences must be at least 0, --recovery-max-in-flight at least 1 and --recovery-fence-window above 0")
	}
	if r.chance < 0 {
		return fmt.Errorf("--recovery-chance is %v, but must be at least 0", r.chance)
	}
	return nil
}

// oneOf checks a flag that is a list of known words.
func oneOf(flag string, given, known []string) error {
	if len(given) == 0 {
		return fmt.Errorf("--%s must have at least one of: %s", flag, strings.Join(known, ", "))
	}
	for _, word := range given {
		if !slices.Contains(known, word) {
			return fmt.Errorf("--%s must be some of %s, not %q", flag, strings.Join(known, ", "), word)
		}
	}
	return nil
}

// leaseName is the default name of the lease: processes with the same work share one.
func (o *options) leaseName() string {
	switch {
	case o.runs(controllerAttachDetach):
		return kube.FieldManager
	case len(o.recovery.roles) == 1:
		return recovery.Name + "-" + o.recovery.roles[0]
	}
	return recovery.Name
}

// setupRecovery adds recovery to the manager.
func (o *options) setupRecovery(mgr manager.Manager, proofs *recovery.Proofs) error {
	r := &o.recovery
	kinds := []string{"NodeFence", "FenceSource"}
	if r.leases != "" {
		kinds = append(kinds, "BelayRemediation")
	}
	for _, kind := range kinds {
		_, err := mgr.GetRESTMapper().RESTMapping(schema.GroupKind{Group: fencingv1.GroupVersion.Group, Kind: kind}, fencingv1.GroupVersion.Version)
		if meta.IsNoMatchError(err) {
			return fmt.Errorf("the API server has no %ss: apply the CustomResourceDefinitions in deploy/belay-recovery first", kind)
		}
		if err != nil {
			return fmt.Errorf("find the API of %ss: %w", kind, err)
		}
	}
	profile := profiles[r.profile]
	profile.Chance = r.chance
	if !o.runs(controllerAttachDetach) {
		proofs = nil
	}
	return recovery.Setup(mgr, o.lease.Identity, recovery.Options{
		Roles: r.partsRun(), Profile: profile, Brakes: r.brakes, DryRun: r.dryRun, Node: r.node, BesideUpstream: !o.runs(controllerAttachDetach),
		Dial: dialAgent(r.agents), Metrics: telemetry.NewRecovery(metrics.Registry), Proofs: proofs, ServerTime: o.manager.Clock.Now, NodeLeases: r.leases,
	})
}

// watched are the resources that the controllers of this process watch.
func (o *options) watched() (all []authorizationv1.ResourceAttributes) {
	if o.runs(controllerAttachDetach) {
		all = preflight.Watched()
	}
	if o.runs(controllerRecovery) {
		all = append(all, recovery.Watched(o.recovery.partsRun(), o.recovery.leases != "")...)
	}
	return all
}

// partsRun are the parts of recovery that this process runs.
func (r *recoveryOptions) partsRun() recovery.Roles {
	runs := func(role string) bool { return slices.Contains(r.roles, role) }
	return recovery.Roles{Detector: runs(roleDetector), Fencer: runs(roleFencer), Actor: runs(roleActor)}
}
