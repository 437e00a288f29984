package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/timeline"
)

// Limits of the waits. They are for a loaded machine with two cores; a wait that
// ends in them says what it waited for.
const (
	// moveLimit holds kubelet's status ticks, a restart of any component and its lease.
	moveLimit = 5 * time.Minute
	// notReadyLimit holds the grace period of the controller manager (50 s by default).
	notReadyLimit = 90 * time.Second
	shortLimit    = 3 * time.Minute
)

// Place creates the writer and waits until it runs and has written.
func (s *Scene) Place(ctx context.Context) (*timeline.Move, error) {
	start := time.Now()
	set := writer(StorageClass)
	if _, err := s.Client.AppsV1().StatefulSets(Namespace).Create(ctx, set, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create the writer: %w", err)
	}
	now, err := s.awaitWriter(ctx, "", nothing)
	if err != nil {
		return nil, err
	}
	return s.Timeline(ctx, query("placement", "", now, start))
}

// Drain cordons the writer's node and evicts every pod from it, as kubectl drain
// does, and waits until the writer runs elsewhere. The node is uncordoned at the end.
func (s *Scene) Drain(ctx context.Context, title string) (*timeline.Move, error) {
	return s.leave(ctx, title, s.evictAll)
}

// DeleteAndCordon cordons the writer's node and deletes the writer's pod.
func (s *Scene) DeleteAndCordon(ctx context.Context, title string) (*timeline.Move, error) {
	return s.leave(ctx, title, func(ctx context.Context, _ string) error {
		return s.stubborn(ctx, "delete the writer's pod", func() error {
			return s.Client.CoreV1().Pods(Namespace).Delete(ctx, WriterPod, metav1.DeleteOptions{})
		})
	})
}

// leave makes the writer leave its node in the given way.
func (s *Scene) leave(ctx context.Context, title string, push func(ctx context.Context, node string) error) (*timeline.Move, error) {
	from, err := s.WriterNode()
	if err != nil {
		return nil, err
	}
	if err := s.cordon(ctx, from, true); err != nil {
		return nil, err
	}
	start := time.Now()
	back, stop := s.comeBack(from)
	defer stop()
	if err := push(ctx, from); err != nil {
		return nil, err
	}
	to, err := s.awaitWriter(ctx, from, func() error {
		select {
		case <-back:
			s.say("the scheduler did not know yet that %s is cordoned, and placed the writer there: trying again", from)
			return push(ctx, from)
		default:
			return nil
		}
	})
	if err != nil {
		return nil, err
	}
	if err := s.cordon(ctx, from, false); err != nil {
		return nil, err
	}
	return s.Timeline(ctx, query(title, from, to, start))
}

// comeBack returns a channel that gets the first new pod that is bound to the node that the writer
// leaves: after a restart of the API server the scheduler's view is seconds old.
func (s *Scene) comeBack(from string) (<-chan timeline.Change, func()) {
	return s.Record.Next(func(c timeline.Change) bool {
		return c.Kind == timeline.PodBound && c.Node == from && c.Object == Namespace+"/"+WriterPod
	})
}

func query(title, from, to string, start time.Time) timeline.Query {
	return timeline.Query{
		Title: title, From: from, To: to, Start: start,
		NextPod: Namespace + "/" + WriterPod, Volume: timeline.Volume{Claim: ClaimKey},
	}
}

// PowerCut cuts the power of the writer's node and waits until the writer runs elsewhere. In a lab without recovery it waits until the cluster
// takes the node for dead, and marks it out of service as an operator does who has seen that the machine is off.
func (s *Scene) PowerCut(ctx context.Context, title string) (*timeline.Move, error) {
	return s.lose(ctx, title, "power of %s is cut", s.Cluster.PowerOff)
}

// Hang freezes all processes of the writer's node, as a machine that hangs, and waits until the writer runs elsewhere. In a lab without
// recovery it does what PowerCut does there, and switches the machine off before that.
func (s *Scene) Hang(ctx context.Context, title string) (*timeline.Move, error) {
	return s.lose(ctx, title, "%s hangs", s.Cluster.Freeze)
}

