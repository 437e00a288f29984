package preflight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"belay.dev/belay/internal/kube"
)

// Config says how to look.
type Config struct {
	// Clients read. They need list and watch on nodes and volumeattachments, and list
	// on pods and persistentvolumes; get on the lease of kube-controller-manager helps.
	Clients kubernetes.Interface
	// NonAttachableFlex are FlexVolume drivers that need no attach. The API does not tell
	// which do, so all others refuse.
	NonAttachableFlex []string
	// Observe is how long to watch for writes by another controller; 0 for not at all.
	Observe time.Duration
}

type run struct{ Config }

// Run makes all checks.
func Run(ctx context.Context, c Config) Report {
	r := &run{c}
	checks := []Check{r.checkUpstream(ctx)}
	checks = append(checks, r.checkWriters(ctx)...)
	checks = append(checks, r.checkFlexPods(ctx), r.checkFlexVolumes(ctx))
	return reportOf(checks)
}

// unknown turns an error into an answer, and names the right that is missing.
func (c Check) unknown(err error, verb, resource string) Check {
	c.Result, c.Message = Unknown, err.Error()
	if apierrors.IsForbidden(err) {
		c.Message = fmt.Sprintf("needs the right to %s %s: %v", verb, resource, err)
	}
	return c
}

// observed is what the writers of both resources did while we looked.
type observed struct {
	reports     map[string][]corev1.AttachedVolume // by node
	attachments map[string]bool
	foreign     map[string][]string // by resource
	byHand      map[string][]string
}

// checkWriters looks at who writes volumesAttached and creates VolumeAttachments: first
// at what there is, then at what changes.
func (r *run) checkWriters(ctx context.Context) []Check {
	nodes, attachments := Check{Name: "node reports"}, Check{Name: "volume attachments"}
	own := Check{Name: "unmanaged nodes"}
	o := &observed{
		reports: map[string][]corev1.AttachedVolume{}, attachments: map[string]bool{},
		foreign: map[string][]string{}, byHand: map[string][]string{},
	}
	writers, unmanaged := map[string]int{}, []string{}
	nodeList, err := r.Clients.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return []Check{nodes.unknown(err, "list", "nodes")}
	}
	for i := range nodeList.Items {
		node := &nodeList.Items[i]
		o.reports[node.Name] = node.Status.VolumesAttached
		if w, ok := kube.ReportWriter(node); ok {
			writers[w.Manager]++
		}
		if _, managed := node.Annotations[kube.ManagedAttachAnnotation]; !managed {
			unmanaged = append(unmanaged, "node "+node.Name)
		}
	}
	vaList, err := r.Clients.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		nodes.Result, nodes.Message = OK, "last written by: "+counts(writers)+"; not watched"
		return []Check{nodes, attachments.unknown(err, "list", "volumeattachments")}
	}
	makers := map[string]int{}
	for i := range vaList.Items {
		o.attachments[vaList.Items[i].Name] = true
		if w, ok := kube.AttachmentMaker(&vaList.Items[i]); ok {
			makers[w.Manager]++
		}
	}
	if r.Observe > 0 {
		if err := r.observe(ctx, o, nodeList.ResourceVersion, vaList.ResourceVersion); err != nil {
			return []Check{nodes.unknown(err, "watch", "nodes and volumeattachments")}
		}
	}
	nodes = r.judge(nodes, o, "nodes", fmt.Sprintf("%d nodes; last written by: %s", len(nodeList.Items), counts(writers)))
	attachments = r.judge(attachments, o, "volumeattachments", fmt.Sprintf("%d; made by: %s", len(vaList.Items), counts(makers)))
	own.Result, own.Message = OK, "none"
	if len(unmanaged) > 0 {
		own.Message = fmt.Sprintf("%d nodes attach by themselves (kubelet's enableControllerAttachDetach is off) and are left alone", len(unmanaged))
		own.Objects = unmanaged
	}
	return []Check{nodes, attachments, own}
}

// judge puts what was seen into a check.
func (r *run) judge(c Check, o *observed, resource, there string) Check {
	c.Result, c.Message = OK, there
	if r.Observe > 0 {
		c.Message += fmt.Sprintf("; no other controller wrote within %v", r.Observe)
	}
	if byHand := o.byHand[resource]; len(byHand) > 0 {
		c.Result, c.Message, c.Objects = Warning, there+"; somebody writes by hand", byHand
	}
	if foreign := o.foreign[resource]; len(foreign) > 0 {
		c.Result, c.Message, c.Objects = Refused, "another attach/detach controller is at work; "+there, foreign
	}
	return c
}

