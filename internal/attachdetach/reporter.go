package attachdetach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// maxConflicts bounds how often a write is retried after a conflict, before its volumes are requeued.
const maxConflicts = 8

// reporter writes node.status.volumesAttached, with one write per node in flight. The first change is sent at once;
// changes that arrive meanwhile are batched into the next write.
type reporter struct {
	client     client.Client
	live       client.Reader // reads past the caches, at quorum
	nodes      *kube.Newest[*corev1.Node]
	unanswered *unanswered[string]

	mu     sync.Mutex
	queues map[string]*nodeQueue // by node
}

// nodeQueue holds the changes of one node.
type nodeQueue struct {
	// users counts the pending changes; the queue is deleted after the last.
	users int // guarded by reporter.mu

	mu      sync.Mutex
	writing bool      // a caller has a batch to write
	waiting []*change // the next batch
}

func (l *nodeQueue) join(c *change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, c)
	if !l.writing {
		l.assign()
	}
}

// next is called after a batch.
func (l *nodeQueue) next() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.assign()
}

// assign has the first of the waiting callers write what they all wait for; hold the lock.
func (l *nodeQueue) assign() {
	batch := l.waiting
	l.waiting, l.writing = nil, len(batch) > 0
	if l.writing {
		batch[0].batch <- batch
	}
}

// leave takes out a change that no caller has begun to write.
func (l *nodeQueue) leave(c *change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case batch := <-c.batch:
		l.waiting = append(batch[1:], l.waiting...)
		l.assign()
	default:
		l.waiting = slices.DeleteFunc(l.waiting, func(o *change) bool { return o == c })
	}
}

// change is a change of one volume on one node.
type change struct {
	volume string // unique name
	kind   kind
	// requested is the time of the detach request to store; zero for none.
	requested time.Time
	// expect is the required state of the Node for a withdrawal.
	expect attachment.NodeFacts
	// newVersion requires a new resource version of the Node even if the list does not change.
	newVersion bool
	// uid is the UID of the Node that was decided on.
	uid types.UID
	// batch receives if the caller has to write the change, with those of others, done what came of it.
	batch chan []*change
	done  chan outcome
}

// kind is the type of a change.
type kind uint8

const (
	reporting   kind = iota // adds the volume
	withdrawing             // removes the volume
	annotating              // only stores the time of the detach request
)

// outcome is the result of a change.
type outcome struct {
	// missing is set if the Node does not exist.
	missing bool
	// answered is set if the API server returned the Node's state after the change, or if nothing had to be changed.
	// Otherwise the change was not made, because it is not allowed for the newest Node: decide again.
	answered bool
	err      error
}

func newReporter(c client.Client, live client.Reader, w *clusterState) *reporter {
	return &reporter{client: c, live: live, nodes: w.nodes, unanswered: &w.reports, queues: map[string]*nodeQueue{}}
}

// check reads the Node from the API server.
func (r *reporter) check(ctx context.Context, node string) outcome {
	switch _, err := r.read(ctx, node); {
	case apierrors.IsNotFound(err):
		return outcome{missing: true, answered: true}
	case err != nil:
		return outcome{err: fmt.Errorf("read node %s: %w", node, err)}
	}
	return outcome{answered: true}
}

// change makes one change and returns the API server's response.
func (r *reporter) change(ctx context.Context, node string, c change) outcome {
	l := r.acquire(node)
	defer r.release(node, l)
	c.batch, c.done = make(chan []*change, 1), make(chan outcome, 1)
	l.join(&c)
	select {
	case out := <-c.done:
		return out
	case batch := <-c.batch:
		r.write(ctx, node, l, batch)
		return <-c.done
	case <-ctx.Done():
		l.leave(&c)
		return outcome{err: context.Cause(ctx)}
	}
}

func (r *reporter) acquire(node string) *nodeQueue {
	r.mu.Lock()
	defer r.mu.Unlock()
	l, ok := r.queues[node]
	if !ok {
		l = &nodeQueue{}
		r.queues[node] = l
	}
	l.users++
	return l
}

func (r *reporter) release(node string, l *nodeQueue) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(r.queues, node)
	}
}

// write sends all changes of the batch in one PATCH. The next batch is fixed before any caller learns its outcome, so what callers change
// because of this one is not in it.
func (r *reporter) write(ctx context.Context, node string, l *nodeQueue, batch []*change) {
	allowed, out := r.tryWrite(ctx, node, batch)
	l.next()
	for i, c := range batch {
		if out.err == nil && !out.missing && !allowed[i] {
			c.done <- outcome{}
			continue
		}
		c.done <- out
	}
}