// lose takes the writer's node away.
func (s *Scene) lose(ctx context.Context, title, says string, take func(node string) error) (*timeline.Move, error) {
	from, err := s.WriterNode()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	s.say(says, from)
	if err := take(from); err != nil {
		return nil, fmt.Errorf("take %s away: %w", from, err)
	}
	if s.Options.Recovery == "" {
		if err := s.confirmOff(ctx, from, start); err != nil {
			return nil, err
		}
	}
	to, err := s.awaitWriter(ctx, from, nothing)
	if err != nil {
		return nil, err
	}
	q := query(title, from, to, start)
	q.Recovery = s.Options.Recovery != ""
	return s.Timeline(ctx, q)
}

// confirmOff waits until the cluster takes a node for dead, makes sure that it is off, and marks it out of service.
func (s *Scene) confirmOff(ctx context.Context, from string, start time.Time) error {
	if err := s.AwaitNotReady(ctx, from); err != nil {
		return err
	}
	if s.Cluster.IsOn(from) {
		if err := s.Cluster.PowerOff(from); err != nil {
			return fmt.Errorf("switch %s off: %w", from, err)
		}
	}
	s.say("%s is NotReady and off after %.1f s, so it is marked out of service", from, time.Since(start).Seconds())
	return s.MarkOutOfService(ctx, from)
}

// MarkOutOfService sets the taint by which an operator says that a node is off.
func (s *Scene) MarkOutOfService(ctx context.Context, node string) error {
	taint := corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}
	return s.editNode(ctx, node, func(n *corev1.Node) {
		has := func(t corev1.Taint) bool { return t.Key == taint.Key }
		if !slices.ContainsFunc(n.Spec.Taints, has) {
			n.Spec.Taints = append(n.Spec.Taints, taint)
		}
	})
}

