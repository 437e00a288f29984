package recovery

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/telemetry"
)

// Name is the name of the controller in logs, metrics and events.
const Name = "belay-recovery"

// Back-off after a failed request.
const firstRetry, maxRetry = 50 * time.Millisecond, 5 * time.Second

// Switch is one power switch, as a fence agent speaks to it.
type Switch interface {
	// Status returns the power state and the text of the answer, without secrets. Anything but a clear answer is PowerUnknown.
	Status(ctx context.Context) (fencing.Power, string, error)
	// Off switches off. That it returned says nothing about the state.
	Off(ctx context.Context) error
	// Identity returns the system UUID of the hardware; ErrNoIdentity if the agent cannot tell.
	Identity(ctx context.Context) (string, error)
}

// ErrNoIdentity is the error of a Switch that does not report the identity of its hardware.
var ErrNoIdentity = errors.New("the agent gives no identity of the hardware")

// ErrRefused is the error of a Switch that is known to have refused the login: one that does not answer, or that says nothing of why, has not.
var ErrRefused = errors.New("the power switch refused the login")

// ErrNoAgent is the error of a Dial whose agent is not installed, or is no fence agent. Other errors are about its options.
var ErrNoAgent = errors.New("the agent cannot be used")

// ErrOffUntested is the error of a Dial whose agent may say Off of a machine that runs, as far as is known.
var ErrOffUntested = errors.New("the agent's Off does not count")

// Dial returns the switch of a feed. The secret is the data of the Secret that the feed names, nil without one.
type Dial func(feed fencingv1.Feed, secret map[string][]byte) (Switch, error)

// Roles are the parts that run in this process.
type Roles struct{ Detector, Fencer, Actor bool }

// Options configure recovery.
type Options struct {
	Roles   Roles
	Profile fencing.Profile
	Brakes  fencing.Brakes
	// DryRun reports which nodes would be fenced, and fences none: the actor does not run, and the fencer only exercises the switches. A fence
	// that began before stays as it is.
	DryRun bool
	// BesideUpstream is set when kube-controller-manager's attach/detach controller may work, with its own timer.
	BesideUpstream bool
	// Node is the name of the node that this process runs on, which it never fences; empty if unknown.
	Node string
	// NodeLeases is the namespace of the Leases by which medik8s' operators agree on who works on a node. With it the detector takes part in that, and serves
	// BelayRemediations; empty for neither.
	NodeLeases string
	// ServerTime is the API server's time, with which what it recorded is compared; the time of this process if nil.
	ServerTime func() time.Time
	// Dial reaches the power switches. The fencer needs it.
	Dial Dial
	// Metrics may be nil.
	Metrics *telemetry.Recovery
	// Proofs, if set, takes what the actor proves, and what is known to run, for the attach/detach controller of this process. Without one nothing is proven about
	// single volumes: nothing but that controller could use it.
	Proofs *Proofs
}

// Watched are the resources that the parts watch, with or without remediations.
func Watched(r Roles, remediations bool) []authorizationv1.ResourceAttributes {
	watched := []authorizationv1.ResourceAttributes{
		{Group: corev1.GroupName, Resource: "nodes"}, {Group: coordinationv1.GroupName, Resource: "leases", Namespace: corev1.NamespaceNodeLease},
		{Group: fencingv1.GroupVersion.Group, Resource: "nodefences"}, {Group: fencingv1.GroupVersion.Group, Resource: "fencesources"},
	}
	if r.Actor {
		watched = append(watched, authorizationv1.ResourceAttributes{Group: corev1.GroupName, Resource: "pods"})
	}
	if r.Actor || r.Detector {
		watched = append(watched, authorizationv1.ResourceAttributes{Group: storagev1.GroupName, Resource: "volumeattachments"})
	}
	if r.Detector && remediations {
		watched = append(watched, authorizationv1.ResourceAttributes{Group: fencingv1.GroupVersion.Group, Resource: "belayremediations"})
	}
	return watched
}

// parts is what the three parts share.
type parts struct {
	Options

	client client.Client // reads from the caches
	live   client.Reader // reads from the API server, at quorum
	events events.EventRecorder
	ear    *listener
	now    func() time.Time
	// identity names this process in intents.
	identity string
	// port asks the port of a Node's kubelet; askKubelet if nil.
	port func(context.Context, *corev1.Node) kubelet
}

// serverTime is the API server's time.
func (p *parts) serverTime() time.Time {
	if p.ServerTime == nil {
		return p.now()
	}
	return p.ServerTime()
}

// Setup adds recovery to the manager.
func Setup(mgr manager.Manager, identity string, o Options) error {
	p := &parts{
		Options: o, client: mgr.GetClient(), live: mgr.GetAPIReader(), events: mgr.GetEventRecorder(Name),
		now: time.Now, identity: identity,
	}
	p.ear = &listener{parts: p}
	if !o.DryRun {
		o.Proofs.listen(p.ear)
	}
	if err := p.index(mgr.GetFieldIndexer()); err != nil {
		return err
	}
	d := &detector{parts: p, held: map[string]hold{}, leases: map[string]time.Time{}}
	err := build(mgr, "recovery-detector", 1).WatchesRawSource(start()).Complete(d)
	if err == nil && o.Roles.Detector && o.NodeLeases != "" {
		err = p.setupRemediator(mgr, d)
	}
	if err == nil && o.Roles.Fencer {
		err = p.setupFencer(mgr)
	}
	if err == nil && o.Roles.Actor && !o.DryRun {
		err = p.setupActor(mgr)
	}
	if err == nil {
		err = mgr.AddReadyzCheck(Name, cachesReady(mgr.GetCache()))
	}
	if err != nil {
		return fmt.Errorf("set up recovery: %w", err)
	}
	return nil
}