func counts(by map[string]int) string {
	if len(by) == 0 {
		return "nobody"
	}
	var all []string
	for name, n := range by {
		all = append(all, fmt.Sprintf("%s (%d)", name, n))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

var errWatchEnded = errors.New("the watch ended before its time")

// observe watches both resources from the listed versions on.
func (r *run) observe(ctx context.Context, o *observed, sinceNodes, sinceAttachments string) error {
	nodes, err := r.Clients.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{ResourceVersion: sinceNodes})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	defer nodes.Stop()
	attachments, err := r.Clients.StorageV1().VolumeAttachments().Watch(ctx, metav1.ListOptions{ResourceVersion: sinceAttachments})
	if err != nil {
		return fmt.Errorf("watch volumeattachments: %w", err)
	}
	defer attachments.Stop()
	end := time.NewTimer(r.Observe)
	defer end.Stop()
	for {
		var e watch.Event
		var ok bool
		select {
		case e, ok = <-nodes.ResultChan():
		case e, ok = <-attachments.ResultChan():
		case <-end.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if !ok {
			return errWatchEnded
		}
		if e.Type == watch.Error {
			return fmt.Errorf("watch: %w", apierrors.FromObject(e.Object))
		}
		o.see(e.Object)
	}
}

func (o *observed) see(obj runtime.Object) {
	switch obj := obj.(type) {
	case *corev1.Node:
		before := o.reports[obj.Name]
		o.reports[obj.Name] = obj.Status.VolumesAttached
		if w, ok := kube.ReportWriter(obj); ok && !slices.Equal(before, obj.Status.VolumesAttached) {
			o.write("nodes", w.Manager, fmt.Sprintf("node %s: %s changed status.volumesAttached", obj.Name, w.Manager))
		}
	case *storagev1.VolumeAttachment:
		before := o.attachments[obj.Name]
		o.attachments[obj.Name] = true
		if w, ok := kube.AttachmentMaker(obj); ok && !before {
			o.write("volumeattachments", w.Manager, fmt.Sprintf("volumeattachment %s: %s made it for node %s", obj.Name, w.Manager, obj.Spec.NodeName))
		}
	}
}

func (o *observed) write(resource, manager, what string) {
	switch {
	case manager == kube.FieldManager:
	case kube.ByHand(manager):
		o.byHand[resource] = append(o.byHand[resource], what)
	default:
		o.foreign[resource] = append(o.foreign[resource], what)
	}
}

// pageSize bounds one answer of a list that is only gone through.
const pageSize = 500

// checkFlexPods looks for FlexVolumes in pods that have not ended.
func (r *run) checkFlexPods(ctx context.Context) Check {
	c, found := Check{Name: "flexvolumes in pods"}, []string(nil)
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return r.Clients.CoreV1().Pods("").List(ctx, o)
	})
	pages.PageSize = pageSize
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		pod, ok := obj.(*corev1.Pod)
		if !ok || kube.PodEnded(pod) {
			return nil
		}
		for _, v := range pod.Spec.Volumes {
			if v.FlexVolume != nil && r.mayAttach(v.FlexVolume.Driver) {
				found = append(found, fmt.Sprintf("pod %s/%s: driver %s", pod.Namespace, pod.Name, v.FlexVolume.Driver))
			}
		}
		return nil
	})
	if err != nil {
		return c.unknown(err, "list", "pods")
	}
	return c.flex(found)
}

// checkFlexVolumes looks for FlexVolumes among the PersistentVolumes.
func (r *run) checkFlexVolumes(ctx context.Context) Check {
	c, found := Check{Name: "flexvolumes"}, []string(nil)
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return r.Clients.CoreV1().PersistentVolumes().List(ctx, o)
	})
	pages.PageSize = pageSize
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		if pv, ok := obj.(*corev1.PersistentVolume); ok && pv.Spec.FlexVolume != nil && r.mayAttach(pv.Spec.FlexVolume.Driver) {
			found = append(found, fmt.Sprintf("persistentvolume %s: driver %s", pv.Name, pv.Spec.FlexVolume.Driver))
		}
		return nil
	})
	if err != nil {
		return c.unknown(err, "list", "persistentvolumes")
	}
	return c.flex(found)
}

func (r *run) mayAttach(driver string) bool { return !slices.Contains(r.NonAttachableFlex, driver) }

func (c Check) flex(found []string) Check {
	c.Result, c.Message, c.Objects = OK, "none that may need an attach", found
	if len(found) > 0 {
		c.Result = Refused
		c.Message = "belay attaches no FlexVolumes: move them to CSI, or name drivers that need no attach in --non-attachable-flex-drivers"
	}
	return c
}
