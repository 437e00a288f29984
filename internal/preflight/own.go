package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/ptr"

	"belay.dev/belay/internal/kube"
)

// ownLabel is on the pods of belay-controller that the chart and deploy/ install, with the name of the program.
const ownLabel = "app.kubernetes.io/name"

// leaseMargin is how much longer than its duration a lease counts as held: its holder writes the time of its own clock, which may be behind
// that of the API server.
const leaseMargin = 10 * time.Second

// checkOwn finds whether belay-controller has ended: no lease of it is held, no pod is left, and no Deployment will make one.
func (r *run) checkOwn(ctx context.Context) Check {
	c := Check{Name: ownCheck, Result: OK, Message: "it does not run"}
	leases, unread, err := r.ownLeases(ctx)
	if err != nil {
		return c.unknown(err, "list", unread)
	}
	c.Objects = leases
	pods, err := r.ownPods(ctx)
	if err != nil {
		return c.unknown(err, "list", "pods")
	}
	c.Objects = append(c.Objects, pods...)
	deployments, err := r.ownDeployments(ctx)
	c.Objects = append(c.Objects, deployments...)
	switch {
	case len(c.Objects) > 0:
		c.Result, c.Message = Refused, "it still runs or leads, or is to run"
	case err != nil:
		return c.unknown(err, "list", "deployments")
	}
	return c
}

// ownLeases are the leases of belay-controller that are held and count. With an error it names the resource that could not be read: who may
// write a lease is read only where that decides whether it counts.
func (r *run) ownLeases(ctx context.Context) (found []string, unread string, err error) {
	leases, err := r.Clients.CoordinationV1().Leases("").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + kube.FieldManager})
	if err != nil {
		return nil, "leases", err
	}
	held := slices.DeleteFunc(leases.Items, func(l coordinationv1.Lease) bool {
		return l.Name != kube.FieldManager || !leaseIsHeld(&l, r.Clock.Now().Add(-leaseMargin))
	})
	var owners kube.LeaseOwners
	if slices.ContainsFunc(held, func(l coordinationv1.Lease) bool { return !owners.Counts(l.Namespace) }) {
		if owners, unread, err = kube.ReadLeaseOwners(ctx, r.Clients); err != nil {
			return nil, unread, err
		}
	}
	for i := range held {
		if l := &held[i]; owners.Counts(l.Namespace) {
			found = append(found, fmt.Sprintf("lease %s/%s: held by %s", l.Namespace, l.Name, *l.Spec.HolderIdentity))
		}
	}
	return found, "", nil
}

// ownPods are the pods that run belay-controller, or may start to.
func (r *run) ownPods(ctx context.Context) (found []string, err error) {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return r.Clients.CoreV1().Pods("").List(ctx, o)
	})
	pages.PageSize = pageSize
	err = pages.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		if pod, ok := obj.(*corev1.Pod); ok && !kube.PodEnded(pod) && isOwn(pod.Labels, &pod.Spec) {
			found = append(found, "pod "+pod.Namespace+"/"+pod.Name)
		}
		return nil
	})
	return found, err
}

// ownDeployments are the Deployments that want pods of belay-controller, or may still make some. They may have none at present: evicted, over a
// quota, or in the moment of an upgrade.
func (r *run) ownDeployments(ctx context.Context) (found []string, err error) {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return r.Clients.AppsV1().Deployments("").List(ctx, o)
	})
	pages.PageSize = pageSize
	err = pages.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		d, ok := obj.(*appsv1.Deployment)
		if !ok {
			return nil
		}
		template := &d.Spec.Template
		if wants := wantsPods(d); wants != "" && isOwn(template.Labels, &template.Spec) {
			found = append(found, fmt.Sprintf("deployment %s/%s: %s", d.Namespace, d.Name, wants))
		}
		return nil
	})
	return found, err
}

// wantsPods says why a Deployment has pods or may still make some, and nothing when it has ended.
func wantsPods(d *appsv1.Deployment) string {
	switch replicas := ptr.Deref(d.Spec.Replicas, 1); {
	case replicas > 0:
		return fmt.Sprintf("replicas %d", replicas)
	case d.Status.ObservedGeneration < d.Generation:
		return "replicas 0, which the Deployment controller has not seen yet"
	case d.Status.Replicas > 0:
		return fmt.Sprintf("replicas 0, %d still there", d.Status.Replicas)
	}
	return ""
}

// isOwn recognizes a pod of belay-controller by its label or by its program. The parts of recovery are the same program, and attach nothing.
func isOwn(labels map[string]string, spec *corev1.PodSpec) bool {
	if labels[ownLabel] == kube.FieldManager {
		return true
	}
	return slices.ContainsFunc(spec.Containers, func(c corev1.Container) bool {
		words := slices.Concat(c.Command, c.Args)
		return programOf(&c) == kube.FieldManager && !slices.Contains(words, "preflight") && attaches(words)
	})
}

// attaches reports whether belay-controller with this command line runs the attach/detach controller, which it does by default.
func attaches(words []string) bool {
	values := flagValues(words, "controllers")
	return len(values) == 0 || slices.ContainsFunc(values, func(v string) bool { return strings.TrimSpace(v) != "recovery" })
}

// leaseIsHeld reports whether a lease has a holder who renews it.
func leaseIsHeld(l *coordinationv1.Lease, now time.Time) bool {
	s := l.Spec
	return ptr.Deref(s.HolderIdentity, "") != "" && s.RenewTime != nil && now.Sub(s.RenewTime.Time) <= kube.LeaseLasts(l)
}
