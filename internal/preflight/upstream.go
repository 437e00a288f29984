package preflight

import (
	"cmp"
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
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/kube"
)

const (
	upstreamProgram   = "kube-controller-manager"
	upstreamNamespace = "kube-system"
)

// upstreamLabels are the labels that installers give to its static pod: kubeadm and most others, kops.
var upstreamLabels = []string{"component=" + upstreamProgram, "k8s-app=" + upstreamProgram}

// controlPlaneRoles are the labels of control-plane nodes, the second one before 1.24.
var controlPlaneRoles = []string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"}

// ErrUpstreamRuns is returned when upstream's controller is enabled.
var ErrUpstreamRuns = errors.New("a kube-controller-manager runs its attach/detach controller: start it with --controllers=*,-persistentvolume-attach-detach-controller")

// MayLead returns an error if a kube-controller-manager pod has its attach/detach controller enabled, or if that could not be
// determined.
func MayLead(ctx context.Context, clients kubernetes.Interface) (refusal, err error) {
	found, err := findUpstreams(ctx, clients, &kube.ServerClock{})
	if err != nil {
		return nil, err
	}
	for _, pod := range found.forgeable {
		klog.FromContext(ctx).Info("Ignoring a static pod that the credentials of its node suffice to create", "pod", pod)
	}
	if len(found.on) > 0 {
		return fmt.Errorf("%w (%s)", ErrUpstreamRuns, strings.Join(found.on, "; ")), nil
	}
	return nil, nil
}

// upstreams are the kube-controller-manager pods by whether their attach/detach controller is enabled. A forgeable pod proves
// nothing.
type upstreams struct {
	on, off, forgeable []string
	// hosts are where those run that are off: the nodes, or the names of pods that have none.
	hosts map[string]bool
	// forcing are those that detach after a timeout, without a proof.
	forcing []string
}

func findUpstreams(ctx context.Context, clients kubernetes.Interface, clock *kube.ServerClock) (found upstreams, err error) {
	seen := map[types.UID]bool{}
	for _, label := range upstreamLabels {
		pods, err := clients.CoreV1().Pods(upstreamNamespace).List(ctx, metav1.ListOptions{LabelSelector: label})
		if err != nil {
			return found, fmt.Errorf("list the pods of kube-controller-manager: %w", err)
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			if seen[pod.UID] || kube.PodEnded(pod) {
				continue
			}
			seen[pod.UID] = true
			if err := found.add(ctx, clients, clock, pod); err != nil {
				return found, err
			}
		}
	}
	return found, nil
}

func (u *upstreams) add(ctx context.Context, clients kubernetes.Interface, clock *kube.ServerClock, pod *corev1.Pod) error {
	for i := range pod.Spec.Containers {
		controllers, ok := controllersOf(&pod.Spec.Containers[i])
		if !ok {
			continue
		}
		forged, err := forgeable(ctx, clients, clock, pod)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("pod %s/%s: --controllers=%s", pod.Namespace, pod.Name, strings.Join(controllers, ","))
		switch {
		case forged:
			u.forgeable = append(u.forgeable, what)
		case attachDetachEnabled(controllers):
			u.on = append(u.on, what)
			if !boolFlag(strings.Fields(strings.Join(slices.Concat(pod.Spec.Containers[i].Command, pod.Spec.Containers[i].Args), " ")), forceFlag) {
				u.forcing = append(u.forcing, "pod "+pod.Namespace+"/"+pod.Name)
			}
		default:
			u.off = append(u.off, what)
			if u.hosts == nil {
				u.hosts = map[string]bool{}
			}
			u.hosts[cmp.Or(pod.Spec.NodeName, pod.Name)] = true
		}
	}
	return nil
}

// forgeable reports whether the credentials of a node suffice to create the pod. A node may
// create mirror pods, owned and run by itself, with any labels and in any namespace. It may
// not give itself the role of a control-plane node, nor write to the lease of the leading
// kube-controller-manager, which names the host of that (k/k plugin/pkg/admission/noderestriction).
func forgeable(ctx context.Context, clients kubernetes.Interface, clock *kube.ServerClock, pod *corev1.Pod) (bool, error) {
	if owner := metav1.GetControllerOfNoCopy(pod); owner == nil || owner.Kind != "Node" {
		return false, nil
	}
	node, err := clients.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return true, err
	}
	for _, role := range controlPlaneRoles {
		if _, ok := node.Labels[role]; ok {
			return false, nil
		}
	}
	t, err := readTerm(ctx, clients, clock)
	if err != nil && !apierrors.IsForbidden(err) {
		return true, err
	}
	host, _, _ := strings.Cut(t.holder, "_") // "<host name>_<UUID>"
	return !strings.EqualFold(host, node.Name), nil
}

