package recovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// inspections is the most nodes that are read from the API server in one tick. More than that at once are a fault of another kind, for which no fence helps.
const inspections = 4

// detector finds the nodes that are lost, and creates their NodeFences.
type detector struct {
	*parts

	// held has the nodes that are silent and not fenced, to report each reason once.
	held map[string]hold
	// departed has the boots of deleted Nodes with VolumeAttachments, as of searched.
	departed map[string]fencing.Boot
	searched time.Time
	// unanswered has when a create of a NodeFence was sent whose outcome is unknown, by node: not of a deleted Node, which is never commanded.
	unanswered map[string]time.Time
	// numbered has the epoch of the last of these creates, by node: it may be carried out after the fence of the next one has ended.
	numbered map[string]int64
	// asks has the nodes whose fence a remediation asks for, and takes those with a fence that is active. leases has when this process last took, or
	// tried to take, the lease of a node.
	asks   map[string]asker
	takes  map[string]bool
	leases map[string]time.Time

	mu sync.Mutex
	// looked has why a node was not fenced at the last look, of those in asks.
	looked map[string]decision.Reason
	// answered has what last came from the kubelet's port of a silent boot, and left when the stop of its machine was last seen to be announced.
	answered map[fencing.Boot]answer
	left     map[fencing.Boot]time.Time
	// inspected has the silent boots that were looked at and are not fenced. Reconcile alone uses it.
	inspected map[fencing.Boot]inspected
	// noKind has when this cluster was found not to serve the machines of an API group.
	noKind map[string]time.Time
}

// answer is what came from a kubelet's port: an answer, or that the machine refused the connection.
type answer struct {
	at      time.Time
	own     bool // with the key of the boot's kubelet
	refused bool
}

// inspected is when a node is looked at again, unless the caches say something else of it by then than they did.
type inspected struct {
	again time.Time
	saw   glance
}

// glance is what the caches say of a silent node.
type glance struct {
	ready, powerOff fencing.Knowledge
	asked           bool
}

func glanceAt(n *fencing.Node) glance { return glance{n.Ready, n.PowerOff, n.Asked} }

type hold struct {
	reason decision.Reason
	power  string    // the power state that the fencer last recorded
	since  time.Time // when this process first saw it
}

// start enqueues the one request of the detector.
func start() source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		queue.Add(request(allNodes)[0])
		return nil
	})
}

// Reconcile looks at all nodes. It runs in every process, because all parts measure silence.
func (d *detector) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	again := reconcile.Result{RequeueAfter: tickEvery}
	if err := d.ear.tick(ctx); err != nil {
		log.FromContext(ctx).Error(err, "Cannot listen to the nodes, so none is suspected")
		return again, nil
	}
	if !d.Roles.Detector {
		return again, nil
	}
	if err := d.look(ctx); err != nil {
		log.FromContext(ctx).Error(err, "Cannot look for nodes that are lost")
	}
	return again, nil
}

// look decides on each silent node.
func (d *detector) look(ctx context.Context) error {
	fleet, objects, err := d.fleet(ctx)
	if err != nil {
		return err
	}
	d.keepLeases(ctx)
	d.inspectAll(ctx, fleet)
	counts := fleet.Count()
	var refused error
	for i := range fleet.Nodes {
		node := &fleet.Nodes[i]
		s := fencing.Suspect(d.now(), d.Profile, d.Brakes, counts, *node)
		if s.Suspected && !d.DryRun && !fleet.Fenced[node.Boot.Node] {
			if err := d.countLive(ctx, &fleet, node.Boot.Node); err != nil {
				return err
			}
			counts = fleet.Count()
			s = fencing.Suspect(d.now(), d.Profile, d.Brakes, counts, *node)
		}
		if fleet.Fenced[node.Boot.Node] {
			delete(d.held, node.Boot.Node)
			continue
		}
		d.lookAgain(node, s)
		d.report(ctx, objects[node.Boot.Node], s)
		d.tellAsker(node, s.Reason)
		if s.Suspected && !d.DryRun {
			err := d.suspect(ctx, *node)
			refused = errors.Join(refused, err)
			if !apierrors.IsInvalid(err) { // one that the API server refuses, as by the CRD of another version, holds back no other
				return refused // the next one with this one counted
			}
		}
	}
	return refused
}

