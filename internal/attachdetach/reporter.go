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

// conflictLimit is how often one write is tried anew on a Node that somebody else
// changes all the time, before its volumes go back to the queue.
const conflictLimit = 8

// reporter writes node.status.volumesAttached. Each node has one writer at a time,
// clocked by itself: the first change goes out at once, and whatever arrives while
// a write is in flight goes out together in the next one.
type reporter struct {
	client client.Client
	live   client.Reader // reads past the caches, at quorum
	nodes  *kube.Newest[*corev1.Node]
	// unsure are the writes without an answer.
	unsure *unanswered[string]

	mu    sync.Mutex
	lines map[string]*line // by node
}

// line is the queue in front of one node's writer.
type line struct {
	// baton is held by whoever writes, on behalf of all that wait.
	baton chan struct{}
	// users counts who is in line, so that the line can be dropped after the last.
	users int // guarded by reporter.mu

	mu      sync.Mutex
	waiting []*change
}

// change concerns one volume on one node.
type change struct {
	volume string // unique name
	kind   kind
	// requested is since when the detach waits, to be stored; zero if it does not.
	requested time.Time
	// expect is what the Node must still say for a withdrawal.
	expect attachment.NodeFacts
	// newVersion asks for a new version of the Node even if the list does not change.
	newVersion bool
	// uid is that of the Node that was decided on.
	uid  types.UID
	done chan outcome
}

// kind is what a change does with its volume.
type kind uint8

const (
	reporting   kind = iota // into the node's list
	withdrawing             // out of it
	noting                  // only stores since when its detach waits
)

// outcome is the answer to a change.
type outcome struct {
	// missing is set when the API server knows no such Node.
	missing bool
	// answered is set when the API server gave the Node's state after the change, or
	// after finding that nothing was left to change. Otherwise the change was not
	// made, because the newest Node forbids it: decide again.
	answered bool
	err      error
}

func newReporter(c client.Client, live client.Reader, w *clusterState) *reporter {
	return &reporter{client: c, live: live, nodes: w.nodes, unsure: &w.reports, lines: map[string]*line{}}
}

// look reads the Node past the cache, and changes nothing.
func (r *reporter) look(ctx context.Context, node string) outcome {
	switch _, err := r.read(ctx, node); {
	case apierrors.IsNotFound(err):
		return outcome{missing: true, answered: true}
	case err != nil:
		return outcome{err: fmt.Errorf("read node %s: %w", node, err)}
	}
	return outcome{answered: true}
}

// change makes one change and returns when the API server has answered.
func (r *reporter) change(ctx context.Context, node string, c change) outcome {
	l := r.join(node)
	defer r.leave(node, l)
	c.done = make(chan outcome, 1)
	l.mu.Lock()
	l.waiting = append(l.waiting, &c)
	l.mu.Unlock()
	select {
	case out := <-c.done: // somebody wrote it along
		return out
	case l.baton <- struct{}{}:
	case <-ctx.Done():
		return outcome{err: context.Cause(ctx)}
	}
	l.mu.Lock()
	batch := l.waiting
	l.waiting = nil
	l.mu.Unlock()
	if len(batch) > 0 {
		r.write(ctx, node, batch)
	}
	<-l.baton
	return <-c.done
}

func (r *reporter) join(node string) *line {
	r.mu.Lock()
	defer r.mu.Unlock()
	l, ok := r.lines[node]
	if !ok {
		l = &line{baton: make(chan struct{}, 1)}
		r.lines[node] = l
	}
	l.users++
	return l
}

func (r *reporter) leave(node string, l *line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(r.lines, node)
	}
}

// write makes all changes of the batch in one PATCH and answers each.
func (r *reporter) write(ctx context.Context, node string, batch []*change) {
	allowed, out := r.tryWrite(ctx, node, batch)
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
	fresh := false // node was read from the API server just now
	for range conflictLimit {
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
		// Invalid is the answer to another UID, NotFound to a Node that went away:
		// the live read tells which.
		if !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) && !apierrors.IsNotFound(err) {
			r.unsure.add(node.Name, node.ResourceVersion)
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
	// requests are those of detaches that wait, by volume; nil for none.
	requests map[string]string
	// noted is set when requests differ from what the Node has.
	noted bool
	// changed is set when there is something to write.
	changed bool
	// stamp asks for a new version although the list may be as it was.
	stamp bool
}

// plan applies the batch to the node's list. What each change was decided on must hold
// for this very version of the Node, to which the write will be bound.
func (r *reporter) plan(node *corev1.Node, batch []*change) (p plan, allowed []bool) {
	p.list = slices.Clone(node.Status.VolumesAttached)
	p.requests = requestsOn(node)
	said := standings(node)
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
		case noting:
			p.request(c.volume, c.requested)
		case withdrawing:
			if allowed[i] = stateOf(node, said[c.volume]).Facts() == c.expect; !allowed[i] {
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

// request stores since when a detach waits, or removes that.
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
	p.noted, p.changed = true, true
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

// patch writes the list, bound to the Node's UID and version. It is sent even where
// it changes nothing: the answer comes from the store.
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

// annotations are what the write changes of them.
func (p *plan) annotations() (map[string]any, error) {
	changed := map[string]any{}
	if p.stamp {
		changed[kube.ReportCheckedAnnotation] = writeTime(time.Now())
	}
	switch {
	case !p.noted:
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
