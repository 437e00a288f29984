package timeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/informer"
)

// Recorder watches a cluster and keeps a [Log] of it. It sees a change a fraction
// of a millisecond after the API server has sent it; while its watch is broken it
// sees the sum of what happened, once it is back.
type Recorder struct {
	Log
	factory informers.SharedInformerFactory
}

// Record starts to watch and returns once the present state is known. It watches
// until ctx ends; Wait then waits for its goroutines.
func Record(ctx context.Context, config *rest.Config) (*Recorder, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = "belay-lab-timeline"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the timeline's client: %w", err)
	}
	return record(ctx, client)
}

func record(ctx context.Context, client kubernetes.Interface) (*Recorder, error) {
	r := &Recorder{factory: informers.NewSharedInformerFactory(client, 0)}
	if err := r.watchAll(); err != nil {
		return nil, fmt.Errorf("set up the timeline's watches: %w", err)
	}
	r.factory.Start(ctx.Done())
	for kind, ok := range r.factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return nil, fmt.Errorf("wait for the timeline's first list of %v: %w", kind, context.Cause(ctx))
		}
	}
	return r, nil
}

// Wait returns when every goroutine of the recorder has ended.
func (r *Recorder) Wait() { r.factory.Shutdown() }

// Volume finds all names of the volume that is bound to a claim (namespace/name).
func (r *Recorder) Volume(claim string) (Volume, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(claim)
	if err != nil {
		return Volume{}, fmt.Errorf("read claim name %q: %w", claim, err)
	}
	pvc, err := r.factory.Core().V1().PersistentVolumeClaims().Lister().PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return Volume{}, fmt.Errorf("look up claim %s: %w", claim, err)
	}
	if pvc.Spec.VolumeName == "" {
		return Volume{}, fmt.Errorf("look up the volume of claim %s: the claim is not bound", claim)
	}
	pv, err := r.factory.Core().V1().PersistentVolumes().Lister().Get(pvc.Spec.VolumeName)
	if err != nil {
		return Volume{}, fmt.Errorf("look up volume %s of claim %s: %w", pvc.Spec.VolumeName, claim, err)
	}
	return VolumeOf(pv)
}

// VolumeOf gives the names of a CSI volume.
func VolumeOf(pv *corev1.PersistentVolume) (Volume, error) {
	if pv.Spec.CSI == nil || pv.Spec.ClaimRef == nil {
		return Volume{}, fmt.Errorf("name volume %s: it is not a claimed CSI volume", pv.Name)
	}
	return Volume{
		PV: pv.Name, Claim: pv.Spec.ClaimRef.Namespace + "/" + pv.Spec.ClaimRef.Name,
		Unique: kube.UniqueVolumeName(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle),
		Handle: pv.Spec.CSI.VolumeHandle, Driver: pv.Spec.CSI.Driver,
	}, nil
}

func (r *Recorder) watchAll() error {
	core, storage := r.factory.Core().V1(), r.factory.Storage().V1()
	core.PersistentVolumes().Informer() // listed for the volumes' names only
	return errors.Join(
		watch[*corev1.Pod](r, core.Pods().Informer(), podChanges),
		watch[*corev1.Node](r, core.Nodes().Informer(), nodeChanges),
		watch[*corev1.PersistentVolumeClaim](r, core.PersistentVolumeClaims().Informer(), claimChanges),
		watch[*storagev1.VolumeAttachment](r, storage.VolumeAttachments().Informer(), attachmentChanges),
	)
}

// watch records what changes says about each object.
func watch[T interface {
	comparable
	metav1.Object
}](r *Recorder, shared cache.SharedIndexInformer, changes func(old, now T) []Change) error {
	_, err := informer.OnChange(shared, func(old, now T) {
		at := time.Now()
		found := changes(old, now)
		for i := range found {
			found[i].At = at
		}
		r.Add(found...)
	})
	return err
}