// inspectAll looks closer at the nodes for which that may change the answer, side by side: all must be done well within
// fencing.MaxTickGap, or the silence of all nodes would count from the beginning. An error is about one node alone.
func (d *detector) inspectAll(ctx context.Context, fleet fencing.Fleet) {
	var chosen []*fencing.Node
	counts := fleet.Count() // before the first is changed: each choice counts the whole fleet
	for i := range fleet.Nodes {
		node := &fleet.Nodes[i]
		if len(chosen) < inspections && !fleet.Fenced[node.Boot.Node] && d.due(node) && closer(fencing.Suspect(d.now(), d.Profile, d.Brakes, counts, *node).Reason) {
			chosen = append(chosen, node)
			if d.inspected == nil {
				d.inspected = map[fencing.Boot]inspected{}
			}
			d.inspected[node.Boot] = inspected{saw: glanceAt(node)}
		}
	}
	var group sync.WaitGroup
	for _, node := range chosen {
		group.Go(func() {
			if err := d.inspect(ctx, node); err != nil {
				log.FromContext(ctx).Error(err, "Cannot look closer at a silent node", "node", node.Boot.Node)
			}
		})
	}
	group.Wait()
}

// due reports whether it is time to look closer at a node. One that has nothing to lose, or that shows a sign of life, may be silent for months.
func (d *detector) due(n *fencing.Node) bool {
	i, known := d.inspected[n.Boot]
	return !known || !d.now().Before(i.again) || i.saw != glanceAt(n)
}

// lookAgain keeps when the answer about a node that was just read may change without an event.
func (d *detector) lookAgain(n *fencing.Node, s fencing.Suspicion) {
	if i, known := d.inspected[n.Boot]; known && i.again.IsZero() && !n.ReadAt.IsZero() && !s.Suspected {
		i.again = d.now().Add(s.After)
		d.inspected[n.Boot] = i
	}
}

// closer reports whether a closer look at the node may change the answer.
func closer(r decision.Reason) bool {
	return r == fencing.NotReadLive || r == fencing.NoSecondSignal || r == fencing.SignOfLife
}

// fleet returns what the caches say about all nodes.
func (d *detector) fleet(ctx context.Context) (fencing.Fleet, map[string]*corev1.Node, error) {
	fleet := fencing.Fleet{}
	nodes, fences, sources := &corev1.NodeList{}, &fencingv1.NodeFenceList{}, &fencingv1.FenceSourceList{}
	for _, list := range []client.ObjectList{nodes, fences, sources} {
		if err := d.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return fleet, nil, fmt.Errorf("list nodes and fences in the cache: %w", err)
		}
	}
	maps.DeleteFunc(d.answered, func(_ fencing.Boot, a answer) bool { return d.now().Sub(a.at) >= d.Brakes.Window })
	maps.DeleteFunc(d.inspected, func(_ fencing.Boot, i inspected) bool { return !d.now().Before(i.again) })
	maps.DeleteFunc(d.left, func(_ fencing.Boot, at time.Time) bool { return d.now().Sub(at) >= keepAnnouncement })
	if err := d.listAsks(ctx); err != nil {
		return fleet, nil, err
	}
	switches := byName(sources)
	objects := make(map[string]*corev1.Node, len(nodes.Items))
	for i := range nodes.Items {
		node := &nodes.Items[i]
		objects[node.Name] = node
		fleet.Nodes = append(fleet.Nodes, d.node(node, switches[node.Name]))
	}
	deleted, err := d.deleted(ctx, objects, sources, fences)
	for _, n := range deleted {
		objects[n.Boot.Node] = nodeRef(n.Boot)
	}
	fleet.Nodes = append(fleet.Nodes, deleted...)
	if err == nil {
		d.forget(objects)
	}
	d.count(&fleet, fences, switches)
	return fleet, objects, err
}

// forget drops what is kept of nodes that are not there any more. What a process keeps of an object goes with it: so it is for the FenceSource of a node (fencer) and
// for a NodeFence (actor), and a fleet that is scaled up and down for months costs no memory.
func (d *detector) forget(there map[string]*corev1.Node) {
	maps.DeleteFunc(d.held, func(name string, _ hold) bool { return there[name] == nil })
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.looked, func(name string, _ decision.Reason) bool { return there[name] == nil })
}

