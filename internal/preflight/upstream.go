package preflight

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/internal/kube"
)

const (
	upstreamProgram   = "kube-controller-manager"
	upstreamNamespace = "kube-system"
)

// upstreamLabels are what installers put on its static pod: kubeadm and most others, kops.
var upstreamLabels = []string{"component=" + upstreamProgram, "k8s-app=" + upstreamProgram}

// ErrUpstreamRuns is the refusal to start beside upstream's controller.
var ErrUpstreamRuns = errors.New("a kube-controller-manager runs its attach/detach controller: start it with --controllers=*,-persistentvolume-attach-detach-controller")

// MayLead tells whether belay-controller may begin to act, as far as the flags of the
// kube-controller-manager pods tell. The error says that nothing is
// known, which is no permission.
func MayLead(ctx context.Context, clients kubernetes.Interface) (refusal, err error) {
	on, _, err := upstreams(ctx, clients)
	if err != nil {
		return nil, err
	}
	if len(on) > 0 {
		return fmt.Errorf("%w (%s)", ErrUpstreamRuns, strings.Join(on, "; ")), nil
	}
	return nil, nil
}

// upstreams lists the kube-controller-manager pods whose attach/detach controller is on,
// and those where it is off.
func upstreams(ctx context.Context, clients kubernetes.Interface) (on, off []string, err error) {
	seen := map[types.UID]bool{}
	for _, label := range upstreamLabels {
		pods, err := clients.CoreV1().Pods(upstreamNamespace).List(ctx, metav1.ListOptions{LabelSelector: label})
		if err != nil {
			return nil, nil, fmt.Errorf("list the pods of kube-controller-manager: %w", err)
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			if seen[pod.UID] || kube.PodEnded(pod) {
				continue
			}
			seen[pod.UID] = true
			for j := range pod.Spec.Containers {
				controllers, ok := controllersOf(&pod.Spec.Containers[j])
				what := fmt.Sprintf("pod %s/%s: --controllers=%s", pod.Namespace, pod.Name, strings.Join(controllers, ","))
				switch {
				case !ok:
				case attachDetachEnabled(controllers):
					on = append(on, what)
				default:
					off = append(off, what)
				}
			}
		}
	}
	return on, off, nil
}

// controllersOf reads --controllers from the command line of a kube-controller-manager,
// which a shell or another program may start; repeated ones add up.
func controllersOf(container *corev1.Container) (found []string, ok bool) {
	words := strings.Fields(strings.Join(slices.Concat(container.Command, container.Args), " "))
	start := slices.IndexFunc(words, func(word string) bool { return path.Base(word) == upstreamProgram })
	if start < 0 {
		return nil, false
	}
	for i, word := range words {
		name, value, given := strings.Cut(strings.TrimLeft(word, "-"), "=")
		if i < start || !strings.HasPrefix(word, "-") || name != "controllers" {
			continue
		}
		if !given && i+1 < len(words) {
			value = words[i+1]
		}
		found = append(found, strings.Split(value, ",")...)
	}
	if len(found) == 0 {
		return []string{"*"}, true // the default
	}
	return found, true
}

// attachDetachEnabled tells what kube-controller-manager makes of its --controllers: the
// first word about a controller counts, and the star stands for all the others. Before
// 1.28 the controller was called attachdetach.
func attachDetachEnabled(controllers []string) bool {
	star := false
	for _, word := range controllers {
		switch strings.TrimSpace(word) {
		case "persistentvolume-attach-detach-controller", "attachdetach":
			return true
		case "-persistentvolume-attach-detach-controller", "-attachdetach":
			return false
		case "*":
			star = true
		}
	}
	return star
}

// checkUpstream reads the flags of kube-controller-manager, and who leads among them.
func (r *run) checkUpstream(ctx context.Context) Check {
	c := Check{Name: "kube-controller-manager"}
	on, off, err := upstreams(ctx, r.Clients)
	switch {
	case err != nil:
		return c.unknown(err, "list", "pods")
	case len(on) > 0:
		c.Result, c.Objects = Refused, on
		c.Message = "its attach/detach controller is on: start it with --controllers=*,-persistentvolume-attach-detach-controller"
		return c
	case len(off) > 0:
		c.Result, c.Objects = OK, off
		c.Message = "its attach/detach controller is off"
		return c
	}
	c.Result = Warning
	c.Message = "none runs as a pod, so its flags cannot be read; " + r.upstreamLease(ctx) +
		": make sure that it runs with --controllers=*,-persistentvolume-attach-detach-controller"
	return c
}

// upstreamLease says whether a kube-controller-manager is alive. Not being allowed to
// read the lease is no obstacle: it only adds to the words.
func (r *run) upstreamLease(ctx context.Context) string {
	lease, err := r.Clients.CoordinationV1().Leases(upstreamNamespace).Get(ctx, upstreamProgram, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "it has no lease"
	case err != nil:
		return "its lease could not be read"
	case lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" || lease.Spec.RenewTime == nil:
		return "nobody holds its lease"
	}
	return fmt.Sprintf("%s renewed its lease %v ago", *lease.Spec.HolderIdentity, time.Since(lease.Spec.RenewTime.Time).Round(time.Second))
}
