package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/informer"
	"belay.dev/belay/lab/scenario"
)

// rejoinLimit bounds the wait for nodes to be back: a boot, a minute after the untaint, and a minute until the BMC was asked again.
const rejoinLimit = 5 * time.Minute

// recoveryRig is a lab whose writer runs.
type recoveryRig struct {
	lab    recoveryLab
	scene  *scenario.Scene
	api    client.Client
	fences *fenceWatch // nil without recovery
}

func openRecovery(ctx context.Context, l recoveryLab) (*recoveryRig, error) {
	scene, err := scenario.Open(ctx, l.options(), l.say)
	if err != nil {
		return nil, err
	}
	r := &recoveryRig{lab: l, scene: scene}
	if err := r.start(ctx); err != nil {
		return nil, errors.Join(err, r.close(ctx))
	}
	return r, nil
}

func (r *recoveryRig) start(ctx context.Context) error {
	scheme := runtime.NewScheme()
	if err := fencingv1.AddToScheme(scheme); err != nil {
		return fmt.Errorf("register the types of recovery: %w", err)
	}
	config := r.scene.Cluster.RESTConfig()
	config.ContentType, config.AcceptContentTypes = "", "" // these types have no protobuf
	var err error
	if r.api, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("make a client of recovery: %w", err)
	}
	if r.lab.profile != "" {
		source, err := dynamic.NewForConfig(config)
		if err != nil {
			return fmt.Errorf("make a client of recovery: %w", err)
		}
		if r.fences, err = watchFences(ctx, source); err != nil {
			return err
		}
	}
	_, err = r.scene.Place(ctx)
	return err
}

func (r *recoveryRig) close(ctx context.Context) error {
	if r.fences != nil {
		r.fences.close()
	}
	return r.scene.Close(ctx)
}

// awaitReady waits until the writer's node could be fenced, and another one takes pods.
func (r *recoveryRig) awaitReady(ctx context.Context) error {
	var missing error
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, rejoinLimit, true, func(ctx context.Context) (bool, error) {
		missing = r.ready(ctx)
		return missing == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting until the next node may be lost: %w", errors.Join(missing, err))
	}
	return nil
}

func (r *recoveryRig) ready(ctx context.Context) error {
	pod, err := r.writer(ctx)
	if err != nil {
		return err
	}
	nodes, err := r.scene.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	free := 0
	for i := range nodes.Items {
		node := &nodes.Items[i]
		switch {
		case node.Name == pod.Spec.NodeName && r.lab.profile != "":
			if err := r.fenceable(ctx, node); err != nil {
				return err
			}
		case node.Name != pod.Spec.NodeName && isReady(node) && len(node.Spec.Taints) == 0:
			free++
		}
	}
	if free == 0 {
		return errors.New("no other node takes pods")
	}
	return nil
}

// fenceable returns why a node could not be fenced now.
func (r *recoveryRig) fenceable(ctx context.Context, node *corev1.Node) error {
	source, fence := &fencingv1.FenceSource{}, &fencingv1.NodeFence{}
	if err := r.api.Get(ctx, client.ObjectKey{Name: node.Name}, source); err != nil {
		return fmt.Errorf("read the FenceSource of %s: %w", node.Name, err)
	}
	bound := source.Status.Bound
	if !meta.IsStatusConditionTrue(source.Status.Conditions, "FenceReady") || bound == nil || bound.BootID != node.Status.NodeInfo.BootID {
		return fmt.Errorf("the FenceSource of %s is not ready: %+v", node.Name, source.Status)
	}
	err := r.api.Get(ctx, client.ObjectKey{Name: node.Name}, fence)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read the NodeFence of %s: %w", node.Name, err)
	}
	if err == nil && len(fence.Finalizers) > 0 {
		return fmt.Errorf("the NodeFence of %s is %s and waits for %q", node.Name, fence.Status.Phase, fence.Status.Missing)
	}
	return nil
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// restore switches a node on again, after a power cut of what may still run there. Without recovery it waits until the node is back and
// removes the taint, as a person does.
func (r *recoveryRig) restore(ctx context.Context, name string) error {
	lab := r.scene.Cluster
	if lab.IsOn(name) {
		if err := lab.PowerOff(name); err != nil {
			return err
		}
	}
	if err := lab.PowerOn(name); err != nil {
		return err
	}
	if r.lab.profile != "" {
		return nil
	}
	nodes := r.scene.Client.CoreV1().Nodes()
	return wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, rejoinLimit, true, func(ctx context.Context) (bool, error) {
		node, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil || !isReady(node) {
			return false, nil //nolint:nilerr // it is read again
		}
		return true, retry.RetryOnConflict(retry.DefaultRetry, func() error {
			node, err := nodes.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
			_, err = nodes.Update(ctx, node, metav1.UpdateOptions{})
			return err
		})
	})
}