// count has the fleet count the fences of a list, and what was taken from nodes: the commands that the fencer recorded before it sent them, which no other
// part writes and which outlive the NodeFences, and the first volume that a fence may have taken because its driver cuts the node off. Their times are compared
// with the API server's, not with the clock of this process. A node is fenced if the machine that it shows is: an earlier one of its name may wait for evidence.
func (d *detector) count(fleet *fencing.Fleet, fences *fencingv1.NodeFenceList, switches map[string]*fencingv1.FenceSource) {
	fleet.Fenced, fleet.Back, fleet.InFlight, fleet.Commanded = map[string]bool{}, map[string]bool{}, 0, map[string]time.Time{}
	d.takes = map[string]bool{}
	ahead := d.now().Sub(d.serverTime())
	for name, s := range switches {
		if c := s.Status.Command; c != nil {
			fleet.Commanded[name] = c.Time.Add(ahead)
		}
	}
	shown := make(map[string]fencing.Boot, len(fleet.Nodes))
	for i := range fleet.Nodes {
		shown[fleet.Nodes[i].Boot.Node] = fleet.Nodes[i].Boot
	}
	for i := range fences.Items {
		f := &fences.Items[i]
		name := f.Spec.NodeName
		if c := meta.FindStatusCondition(f.Status.Conditions, conditionStorageFenced); c != nil && c.Status == metav1.ConditionTrue {
			if at := c.LastTransitionTime.Add(ahead); at.After(fleet.Commanded[name]) {
				fleet.Commanded[name] = at
			}
		}
		if finished(f) {
			continue
		}
		if (kube.FenceStands(f, shown[name]) || shown[name].Node == "") && !d.lapsed(f) {
			fleet.Fenced[name] = true
			fleet.Back[name] = f.Status.Phase == fencingv1.Phase(fencing.Releasing)
		}
		if kube.FenceActive(f, switches[name], d.serverTime(), d.Brakes.Window) {
			fleet.InFlight++
			d.takes[name] = true
		}
	}
}

// requestLifetime is how long a request without an answer may still be carried out: the API server's --request-timeout.
const requestLifetime = time.Minute

// countLive has the fleet count the fences that the API server itself has, and those that it may still create: the cache may lack the
// latest, and each counts before the next begins (hole 17). An earlier create for this node is left out: the node has one fence at most.
func (d *detector) countLive(ctx context.Context, fleet *fencing.Fleet, node string) error {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	fences := &fencingv1.NodeFenceList{}
	if err := d.live.List(ctx, fences); err != nil {
		return fmt.Errorf("list NodeFences: %w", err)
	}
	sources := &fencingv1.FenceSourceList{}
	if err := d.client.List(ctx, sources, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list FenceSources in the cache: %w", err)
	}
	d.count(fleet, fences, byName(sources))
	maps.DeleteFunc(d.unanswered, func(_ string, at time.Time) bool { return d.now().Sub(at) >= requestLifetime })
	for name := range d.unanswered {
		if name != node && !fleet.Fenced[name] {
			fleet.InFlight++
		}
	}
	return nil
}

func byName(sources *fencingv1.FenceSourceList) map[string]*fencingv1.FenceSource {
	named := make(map[string]*fencingv1.FenceSource, len(sources.Items))
	for i := range sources.Items {
		named[sources.Items[i].Name] = &sources.Items[i]
	}
	return named
}

// node returns what is known about a node without asking.
func (d *detector) node(node *corev1.Node, source *fencingv1.FenceSource) fencing.Node {
	n := d.describe(node)
	_, n.Asked = d.asks[node.Name]
	if source != nil {
		n.Zone, n.Key = recordedZone(source, n.Boot), rememberedKey(source, n.Boot)
		if machine := boundSource(source).SaidOn.Machine; machine == n.Boot.Machine { // it says nothing about one that replaced it under the name
			n.PowerOff = d.powerOff(node.Name, source.Status.Power, n.Silent)
		}
	}
	return n
}

// powerOff is what the fencer recorded since the silence began, on the clock of this process.
func (d *detector) powerOff(name string, power *fencingv1.PowerState, silent time.Duration) fencing.Knowledge {
	if power == nil {
		return fencing.Unknown
	}
	h, stamp := d.held[name], power.State+power.Time.String()
	if h.power != stamp {
		h.power, h.since = stamp, d.now()
		d.held[name] = h
	}
	if power.State != powerOff || d.now().Sub(h.since) > silent {
		return fencing.Unknown
	}
	return fencing.Yes
}

