package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// fenceClient is a client for the API of recovery, which has no protobuf.
func fenceClient(config *rest.Config) (rest.Interface, error) {
	known := runtime.NewScheme()
	if err := fencingv1.AddToScheme(known); err != nil {
		return nil, fmt.Errorf("register the API of recovery: %w", err)
	}
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.APIPath, config.GroupVersion = "/apis", &fencingv1.GroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(known).WithoutConversion()
	return rest.RESTClientFor(config)
}

// recovery reads the NodeFences, and what recovery says about nodes that it does not fence. Without its API there is nothing to read, and
// nothing is lacking: few clusters have it. That takes two requests at most, whatever the API server answers.
func (r *run) recovery(ctx context.Context, events bool) {
	if r.listFences(ctx) && events {
		r.recoveryEvents(ctx)
	}
}

// anyLost reports whether one of the nodes that were read is not Ready, or silent: recovery may have reported something about it.
func (r *run) anyLost() bool {
	seen := r.into
	seen.Now = r.clock.Now()
	return slices.ContainsFunc(seen.Nodes, func(n *corev1.Node) bool { return !kube.Ready(n) || seen.Silent(n) })
}

// listFences reads all NodeFences, and reports whether it could.
func (r *run) listFences(ctx context.Context) bool {
	return listInstalled(ctx, r, diagnosis.Fences, storeFence)
}

// listSources reads all FenceSources.
func (r *run) listSources(ctx context.Context) {
	listInstalled(ctx, r, diagnosis.FenceSources, storeSource)
}

// storeFence keeps a NodeFence. Of the record of who wrote what, it keeps what shows when a person's statement was written: one that expires
// too long after that is no evidence.
func storeFence(s *diagnosis.Snapshot, f *fencingv1.NodeFence) {
	f.ManagedFields = slices.DeleteFunc(f.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return f.Spec.Statement == nil || m.FieldsV1 == nil || !strings.Contains(m.FieldsV1.GetRawString(), `"f:statement"`)
	})
	s.Fences = append(s.Fences, f)
}

// storeSource keeps a FenceSource without what no output has: the names of Secrets stay, so that they can be taken out of messages.
func storeSource(s *diagnosis.Snapshot, f *fencingv1.FenceSource) {
	f.ManagedFields = nil
	for i := range f.Spec.Levels {
		for j := range f.Spec.Levels[i].Feeds {
			f.Spec.Levels[i].Feeds[j].Options = nil
		}
	}
	s.FenceSources = append(s.FenceSources, f)
}

// listInstalled is listAll for a resource that may not be installed: then it is recorded as absent.
func listInstalled[T any](ctx context.Context, r *run, resource diagnosis.Resource, store func(*diagnosis.Snapshot, *T)) bool {
	ref, absent := diagnosis.Ref{Resource: resource}, false
	read := pagesOf[T](r.fences, resource, "")
	ok := list(ctx, r, ref, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions, use func(*T)) (string, error) {
		next, err := read(ctx, o, use)
		absent = apierrors.IsNotFound(err) || apierrors.IsForbidden(err) && r.notInstalled(ctx)
		return next, err
	}, store)
	switch {
	case ok:
		r.whole(resource)
	case absent:
		r.notThere(ref)
	}
	return ok
}

// notInstalled reports whether the API server does not serve recovery's API. Every user may ask that, and the permission to list its objects is
// checked before their existence.
func (r *run) notInstalled(ctx context.Context) bool {
	return apierrors.IsNotFound(r.fences.Get().Do(ctx).Error())
}

// notThere records that a resource is not served, in place of that it could not be read.
func (r *run) notThere(ref diagnosis.Ref) {
	r.add(func(s *diagnosis.Snapshot) {
		kept := s.Unread[:0]
		for _, u := range s.Unread {
			if u.Ref != ref {
				kept = append(kept, u)
			}
		}
		s.Unread, s.Absent = kept, append(s.Absent, ref)
	})
}