// controllersOf reads --controllers from the command line of a kube-controller-manager, which a shell or another program may start;
// repeated flags add up.
func controllersOf(container *corev1.Container) (found []string, ok bool) {
	words := strings.Fields(strings.Join(slices.Concat(container.Command, container.Args), " "))
	start := slices.IndexFunc(words, func(word string) bool { return path.Base(word) == upstreamProgram })
	if start < 0 {
		return nil, false
	}
	for _, value := range flagValues(words[start:], "controllers") {
		found = append(found, strings.Split(value, ",")...)
	}
	if len(found) == 0 {
		return []string{"*"}, true // the default
	}
	return found, true
}

// flagValues returns the values of a flag, which may be repeated. For a flag without a value it returns the next word: of a flag that is
// true or false the value has to be checked.
func flagValues(words []string, flag string) (values []string) {
	for i, word := range words {
		name, value, given := strings.Cut(strings.TrimLeft(word, "-"), "=")
		if !strings.HasPrefix(word, "-") || name != flag {
			continue
		}
		if !given && i+1 < len(words) {
			value = words[i+1]
		}
		values = append(values, value)
	}
	return values
}

// attachDetachEnabled interprets --controllers as kube-controller-manager does: the first item that names the controller decides,
// else the star. Before 1.28 the controller was called attachdetach.
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

// checkUpstream reads the flags of kube-controller-manager, and its leader's term.
func (r *run) checkUpstream(ctx context.Context) Check {
	c := Check{Name: upstreamProgram}
	found, err := findUpstreams(ctx, r.Clients, r.Clock)
	if err != nil {
		return c.unknown(err, "list", "pods")
	}
	var leader string
	r.term, leader = r.leader(ctx)
	switch {
	case r.Phase == Prepare:
		return c.prepared(&found, leader)
	case len(found.on) > 0 && len(found.off) > 0:
		c.Result, c.Objects = Refused, found.on
		c.Message = fmt.Sprintf("its attach/detach controller is still on in %d of %d pods; %s", len(found.on), len(found.on)+len(found.off), leader)
	case len(found.on) > 0:
		c.Result, c.Objects = Refused, found.on
		c.Message = "its attach/detach controller is on: start it with --controllers=*,-persistentvolume-attach-detach-controller"
	case len(found.forgeable) > 0:
		return r.unconfirmed(c, "it runs as a static pod on a node that is not a control-plane node, whose credentials suffice to fake the pod; "+leader, found.forgeable)
	case len(found.off) > 0:
		return r.checkAllOff(ctx, c, &found, leader)
	default:
		return r.unconfirmed(c, "it does not run as a pod in kube-system, so its flags cannot be read; "+leader, nil)
	}
	return c
}

// checkAllOff judges pods whose controller is off. A control-plane node without a pod, such as one that is down, may return with the flags
// that its manifest had.
func (r *run) checkAllOff(ctx context.Context, c Check, found *upstreams, leader string) Check {
	var without []string
	for _, role := range controlPlaneRoles {
		list, err := r.Clients.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: role})
		if err != nil {
			return c.unknown(err, "list", "nodes")
		}
		for i := range list.Items {
			if name := list.Items[i].Name; !found.hosts[name] {
				without = append(without, "node "+name)
			}
		}
	}
	if len(without) > 0 {
		slices.Sort(without) // a node may have both roles
		return r.unconfirmed(c, "its attach/detach controller is off where it runs as a pod; on some control-plane nodes no pod of it was found; "+leader, slices.Compact(without))
	}
	c.Result, c.Objects, c.Message = OK, found.off, "its attach/detach controller is off"
	return c
}

// term is the time since which one kube-controller-manager has led. Its flags have not changed since, because that takes a restart,
// which ends the term.
type term struct {
	holder string // "" for none
	since  time.Time
}

// lateWrites is how long writes of the previous leader may still appear: the API server abandons a request after a minute.
const lateWrites = time.Minute

// includes reports whether something written at that time was written in the term.
func (t term) includes(at time.Time) bool { return t.holder != "" && at.After(t.since.Add(lateWrites)) }

// readTerm reads the lease of kube-controller-manager. Without a leader the term is empty.
func readTerm(ctx context.Context, clients kubernetes.Interface, clock *kube.ServerClock) (term, error) {
	lease, err := clients.CoordinationV1().Leases(upstreamNamespace).Get(ctx, upstreamProgram, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return term{}, nil
	} else if err != nil {
		return term{}, fmt.Errorf("get the lease of kube-controller-manager: %w", err)
	}
	if !leaseIsHeld(lease, clock.Now()) || lease.Spec.AcquireTime == nil {
		return term{}, nil
	}
	return term{holder: *lease.Spec.HolderIdentity, since: lease.Spec.AcquireTime.Time}, nil
}

// leader returns and describes the term. If the lease must not be read, the check continues without it.
func (r *run) leader(ctx context.Context) (term, string) {
	t, err := readTerm(ctx, r.Clients, r.Clock)
	switch {
	case err != nil:
		return t, "its lease could not be read"
	case t.holder == "":
		return t, "none holds its lease"
	}
	return t, fmt.Sprintf("%s has held its lease since %s", t.holder, t.since.Format(time.RFC3339))
}