// inspect asks the kubelet's port, and then reads Node and lease from the API server itself: what is read must be fresh when it is used.
func (d *detector) inspect(ctx context.Context, n *fencing.Node) error {
	if n.Deleted {
		ctx, cancel := context.WithTimeout(ctx, readWithin)
		defer cancel()
		return d.absent(ctx, n)
	}
	if err := d.answers(ctx, n); err != nil {
		return client.IgnoreNotFound(err)
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	name, at := n.Boot.Node, d.now()
	node, lease := &corev1.Node{}, &coordinationv1.Lease{}
	if err := d.live.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("read node %s: %w", name, err))
	}
	said := "" // a kubelet that runs makes a lease where there is none
	switch err := d.live.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: name}, lease); {
	case err == nil:
		d.ear.heard(lease)
		said = renewal(lease)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("read the lease of node %s: %w", name, err)
	}
	before := *n
	*n = d.describe(node)
	n.Zone, n.PowerOff, n.Endpoint, n.Own, n.Refused, n.Key, n.Asked = before.Zone, before.PowerOff, before.Endpoint, before.Own, before.Refused, before.Key, before.Asked
	n.Leaving = d.announced(ctx, n, node)
	if err := d.occupants(ctx, n, node); err != nil {
		return err
	}
	leased, err := d.leased(ctx, name)
	if err != nil {
		return err
	}
	n.ReadAt, n.Renewal, n.Leased = at, said, leased
	return nil
}

// answers asks the kubelet's port. A sign of life counts for as long as a renewal of the lease does, an answer and a refused connection alike: a packet that
// is lost after that, or an answer that is slow, is no silence. A port that could not be asked is an error: that is no look at the node.
func (d *detector) answers(ctx context.Context, n *fencing.Node) error {
	k, _, err := d.askKubelet(ctx, n.Boot.Node)
	if err != nil {
		return err
	}
	n.Endpoint, n.Refused, n.Own = fencing.Endpoint(k.answers, k.key, n.Key), k.refused, n.Key != "" && k.key == n.Key
	d.mu.Lock()
	defer d.mu.Unlock()
	a, known := d.answered[n.Boot]
	known = known && d.now().Sub(a.at) < n.Limit
	answers := known && !a.refused // it says more than a refusal, for as long as it counts
	if n.Endpoint == fencing.Yes || n.Refused && !answers {
		if d.answered == nil {
			d.answered = map[fencing.Boot]answer{}
		}
		a, known = answer{d.now(), n.Own, n.Refused}, true
		d.answered[n.Boot] = a
	}
	switch {
	case known && a.refused:
		n.Refused = true
	case known:
		n.Endpoint, n.Own = fencing.Yes, a.own
	}
	return nil
}

// report says once why a node that has been silent for too long is not fenced, or that it would be.
func (d *detector) report(ctx context.Context, node *corev1.Node, s fencing.Suspicion) {
	name, reason := node.Name, s.Reason
	if s.Suspected && d.DryRun {
		reason = dryRun
	}
	h := d.held[name]
	if h.reason == reason || reason == fencing.NotReadLive { // one of the next looks reads it: nothing about the node has changed
		return
	}
	h.reason = reason
	d.held[name] = h
	d.Metrics.Suspicion(name, s.Reason)
	logger := log.FromContext(ctx).WithValues("node", name)
	switch {
	case reason == dryRun:
		logger.Info("Would fence node", "detail", "--recovery-dry-run is set")
		d.events.Eventf(node, nil, corev1.EventTypeWarning, string(dryRun), "Fence", "%s", explain.WouldFence)
	case fencing.Held(reason):
		logger.Info("Not fencing silent node", "reason", reason)
		d.events.Eventf(node, nil, corev1.EventTypeWarning, string(reason), "Fence", "%s", explain.NotFenced(reason))
	}
}