// recoveryEvents reads what recovery said about nodes lately. Events about objects without a namespace are in "default".
func (r *run) recoveryEvents(ctx context.Context) {
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("reportingComponent", diagnosis.Recovery).String()}
	ref := diagnosis.Ref{Resource: diagnosis.Events, Namespace: metav1.NamespaceDefault}
	list(ctx, r, ref, options, pagesOf[corev1.Event](r.clients.CoreV1().RESTClient(), diagnosis.Events, metav1.NamespaceDefault), keepEvent)
}

// Evidence reads what is known about the machine of a node.
func (r *Reader) Evidence(ctx context.Context, node string) *diagnosis.Snapshot {
	return r.aboutMachine(ctx, node, true)
}

// Fenced reads what a person's word about the fence of a node needs. What recovery reported of the node matters only where it does not fence a node
// that is lost: who may confirm need not read events.
func (r *Reader) Fenced(ctx context.Context, node string) *diagnosis.Snapshot {
	return r.aboutMachine(ctx, node, false)
}

// PoweredOff reads what a request for the power-off of a node's machine needs, and what it would release.
func (r *Reader) PoweredOff(ctx context.Context, node string) *diagnosis.Snapshot {
	return r.aboutMachine(ctx, node, false, func(ctx context.Context, x *run) { x.podsOn(ctx, node, "") }, func(ctx context.Context, x *run) { x.attachments(ctx) })
}

func (r *Reader) aboutMachine(ctx context.Context, node string, events bool, more ...func(context.Context, *run)) *diagnosis.Snapshot {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	x := r.start()
	calls := []func(){
		func() { x.node(ctx, node) },
		func() { x.heartbeat(ctx, node) },
		func() { x.leasesIn(ctx, metav1.NamespaceSystem) },
		func() { x.recovery(ctx, events) },
		func() { x.source(ctx, node) },
	}
	for _, read := range more {
		calls = append(calls, func() { read(ctx, x) })
	}
	parallel(calls...)
	fenced := func(f *fencingv1.NodeFence) bool { return f.Spec.NodeName == node && !kube.FenceFinished(f) }
	if !events && slices.Contains(x.into.Whole, diagnosis.Fences) && x.anyLost() && !slices.ContainsFunc(x.into.Fences, fenced) {
		x.recoveryEvents(ctx)
	}
	x.othersSilent(ctx, node)
	if events {
		x.machine(ctx, node)
	}
	return x.finish()
}

// othersSilent reads the leases of all nodes, if recovery does not fence the node because of other nodes: which of them are silent is then part
// of the answer.
func (r *run) othersSilent(ctx context.Context, node string) {
	if slices.ContainsFunc(r.into.Events, func(e *corev1.Event) bool {
		return e.InvolvedObject.Kind == "Node" && e.InvolvedObject.Name == node && e.Reason == string(fencing.TooManySilent)
	}) {
		r.leasesIn(ctx, corev1.NamespaceNodeLease)
	}
}

// source reads the FenceSource of a node.
func (r *run) source(ctx context.Context, node string) {
	ref := diagnosis.Ref{Resource: diagnosis.FenceSources, Name: node}
	get(ctx, r, ref, func(ctx context.Context, name string, _ metav1.GetOptions) (*fencingv1.FenceSource, error) {
		source := &fencingv1.FenceSource{}
		err := r.fences.Get().Resource(string(diagnosis.FenceSources)).Name(name).Do(ctx).Into(source)
		return source, err
	}, storeSource)
}

// Author asks the API server who the user is, and whether it may do this to the NodeFence of the node.
func (r *Reader) Author(ctx context.Context, verb, node string) diagnosis.Author {
	return r.author(ctx, authorizationv1.ResourceAttributes{
		Group: fencingv1.GroupVersion.Group, Version: fencingv1.GroupVersion.Version, Resource: string(diagnosis.Fences), Verb: verb, Name: node,
	})
}

// author asks the API server who the user is, and whether it may do something.
func (r *Reader) author(ctx context.Context, what authorizationv1.ResourceAttributes) diagnosis.Author {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	var a diagnosis.Author
	review, err := r.clients.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		a.Problem = message(err)
		return a
	}
	a.Name = review.Status.UserInfo.Username
	access, err := r.clients.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &what},
	}, metav1.CreateOptions{})
	if err != nil {
		a.Problem = message(err)
		return a
	}
	a.May = decision.Known(access.Status.Allowed)
	return a
}