// Refused is the event that a second user of the volume gets.
type Refused struct {
	Node    string `json:"node"`
	Pod     string `json:"pod"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Holder is the pod that has the volume, and its node.
	Holder string `json:"holder"`
	// Seconds from the pod's creation to the event.
	Seconds float64 `json:"seconds"`
}

// Refuse starts a second pod with the writer's claim on a third node, waits until
// an event names the holder of the volume, and deletes it. meanwhile, if not nil, is called
// with the pod's name while it waits.
func (s *Scene) Refuse(ctx context.Context, meanwhile func(ctx context.Context, pod string) error) (*Refused, error) {
	holder, err := s.WriterNode()
	if err != nil {
		return nil, err
	}
	third, err := s.otherNode(holder)
	if err != nil {
		return nil, err
	}
	const name = "intruder"
	intruder := pod(name, claimName, third, podSpec("hold", "--file", ledgerFile))
	start := time.Now()
	if _, err := s.Client.CoreV1().Pods(Namespace).Create(ctx, intruder, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create the second pod: %w", err)
	}
	var refusal *corev1.Event
	err = s.await(ctx, shortLimit, "an event FailedAttachVolume of the second pod that names the holder of the volume", func() (bool, error) {
		refusal = s.event(name, "FailedAttachVolume")
		return refusal != nil, nil
	})
	if err != nil {
		return nil, err
	}
	refused := &Refused{
		Node: third, Pod: Namespace + "/" + name, Reason: refusal.Reason, Message: refusal.Message,
		Holder: WriterPod + " on " + holder, Seconds: time.Since(start).Seconds(),
	}
	if meanwhile != nil {
		if err := meanwhile(ctx, name); err != nil {
			return nil, err
		}
	}
	return refused, s.removePod(ctx, name)
}

// Verified is what reading all records back has found.
type Verified struct {
	Acknowledged int64 `json:"acknowledged"`
	Count        int64 `json:"count"`
	TornBytes    int64 `json:"tornBytes"`
	// Writers counts the records by node/pod that wrote them.
	Writers map[string]int64 `json:"writers"`
	// Since is when the pod that wrote the last record began its first one.
	Since   time.Time `json:"since"`
	Problem string    `json:"problem,omitempty"`
}

// Verify reads every record back in a pod and fails unless all that were
// acknowledged are in place. With the writer at work the pod runs beside it, on its
// node; else the scheduler places it.
func (s *Scene) Verify(ctx context.Context) (*Verified, error) {
	node, _ := s.WriterNode() // none: the writer was stopped
	want := s.Acknowledged()
	name := fmt.Sprintf("verify-%d", time.Now().UnixMilli())
	check := verifier(name, node, want)
	err := s.stubborn(ctx, "create the verifying pod", func() error {
		_, err := s.Client.CoreV1().Pods(Namespace).Create(ctx, check, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return nil, err
	}
	var phase corev1.PodPhase
	err = s.await(ctx, moveLimit, "the pod "+name+" to read all records back", func() (bool, error) {
		p, err := s.state.Core().V1().Pods().Lister().Pods(Namespace).Get(name)
		if err != nil {
			return false, nil //nolint:nilerr // the cache has not seen it yet
		}
		phase = p.Status.Phase
		return phase == corev1.PodSucceeded || phase == corev1.PodFailed, nil
	})
	if err != nil {
		return nil, err
	}
	found := &Verified{Acknowledged: want}
	if err := s.readReport(ctx, name, found); err != nil {
		return nil, fmt.Errorf("the verifying pod ended as %s: %w", phase, err)
	}
	if phase != corev1.PodSucceeded {
		return found, fmt.Errorf("of %d acknowledged records %d are in place: %s", want, found.Count, found.Problem)
	}
	return found, s.removePod(ctx, name)
}

// readReport reads the verifier's answer from its log.
func (s *Scene) readReport(ctx context.Context, name string, into *Verified) error {
	return s.stubborn(ctx, "read the log of "+name, func() error {
		raw, err := s.Client.CoreV1().Pods(Namespace).GetLogs(name, &corev1.PodLogOptions{}).DoRaw(ctx)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(raw)) {
			if strings.HasPrefix(line, "{") {
				return json.Unmarshal([]byte(line), into)
			}
		}
		return fmt.Errorf("the log of %s holds no report: %q", name, raw)
	})
}

// Violations asks the storage for writes that it had to refuse, or should have.
func (s *Scene) Violations(ctx context.Context) ([]labdisk.Violation, error) {
	found, err := s.Cluster.Fabric().Violations(ctx, time.Time{})
	if err != nil {
		return nil, fmt.Errorf("ask the storage for forbidden writes: %w", err)
	}
	return found, nil
}

// StopWriter scales the writer to nothing and waits until its volume is detached.
func (s *Scene) StopWriter(ctx context.Context) error {
	err := s.stubborn(ctx, "scale the writer to 0", func() error {
		patch := []byte(`{"spec":{"replicas":0}}`)
		_, err := s.Client.AppsV1().StatefulSets(Namespace).Patch(ctx, WriterSet, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return s.await(ctx, moveLimit, "the writer to be gone", func() (bool, error) {
		_, err := s.state.Core().V1().Pods().Lister().Pods(Namespace).Get(WriterPod)
		return apierrors.IsNotFound(err), nil
	})
}

// WriterNode is the node on which the writer's pod is bound.
func (s *Scene) WriterNode() (string, error) {
	p, err := s.state.Core().V1().Pods().Lister().Pods(Namespace).Get(WriterPod)
	if err != nil {
		return "", fmt.Errorf("find the writer's pod: %w", err)
	}
	if p.Spec.NodeName == "" {
		return "", errors.New("the writer's pod is not bound to a node")
	}
	return p.Spec.NodeName, nil
}

func nothing() error { return nil }

// recordsPerMove is how many new records a writer must have acknowledged before its
// move counts as done: it writes ten a second.
const recordsPerMove = 5

// awaitWriter waits until the writer runs on a node other than from, and has
// acknowledged new records there. It returns that node. meanwhile is called at each look.
func (s *Scene) awaitWriter(ctx context.Context, from string, meanwhile func() error) (string, error) {
	elsewhere := ""
	if from != "" {
		elsewhere = " on a node other than " + from
	}
	var node string
	err := s.await(ctx, moveLimit, "pod "+Namespace+"/"+WriterPod+" to run"+elsewhere, func() (bool, error) {
		if err := meanwhile(); err != nil {
			return false, err
		}
		p, err := s.state.Core().V1().Pods().Lister().Pods(Namespace).Get(WriterPod)
		if err != nil {
			return false, nil //nolint:nilerr // between two pods of the set there is none
		}
		node = p.Spec.NodeName
		return p.DeletionTimestamp == nil && node != "" && node != from && timeline.Running(p), nil
	})
	if err != nil {
		return "", err
	}
	before := s.Acknowledged()
	err = s.await(ctx, shortLimit, fmt.Sprintf("the writer on %s to acknowledge records after number %d", node, before), func() (bool, error) {
		return s.Acknowledged() >= before+recordsPerMove, nil
	})
	if err != nil {
		return "", errors.Join(err, s.acks.trouble())
	}
	return node, nil
}

// otherNode is a Ready node that does not hold the volume.
func (s *Scene) otherNode(holder string) (string, error) {
	nodes, err := s.state.Core().V1().Nodes().Lister().List(everything)
	if err != nil {
		return "", fmt.Errorf("list nodes: %w", err)
	}
	var others []string
	for _, n := range nodes {
		if n.Name != holder && ready(n) && !n.Spec.Unschedulable {
			others = append(others, n.Name)
		}
	}
	if len(others) == 0 {
		return "", fmt.Errorf("there is no Ready node besides %s", holder)
	}
	slices.Sort(others)
	return others[len(others)-1], nil
}

// event is the newest event of a reason about a pod, or nil.
func (s *Scene) event(podName, reason string) *corev1.Event {
	events, err := s.state.Core().V1().Events().Lister().Events(Namespace).List(everything)
	if err != nil {
		return nil
	}
	var newest *corev1.Event
	for _, e := range events {
		if e.InvolvedObject.Name == podName && e.Reason == reason &&
			(newest == nil || eventTime(e).After(eventTime(newest))) {
			newest = e
		}
	}
	return newest
}

func (s *Scene) removePod(ctx context.Context, name string) error {
	err := s.stubborn(ctx, "delete pod "+name, func() error {
		err := s.Client.CoreV1().Pods(Namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.await(ctx, shortLimit, "pod "+name+" to be gone", func() (bool, error) {
		_, err := s.state.Core().V1().Pods().Lister().Pods(Namespace).Get(name)
		return apierrors.IsNotFound(err), nil
	})
}

// evictAll asks for the eviction of every pod of a node, and asks again while a
// disruption budget refuses it.
func (s *Scene) evictAll(ctx context.Context, node string) error {
	pods, err := s.state.Core().V1().Pods().Lister().List(everything)
	if err != nil {
		return fmt.Errorf("list the pods of %s: %w", node, err)
	}
	for _, p := range pods {
		if p.Spec.NodeName != node {
			continue
		}
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}
		err := s.stubborn(ctx, "evict pod "+p.Namespace+"/"+p.Name, func() error {
			err := s.Client.PolicyV1().Evictions(p.Namespace).Evict(ctx, eviction)
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Scene) cordon(ctx context.Context, node string, cordoned bool) error {
	return s.editNode(ctx, node, func(n *corev1.Node) { n.Spec.Unschedulable = cordoned })
}

// editNode changes a Node's spec, again on a conflict.
func (s *Scene) editNode(ctx context.Context, name string, edit func(*corev1.Node)) error {
	return s.stubborn(ctx, "change node "+name, func() error {
		return retry.RetryOnConflict(retry.DefaultRetry, func() error {
			node, err := s.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			edit(node)
			_, err = s.Client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
			return err
		})
	})
}

// stubborn repeats a request while the API server may be restarting: it refuses
// connections then, and for a moment even answers 403 to those who may.
func (s *Scene) stubborn(ctx context.Context, what string, do func() error) error {
	var last error
	err := s.await(ctx, shortLimit, "the API server to let the lab "+what, func() (bool, error) {
		last = do()
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
