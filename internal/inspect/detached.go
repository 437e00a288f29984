package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/kube"
)

// Remaining is what still ties volumes to a node.
type Remaining struct {
	// Attachments are the names of the VolumeAttachments of the node.
	Attachments []string `json:"attachments,omitempty"`
	// InUse and Reported are the node's lists.
	InUse    []string `json:"inUse,omitempty"`
	Reported []string `json:"reported,omitempty"`
	// NodeMissing is set when there is no Node object.
	NodeMissing bool `json:"nodeMissing,omitempty"`
}

// None reports whether nothing is left.
func (r Remaining) None() bool { return len(r.Attachments)+len(r.InUse)+len(r.Reported) == 0 }

// unknown is an error if there is no such node, nothing refers to it, and none was seen before: its name may be mistyped.
func (r Remaining) unknown(seen bool, node string) error {
	if seen || !r.NodeMissing || !r.None() {
		return nil
	}
	return fmt.Errorf("nodes/%s does not exist, and no VolumeAttachment refers to it", node)
}

// WaitDetached watches until no volume is attached to the node, and calls changed with what remains, first and after each change. It calls
// trouble, from another goroutine, with each error that is retried. It returns the context's error if that ends first, and an error if
// there is no such node and never was, as far as can be seen.
func (r *Reader) WaitDetached(ctx context.Context, node string, changed func(Remaining), trouble func(error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	nodes := informers.NewSharedInformerFactoryWithOptions(r.clients, 0, informers.WithTransform(keepDetaching),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", node).String()
		}))
	attachments := informers.NewSharedInformerFactoryWithOptions(r.clients, 0, informers.WithTransform(keepDetaching))
	watched := []cache.SharedIndexInformer{nodes.Core().V1().Nodes().Informer(), attachments.Storage().V1().VolumeAttachments().Informer()}
	wake := make(chan struct{}, 1)
	notify := func() { kube.Signal(wake) }
	failed := retried(cancel, trouble)
	for _, informer := range watched {
		if err := informer.SetWatchErrorHandlerWithContext(failed); err != nil {
			return fmt.Errorf("watch the node's volumes: %w", err)
		}
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { notify() }, UpdateFunc: func(any, any) { notify() }, DeleteFunc: func(any) { notify() },
		}); err != nil {
			return fmt.Errorf("watch the node's volumes: %w", err)
		}
		go informer.RunWithContext(ctx)
	}
	if !cache.WaitForCacheSync(ctx.Done(), watched[0].HasSynced, watched[1].HasSynced) {
		return ended(ctx)
	}
	seen := false // a node that goes away while it is waited for has existed
	for last := (Remaining{}); ; {
		now := remaining(watched[0].GetStore(), watched[1].GetStore(), node)
		if err := now.unknown(seen, node); err != nil {
			return err
		}
		seen = true
		if !same(now, last) || now.None() {
			changed(now)
		}
		if last = now; now.None() {
			return nil
		}
		select {
		case <-ctx.Done():
			return ended(ctx)
		case <-wake:
		}
	}
}

// retried handles the error of a watch: what is not going to be allowed ends the wait, anything else is tried again.
func retried(cancel context.CancelCauseFunc, trouble func(error)) cache.WatchErrorHandlerWithContext {
	var one sync.Mutex // each watch has a goroutine
	return func(ctx context.Context, _ *cache.Reflector, err error) {
		switch {
		case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
			cancel(err)
		case ctx.Err() == nil:
			one.Lock()
			defer one.Unlock()
			trouble(err)
		}
	}
}

// ended is why the watch ended.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); apierrors.IsForbidden(cause) || apierrors.IsUnauthorized(cause) {
		return fmt.Errorf("you lack the permission to list and watch nodes and volumeattachments: %w", cause)
	}
	return ctx.Err()
}

func same(a, b Remaining) bool {
	return slices.Equal(a.Attachments, b.Attachments) && slices.Equal(a.InUse, b.InUse) && slices.Equal(a.Reported, b.Reported) && a.NodeMissing == b.NodeMissing
}

func remaining(nodes, attachments cache.Store, name string) Remaining {
	var r Remaining
	for _, o := range attachments.List() {
		if va, ok := o.(*storagev1.VolumeAttachment); ok && va.Spec.NodeName == name {
			r.Attachments = append(r.Attachments, va.Name)
		}
	}
	object, exists, _ := nodes.GetByKey(name)
	node, ok := object.(*corev1.Node)
	if r.NodeMissing = !exists || !ok; !r.NodeMissing {
		for _, v := range node.Status.VolumesInUse {
			r.InUse = append(r.InUse, string(v))
		}
		for _, v := range node.Status.VolumesAttached {
			r.Reported = append(r.Reported, string(v.Name))
		}
	}
	slices.Sort(r.Attachments)
	slices.Sort(r.InUse)
	slices.Sort(r.Reported)
	return r
}

var errUnexpected = errors.New("unexpected object in a watch")

// keepDetaching keeps of the objects what WaitDetached reads.
func keepDetaching(object any) (any, error) {
	switch o := object.(type) {
	case *storagev1.VolumeAttachment:
		kept := &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{NodeName: o.Spec.NodeName}}
		kept.Name, kept.UID, kept.ResourceVersion = o.Name, o.UID, o.ResourceVersion
		return kept, nil
	case *corev1.Node:
		kept := &corev1.Node{Status: corev1.NodeStatus{VolumesInUse: o.Status.VolumesInUse, VolumesAttached: o.Status.VolumesAttached}}
		kept.Name, kept.UID, kept.ResourceVersion = o.Name, o.UID, o.ResourceVersion
		return kept, nil
	case cache.DeletedFinalStateUnknown:
		return o, nil
	}
	return nil, fmt.Errorf("%w: %T", errUnexpected, object)
}