// suspect creates the NodeFence. One that is finished is removed first, bound to its version.
func (d *detector) suspect(ctx context.Context, n fencing.Node) error {
	name := n.Boot.Node
	logger := log.FromContext(ctx).WithValues("node", name, "bootID", n.Boot.ID, "machine", n.Boot.Machine, "silent", n.Silent)
	node, trigger, text, err := d.cause(ctx, n)
	if err != nil || node == nil {
		return err
	}
	if trigger != fencingv1.TriggerNodeDeleted {
		if free, err := d.takeLease(ctx, node); err != nil || !free {
			return err
		}
	}
	place, free, err := d.replace(ctx, n.Boot)
	if err != nil || !free {
		return err
	}
	fence := &fencingv1.NodeFence{
		ObjectMeta: metav1.ObjectMeta{Name: place.Name, Finalizers: []string{finalizer}},
		Spec: fencingv1.NodeFenceSpec{
			NodeName: name, NodeUID: n.Boot.NodeUID, BootID: n.Boot.ID, MachineID: n.Boot.Machine,
			Epoch: fencing.NextEpoch(d.now(), max(place.Epoch, d.numbered[name]), shownEpoch(node)), Trigger: trigger, LastRenewal: n.Renewal, Release: fencingv1.ReleaseAuto,
		},
	}
	if err := d.client.Create(ctx, fence); err != nil {
		if kube.MayBeCommitted(err) {
			d.remember(name, fence)
		}
		return client.IgnoreAlreadyExists(fmt.Errorf("create NodeFence %s: %w", fence.Name, err))
	}
	delete(d.unanswered, name)
	logger.Info("Fencing node", "fence", fence.Name, "epoch", fence.Spec.Epoch, "reason", trigger)
	d.events.Eventf(node, fence, corev1.EventTypeWarning, string(fencing.Suspected), "Fence", "%s", text)
	return nil
}

// remember keeps what is known about a create that may be carried out later.
func (d *detector) remember(name string, fence *fencingv1.NodeFence) {
	if d.unanswered == nil {
		d.unanswered, d.numbered = map[string]time.Time{}, map[string]int64{}
	}
	d.numbered[name] = fence.Spec.Epoch
	if fence.Spec.Trigger != fencingv1.TriggerNodeDeleted {
		d.unanswered[name] = d.now()
	}
}

// cause reads the Node again, and returns why its fence begins; no Node if it changed in this moment.
func (d *detector) cause(ctx context.Context, n fencing.Node) (node *corev1.Node, trigger fencingv1.Trigger, text string, err error) {
	node = &corev1.Node{}
	switch err := d.live.Get(ctx, client.ObjectKey{Name: n.Boot.Node}, node); {
	case apierrors.IsNotFound(err) && n.Deleted:
		left, err := d.leftBehind(ctx, n.Boot)
		if err != nil || !left {
			return nil, "", "", err
		}
		return nodeRef(n.Boot), fencingv1.TriggerNodeDeleted, explain.FenceNodeDeleted, nil
	case err != nil:
		return nil, "", "", fmt.Errorf("read node %s: %w", n.Boot.Node, err)
	case n.Deleted || bootOf(node) != n.Boot || d.needless(n.Boot, node):
		return nil, "", "", nil
	case n.Asked:
		return node, fencingv1.TriggerRemediation, explain.FenceRemediation, nil
	}
	return node, fencingv1.TriggerNodeSilent, explain.FenceSuspected(n.Silent), nil
}

// needless reports whether the actor would cancel the fence of a boot.
func (d *detector) needless(boot fencing.Boot, node *corev1.Node) bool {
	return fencing.Needless(fencing.Fence{Boot: boot}, fencing.Observed{
		Exists: fencing.Yes, Now: bootOf(node), OptedOut: optedOut(node), Maintenance: kube.UnderMaintenance(node),
	})
}

// replace finds the place of the next fence of a boot, and removes the records of finished ones of the node; false if a fence of its machine is not finished. The
// epoch of the next fence is higher, and no lower than the time: the Node and the records may both have been deleted since an earlier one.
func (d *detector) replace(ctx context.Context, boot fencing.Boot) (kube.FencePlace, bool, error) {
	fences := &fencingv1.NodeFenceList{}
	if err := d.live.List(ctx, fences); err != nil {
		return kube.FencePlace{}, false, fmt.Errorf("list NodeFences: %w", err)
	}
	place, free := kube.PlaceFence(pointers(fences), boot)
	if !free { // the cache does not have it yet, or it has lapsed
		return place, false, d.endLapsed(ctx, kube.StandingFence(pointers(fences), boot))
	}
	for _, old := range place.Over {
		if err := d.client.Delete(ctx, old, client.Preconditions{UID: &old.UID, ResourceVersion: &old.ResourceVersion}); err != nil {
			return place, false, client.IgnoreNotFound(fmt.Errorf("delete the finished NodeFence %s: %w", old.Name, err))
		}
	}
	return place, true, nil
}

// dryRun marks in held that the node would be fenced.
const dryRun decision.Reason = "DryRun"

// finalizer keeps a NodeFence until its taints are gone.
const finalizer = kube.FenceFinalizer

func finished(f *fencingv1.NodeFence) bool { return kube.FenceFinished(f) }