func (p *parts) index(indexer client.FieldIndexer) error {
	if p.Roles.Actor || p.Roles.Detector {
		if err := indexer.IndexField(context.Background(), &storagev1.VolumeAttachment{}, byNode, nodeOfAttachment); err != nil {
			return fmt.Errorf("index VolumeAttachments by node: %w", err)
		}
	}
	if err := indexer.IndexField(context.Background(), &fencingv1.NodeFence{}, byNode, nodeOfFence); err != nil {
		return fmt.Errorf("index NodeFences by node: %w", err)
	}
	return nil
}

func (p *parts) setupRemediator(mgr manager.Manager, d *detector) error {
	return build(mgr, "recovery-remediation", 1).For(&fencingv1.BelayRemediation{}).
		Watches(&fencingv1.NodeFence{}, handler.EnqueueRequestsFromMapFunc(p.remediationsOf)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(p.remediationsOf)).
		Complete(&remediator{parts: p, looked: d.lookedAt})
}

func (p *parts) setupFencer(mgr manager.Manager) error {
	return build(mgr, "recovery-fencer", agents).For(&fencingv1.FenceSource{}).
		Watches(&fencingv1.NodeFence{}, ofFencedNode()).
		Watches(&corev1.Node{}, ofNode()).
		Complete(newFencer(p))
}

func (p *parts) setupActor(mgr manager.Manager) error {
	b := build(mgr, actorName, agents).For(&fencingv1.NodeFence{})
	if p.Proofs != nil {
		b = b.Watches(&storagev1.CSIDriver{}, handler.EnqueueRequestsFromMapFunc(p.allFences))
	}
	return b.
		Watches(&corev1.Node{}, p.fenced()).
		Watches(&coordinationv1.Lease{}, p.fenced()).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(p.fenceOfPod)).
		Watches(&storagev1.VolumeAttachment{}, handler.EnqueueRequestsFromMapFunc(p.fenceOfAttachment)).
		Complete(&actor{parts: p, known: map[types.UID]*memory{}})
}

// cachesReady reports whether the caches are synced. A standby fills them too.
func cachesReady(caches cache.Cache) healthz.Checker {
	return func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), 100*time.Millisecond)
		defer cancel()
		if !caches.WaitForCacheSync(ctx) {
			return errors.New("the caches are not synced yet")
		}
		return nil
	}
}

// actorName is the name of the actor's controller.
const actorName = "recovery-actor"

// agents is how many nodes are worked on at a time: a minute is enough to exercise the switches of some thousand nodes.
const agents = 40

// agentsForEach is how many of them exercise switches of nodes that live, and how many look at those of silent ones. The others are left for fences: more than
// Brakes.InFlight allows by default, since the switches of machines that are off already are asked too.
const agentsForEach = 14

// build returns a builder with the settings that the parts share.
func build(mgr manager.Manager, name string, workers int) *builder.Builder {
	yes := true
	return builder.ControllerManagedBy(mgr).Named(name).WithOptions(controller.Options{
		MaxConcurrentReconciles: workers,
		NewQueue:                kube.NewQueue[reconcile.Request],
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, maxRetry),
		EnableWarmup:            &yes, // a standby watches too, and takes over at once
		SkipNameValidation:      &yes, // tests run several in one process
		LogConstructor: func(r *reconcile.Request) logr.Logger {
			if r == nil || r.Name == allNodes || name == actorName { // the actor's are of NodeFences
				return mgr.GetLogger()
			}
			return mgr.GetLogger().WithValues("node", r.Name)
		},
	})
}

// allNodes is the one request of the detector. No node has such a name.
const allNodes = "*"

// ofNode maps a Node to its name, which its FenceSource has too.
func ofNode() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(_ context.Context, object client.Object) []reconcile.Request {
		return request(object.GetName())
	})
}

func request(name string) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: name}}}
}

// byNode is the index of VolumeAttachments and NodeFences by node.
const byNode = "spec.nodeName"

func nodeOfAttachment(object client.Object) []string {
	return []string{object.(*storagev1.VolumeAttachment).Spec.NodeName}
}

// fenceOfPod maps a pod to the fences of its node.
func (p *parts) fenceOfPod(ctx context.Context, object client.Object) []reconcile.Request {
	return p.fenceOf(ctx, object.(*corev1.Pod).Spec.NodeName)
}

// fenceOfAttachment maps a VolumeAttachment to the fences of its node.
func (p *parts) fenceOfAttachment(ctx context.Context, object client.Object) []reconcile.Request {
	return p.fenceOf(ctx, object.(*storagev1.VolumeAttachment).Spec.NodeName)
}
