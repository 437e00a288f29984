package preflight

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"belay.dev/belay/internal/kube"
)

// ConfirmFlag is the flag that sets Config.Confirmed.
const ConfirmFlag = "confirm-upstream-disabled"

// Phase is the step of a migration that the checks are about.
type Phase string

const (
	// Prepare is before the switch: kube-controller-manager attaches, and everything else has to be in order.
	Prepare Phase = "prepare"
	// TakeOver is between the two controllers: kube-controller-manager's is off, and belay-controller may start. It is the default.
	TakeOver Phase = "take-over"
	// RollBack is between the two controllers in the other direction: belay-controller is gone, and kube-controller-manager's may be enabled.
	RollBack Phase = "roll-back"
)

// Phases are all phases, in the order of a migration.
func Phases() []string { return []string{string(Prepare), string(TakeOver), string(RollBack)} }

// Config configures the checks.
type Config struct {
	// Clients need list and watch on nodes, volumeattachments and events, and list on pods and persistentvolumes. With get on nodes
	// and on the lease of kube-controller-manager the checks find more. For RollBack they need list on pods, leases and deployments,
	// and on clusterroles and clusterrolebindings where a lease elsewhere has to be judged.
	Clients kubernetes.Interface
	// Clock follows the answers to Clients (kube.ServerClock); without it, leases are judged by the clock of this host.
	Clock *kube.ServerClock
	// Phase is what is checked; empty for TakeOver.
	Phase Phase
	// Cluster is shown in the report.
	Cluster Cluster
	// Confirmed: a person confirms that upstream's controller is disabled. It counts unless something proves the opposite.
	Confirmed bool
	// NonAttachableFlex are FlexVolume drivers that need no attach. The API does not show which do, so all others refuse.
	NonAttachableFlex []string
	// Observe is how long to watch for writes by another controller; 0 for not at all.
	Observe time.Duration
	// Kubelets, if not nil, is asked for the configuration of the kubelets of all nodes.
	Kubelets KubeletReader
}

type run struct {
	Config

	// term is the term of the present leader of kube-controller-manager.
	term term
}

// Run makes all checks.
func Run(ctx context.Context, c Config) Report {
	if c.Clock == nil {
		c.Clock = &kube.ServerClock{}
	}
	r := &run{Config: c}
	if c.Phase == RollBack {
		return r.report([]Check{r.checkOwn(ctx), r.checkUpstreamBack(ctx)})
	}
	checks := []Check{r.checkUpstream(ctx)} // sets the term
	checks = append(checks, r.checkWriters(ctx)...)
	checks = append(checks, r.checkFlexPods(ctx), r.checkFlexVolumes(ctx))
	return r.report(checks)
}

// unknown turns an error into a result, and names the missing permission.
func (c Check) unknown(err error, verb, resource string) Check {
	c.Result, c.Message = Unknown, err.Error()
	if apierrors.IsForbidden(err) {
		c.Message = fmt.Sprintf("needs the permission to %s %s: %v", verb, resource, err)
	}
	return c
}

// unconfirmed is the result of a check that only a person can decide.
func (r *run) unconfirmed(c Check, message string, objects []string) Check {
	c.Result, c.Objects = Unconfirmed, objects
	c.Message = message + "; if persistentvolume-attach-detach-controller is disabled in every kube-controller-manager, confirm it with --" + ConfirmFlag
	if r.Confirmed {
		c.Result, c.Message = Warning, message+"; confirmed by --"+ConfirmFlag
	}
	return c
}

// pageSize limits a page of a list whose objects are not kept.
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
		c.Message = "belay does not attach FlexVolumes: migrate them to CSI, or list drivers that need no attach in --non-attachable-flex-drivers"
	}
	return c
}