// leaveAlone cuts the power of the writer's node, and finds the writer's pod after the lab's wait.
func (r *recoveryRig) leaveAlone(ctx context.Context) (LeftAlone, error) {
	alone := LeftAlone{Nodes: r.lab.nodes}
	if err := r.awaitReady(ctx); err != nil {
		return alone, err
	}
	before, err := r.writer(ctx)
	if err != nil {
		return alone, err
	}
	start, from := time.Now(), before.Spec.NodeName
	r.lab.say("power of %s is cut; nothing is done for %v", from, r.lab.wait)
	if err := r.scene.Cluster.PowerOff(from); err != nil {
		return alone, err
	}
	if err := pause(ctx, r.lab.wait); err != nil {
		return alone, err
	}
	pod, err := r.writer(ctx)
	if err != nil {
		return alone, err
	}
	attachments, err := r.scene.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return alone, fmt.Errorf("list attachments: %w", err)
	}
	alone.Seconds, alone.Node, alone.Replaced = time.Since(start).Seconds(), pod.Spec.NodeName, pod.UID != before.UID
	if pod.DeletionTimestamp != nil {
		grace := time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
		alone.Terminating = new(pod.DeletionTimestamp.Add(-grace).Sub(start).Seconds())
	}
	for _, va := range attachments.Items {
		if va.Spec.NodeName == from && va.Status.Attached && va.DeletionTimestamp == nil {
			alone.Attached++
		}
	}
	return alone, nil
}

// created is the phase of a NodeFence that has none yet.
const created fencing.Phase = ""

// fenceWatch records when NodeFences reach their phases, by the clock of the bench: the API keeps whole seconds.
type fenceWatch struct {
	factory dynamicinformer.DynamicSharedInformerFactory
	cancel  context.CancelFunc

	mu     sync.Mutex
	phases []fencePhase
}

type fencePhase struct {
	node  string
	phase fencing.Phase
	at    time.Time
}

// watchFences watches until close is called; ctx bounds the start alone.
func watchFences(ctx context.Context, source dynamic.Interface) (*fenceWatch, error) {
	w := &fenceWatch{factory: dynamicinformer.NewDynamicSharedInformerFactory(source, 0)}
	resource := fencingv1.GroupVersion.WithResource("nodefences")
	if _, err := informer.OnChange(w.factory.ForResource(resource).Informer(), w.changed); err != nil {
		return nil, fmt.Errorf("watch NodeFences: %w", err)
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w.cancel = cancel
	w.factory.Start(running.Done())
	if !w.factory.WaitForCacheSync(ctx.Done())[resource] {
		w.close()
		return nil, fmt.Errorf("wait for the first list of NodeFences: %w", context.Cause(ctx))
	}
	return w, nil
}

func (w *fenceWatch) close() {
	w.cancel()
	w.factory.Shutdown()
}

func (w *fenceWatch) changed(before, after *unstructured.Unstructured) {
	if after == nil {
		return
	}
	at := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if before == nil {
		w.phases = append(w.phases, fencePhase{after.GetName(), created, at})
	}
	if is := phaseOf(after); is != created && (before == nil || phaseOf(before) != is) {
		w.phases = append(w.phases, fencePhase{after.GetName(), is, at})
	}
}

func phaseOf(fence *unstructured.Unstructured) fencing.Phase {
	phase, _, _ := unstructured.NestedString(fence.Object, "status", "phase") // none before the first one
	return fencing.Phase(phase)
}

// reached is when the fence of a node first reached a phase after a time; zero if it did not.
func (w *fenceWatch) reached(node string, after time.Time, phase fencing.Phase) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.phases {
		if p.node == node && p.phase == phase && p.at.After(after) {
			return p.at
		}
	}
	return time.Time{}
}