func (r *reporter) tryWrite(ctx context.Context, name string, batch []*change) (allowed []bool, out outcome) {
	node, ok := r.nodes.Get(name)
	fresh := false // node was just read from the API server
	for range maxConflicts {
		if !ok {
			var err error
			if node, err = r.read(ctx, name); apierrors.IsNotFound(err) {
				return nil, outcome{missing: true, answered: true}
			} else if err != nil {
				return nil, outcome{err: fmt.Errorf("read node %s: %w", name, err)}
			}
			fresh = true
		}
		var p plan
		p, allowed = r.plan(node, batch)
		if !slices.Contains(allowed, true) || fresh && !p.changed {
			return allowed, outcome{answered: fresh}
		}
		err := r.patch(ctx, node, p)
		if err == nil {
			return allowed, outcome{answered: true}
		}
		// Invalid means another UID, NotFound a deleted Node: the next read distinguishes them.
		if !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) && !apierrors.IsNotFound(err) {
			r.unanswered.add(node.Name, node.ResourceVersion)
			return nil, outcome{err: fmt.Errorf("write volumesAttached of node %s: %w", name, err)}
		}
		ok = false
	}
	return nil, outcome{err: fmt.Errorf("write volumesAttached of node %s: %w", name, errBusy)}
}

var errBusy = errors.New("other clients kept changing the object")

// plan is one write of a Node.
type plan struct {
	list []corev1.AttachedVolume
	// requests are the pending detach requests by volume; nil for none.
	requests map[string]string
	// requestsChanged is set if requests differ from those on the Node.
	requestsChanged bool
	// changed is set if there is something to write.
	changed bool
	// stamp requires a new resource version although the list may be unchanged.
	stamp bool
}

// plan applies the batch to the Node. The preconditions of each change must hold for this resource version, to which
// the write is bound.
func (r *reporter) plan(node *corev1.Node, batch []*change) (p plan, allowed []bool) {
	p.list = slices.Clone(node.Status.VolumesAttached)
	p.requests = kube.DetachesRequested(node)
	statuses := volumeStatuses(node)
	allowed = make([]bool, len(batch))
	for i, c := range batch {
		if c.uid != node.UID {
			continue
		}
		allowed[i] = true
		switch c.kind {
		case reporting:
			p.report(c.volume)
			p.request(c.volume, c.requested)
		case annotating:
			p.request(c.volume, c.requested)
		case withdrawing:
			if allowed[i] = kube.NodeFacts(node, statuses[c.volume]).Facts() == c.expect; !allowed[i] {
				continue
			}
			p.withdraw(c.volume)
			if c.newVersion {
				p.changed, p.stamp = true, true
			}
		}
	}
	return p, allowed
}

func (p *plan) report(volume string) {
	if !p.lists(volume) {
		p.list = append(p.list, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(volume)})
		p.changed = true
	}
}

func (p *plan) withdraw(volume string) {
	if p.lists(volume) {
		p.list = slices.DeleteFunc(p.list, func(v corev1.AttachedVolume) bool { return string(v.Name) == volume })
		p.changed = true
	}
}

func (p *plan) lists(volume string) bool {
	return slices.ContainsFunc(p.list, func(v corev1.AttachedVolume) bool { return string(v.Name) == volume })
}

// request stores the time of a detach request; zero removes it.
func (p *plan) request(volume string, since time.Time) {
	old, had := p.requests[volume]
	switch {
	case since.IsZero() && had:
		delete(p.requests, volume)
	case !since.IsZero() && old != writeTime(since):
		if p.requests == nil {
			p.requests = map[string]string{}
		}
		p.requests[volume] = writeTime(since)
	default:
		return
	}
	p.requestsChanged, p.changed = true, true
}

func (r *reporter) read(ctx context.Context, name string) (*corev1.Node, error) {
	node := &corev1.Node{}
	if err := r.live.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return nil, err
	}
	node = kube.StripNode(node)
	r.nodes.Wrote(node)
	return node, nil
}

// patch writes the list, bound to the Node's UID and resource version. It is sent even if it changes nothing, because
// the response shows the stored Node.
func (r *reporter) patch(ctx context.Context, node *corev1.Node, p plan) error {
	var value any // null drops the field, as the API server stores an empty list
	if len(p.list) > 0 {
		value = p.list
	}
	metadata := map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion}
	if annotations, err := p.annotations(); err != nil {
		return err
	} else if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	body, err := json.Marshal(map[string]any{
		"metadata": metadata,
		"status":   map[string]any{"volumesAttached": value},
	})
	if err != nil {
		return fmt.Errorf("encode the patch: %w", err)
	}
	answer := &corev1.Node{}
	answer.Name = node.Name
	if err := r.client.Status().Patch(ctx, answer, client.RawPatch(types.MergePatchType, body)); err != nil {
		return err
	}
	r.nodes.Wrote(kube.StripNode(answer))
	return nil
}

// annotations returns the changed annotations.
func (p *plan) annotations() (map[string]any, error) {
	changed := map[string]any{}
	if p.stamp {
		changed[kube.ReportCheckedAnnotation] = writeTime(time.Now())
	}
	switch {
	case !p.requestsChanged:
	case len(p.requests) == 0:
		changed[kube.DetachesRequestedAnnotation] = nil
	default:
		text, err := json.Marshal(p.requests)
		if err != nil {
			return nil, fmt.Errorf("encode the detach requests: %w", err)
		}
		changed[kube.DetachesRequestedAnnotation] = string(text)
	}
	return changed, nil
}
