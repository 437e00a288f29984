package preflight

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// CategoryKubelets has the checks of the kubelets' configuration, if it was asked for.
const CategoryKubelets = "kubelets"

// tickPage is about the settings that these checks look at.
const tickPage = "docs/operate.md#the-kubelets-status-tick"

// profilesPage is about what recovery's profiles assume of kubelets.
const profilesPage = "docs/recovery/nodes-and-people.md#profiles"

// nodesProxy is the resource of requests to a kubelet through the API server. The finer nodes/configz counts at the kubelet itself, where the
// API server is the client (k/k v1.36.3 pkg/kubelet/server/auth.go: GetRequestAttributes).
const nodesProxy diagnosis.Resource = "nodes/proxy"

// Limits of what is asked of kubelets. No role of belay has the permission: the kubelet counts GET /exec, with WebSockets, as get nodes/proxy
// too (k/k v1.36.3 pkg/kubelet/server/server.go: InstallAuthRequiredHandlers).
const (
	kubeletsAtOnce = 16
	kubeletTimeout = 5 * time.Second
	allKubelets    = time.Minute
	// kubeletAnswer is many times the size of a kubelet's configuration.
	kubeletAnswer = 1 << 20
)

// The kubelet's defaults (k/k v1.36.3 pkg/kubelet/apis/config/v1beta1/defaults.go: SetDefaults_KubeletConfiguration).
const defaultTick = 10 * time.Second

// shortestTick is the shortest nodeStatusUpdateFrequency that is believed: one node that claims less would make up the load of all.
const shortestTick = 100 * time.Millisecond

// KubeletReader returns what the kubelet of a node answers to GET /configz.
type KubeletReader func(ctx context.Context, node string) ([]byte, error)

// NewKubeletReader returns a reader that asks kubelets through the API server. It does not follow redirections, by which a node that is under
// foreign control could have the credentials of the caller sent elsewhere, and reads no more of an answer than the limit.
func NewKubeletReader(config *rest.Config) (KubeletReader, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = cmp.Or(config.UserAgent, rest.DefaultKubernetesUserAgent())
	shared, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for kubelets: %w", err)
	}
	client := *shared
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	clients, err := kubernetes.NewForConfigAndClient(config, &client)
	if err != nil {
		return nil, fmt.Errorf("make a client for kubelets: %w", err)
	}
	server := clients.CoreV1().RESTClient()
	return func(ctx context.Context, node string) ([]byte, error) {
		address := server.Get().Resource("nodes").Name(node).SubResource("proxy").Suffix("configz").URL().String()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
		if err != nil {
			return nil, fmt.Errorf("make a request for the kubelet of node %s: %w", node, err)
		}
		response, err := client.Do(request)
		if err != nil {
			return nil, fmt.Errorf("ask the kubelet of node %s: %w", node, err)
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode != http.StatusOK {
			return nil, httpStatus(response.StatusCode)
		}
		answer, err := io.ReadAll(http.MaxBytesReader(nil, response.Body, kubeletAnswer))
		if err != nil {
			return nil, fmt.Errorf("read the answer of the kubelet of node %s: %w", node, err)
		}
		return answer, nil
	}, nil
}

// httpStatus is the status of an answer without a configuration.
type httpStatus int

func (s httpStatus) Error() string { return fmt.Sprintf("HTTP status %d", int(s)) }

// kubelet is what is known of one.
type kubelet struct {
	node    string
	problem string // why nothing else is known
	tick    time.Duration
	report  time.Duration
	lease   time.Duration
}

// readKubelets asks the kubelets of all nodes for their configuration.
func (h *health) readKubelets(ctx context.Context, c Config) {
	if c.Kubelets == nil {
		return
	}
	h.kubeletsAllowed = mayAskKubelets(ctx, c.Clients)
	if !h.kubeletsAllowed {
		h.unread = append(h.unread, diagnosis.Unread{Ref: diagnosis.Ref{Resource: nodesProxy}, Verb: "get", Forbidden: true, Message: "forbidden"})
		return
	}
	for _, n := range h.Nodes {
		if n.Annotations[kube.VolumesRootAnnotation] == "" { // belay-node is there in place of a kubelet
			h.kubelets = append(h.kubelets, kubelet{node: n.Name})
		}
	}
	ready := map[string]bool{}
	for _, n := range h.Nodes {
		ready[n.Name] = kube.Ready(n)
	}
	ctx, cancel := context.WithTimeout(ctx, allKubelets)
	defer cancel()
	var group sync.WaitGroup
	places := make(chan struct{}, kubeletsAtOnce)
	for i := range h.kubelets {
		k := &h.kubelets[i]
		if !ready[k.node] {
			k.problem = "not asked: the node is not Ready"
			continue
		}
		places <- struct{}{}
		group.Go(func() {
			defer func() { <-places }()
			k.ask(ctx, c.Kubelets)
		})
	}
	group.Wait()
}

// mayAskKubelets asks the API server first, rather than to have it refuse a request for each node. If it does not say, they are asked.
func mayAskKubelets(ctx context.Context, clients kubernetes.Interface) bool {
	review, err := clients.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: corev1.GroupName, Resource: "nodes", Subresource: "proxy", Verb: "get",
		}},
	}, metav1.CreateOptions{})
	return err != nil || review.Status.Allowed
}

func (k *kubelet) ask(ctx context.Context, read KubeletReader) {
	if ctx.Err() != nil {
		k.problem = fmt.Sprintf("not asked: all kubelets together took longer than %v", allKubelets)
		return
	}
	own, cancel := context.WithTimeout(ctx, kubeletTimeout)
	defer cancel()
	answer, err := read(own, k.node)
	switch {
	case err != nil && ctx.Err() != nil:
		k.problem = fmt.Sprintf("did not answer before all kubelets together took longer than %v", allKubelets)
	case err != nil && own.Err() != nil:
		k.problem = fmt.Sprintf("did not answer within %v", kubeletTimeout)
	case err != nil:
		k.problem = k.refusal(err)
	default:
		k.parse(answer)
	}
}

// refusal describes an error. It never has a part of the answer, which may be hostile.
func (k *kubelet) refusal(err error) string {
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return fmt.Sprintf("its answer is larger than %d KiB", kubeletAnswer>>10)
	case errors.Is(err, httpStatus(http.StatusNotFound)):
		return "serves no /configz: enableDebuggingHandlers may be off"
	case errors.As(err, new(httpStatus)):
		return fmt.Sprintf("could not be asked: %v; kubectl get --raw /api/v1/nodes/%s/proxy/configz shows why", err, k.node)
	}
	return "could not be asked: " + err.Error()
}

// parse reads the answer. A kubelet shows the values that count, with the defaults in place.
func (k *kubelet) parse(answer []byte) {
	var configz struct {
		Config *struct {
			Tick   metav1.Duration `json:"nodeStatusUpdateFrequency"`
			Report metav1.Duration `json:"nodeStatusReportFrequency"`
			Lease  int32           `json:"nodeLeaseDurationSeconds"`
		} `json:"kubeletconfig"`
	}
	if json.Unmarshal(answer, &configz) != nil || configz.Config == nil {
		k.problem = "its answer is not a KubeletConfiguration"
		return
	}
	k.tick, k.report, k.lease = configz.Config.Tick.Duration, configz.Config.Report.Duration, time.Duration(configz.Config.Lease)*time.Second
	if k.tick <= 0 || k.report <= 0 || k.lease <= 0 {
		k.problem = "its answer lacks nodeStatusUpdateFrequency, nodeStatusReportFrequency or nodeLeaseDurationSeconds"
	} else if k.tick < shortestTick {
		k.problem = fmt.Sprintf("its nodeStatusUpdateFrequency of %v is not plausible", k.tick)
	}
}

// checkKubelets judges the settings that the time of a move, the load of the API server, and recovery depend on.
func (h *health) checkKubelets(c Config) []Check {
	if c.Kubelets == nil {
		return nil
	}
	var known []kubelet
	for _, k := range h.kubelets {
		if k.problem == "" {
			known = append(known, k)
		}
	}
	checks := []Check{h.checkKubeletsRead(len(known))}
	if len(known) > 0 {
		checks = append(checks, checkTick(known), checkReport(known), h.checkLeaseDuration(known))
	}
	for i := range checks {
		checks[i].Category = CategoryKubelets
	}
	return checks
}

func (h *health) checkKubeletsRead(known int) Check {
	c := Check{Name: "configuration", Result: OK}
	if u, lacks := h.lacks(diagnosis.Nodes); lacks {
		return c.unreadable(u)
	}
	if !h.kubeletsAllowed {
		c.Result, c.Message, c.Hint = Unknown, "not read: needs the permission to get nodes/proxy", "docs/kubectl-belay.md#permissions"
		return c
	}
	c.Message = fmt.Sprintf("read from %d of %d kubelets", known, len(h.kubelets))
	for _, k := range h.kubelets {
		if k.problem != "" {
			c.Result, c.Hint = Unknown, tickPage
			c.Objects = append(c.Objects, "node "+k.node+": "+k.problem)
		}
	}
	return c
}

// values says on how many nodes a setting has which value, the most frequent first: "10s on 2 nodes, 1s on 1".
func values(kubelets []kubelet, of func(kubelet) time.Duration) string {
	count := map[time.Duration]int{}
	for _, k := range kubelets {
		count[of(k)]++
	}
	sorted := slices.SortedFunc(maps.Keys(count), func(a, b time.Duration) int { return cmp.Or(count[b]-count[a], cmp.Compare(a, b)) })
	var parts []string
	others := len(kubelets)
	for i, v := range sorted {
		if i == objectsShown {
			parts = append(parts, fmt.Sprintf("others on %d", others))
			break
		}
		parts, others = append(parts, fmt.Sprintf("%v on %d", v, count[v])), others-count[v]
	}
	parts[0] += map[bool]string{true: " node", false: " nodes"}[count[sorted[0]] == 1]
	return strings.Join(parts, ", ")
}

// nodesWith names the nodes for which a check has something to say.
func nodesWith(kubelets []kubelet, say func(kubelet) string) (objects []string) {
	for _, k := range kubelets {
		if text := say(k); text != "" {
			objects = append(objects, "node "+k.node+": "+text)
		}
	}
	return objects
}

// checkTick judges how long a move may wait for the list of volumes in use, which a kubelet publishes with its status.
func checkTick(known []kubelet) Check {
	c := Check{Name: "nodeStatusUpdateFrequency", Result: OK}
	c.Message = values(known, func(k kubelet) time.Duration { return k.tick }) + ": a volume that moves waits up to that long for the node that it leaves, and for the one that it comes to"
	c.Objects = nodesWith(known, func(k kubelet) string {
		if k.tick <= defaultTick {
			return ""
		}
		return k.tick.String()
	})
	if len(c.Objects) > 0 {
		c.Result, c.Hint = Warning, tickPage
		c.Message += fmt.Sprintf("; the default is %v", defaultTick)
	}
	return c
}

// oftenReported is how long a kubelet should at least wait until it sends a status that has not changed: a fifth of the default. Nothing needs
// such a status sooner, because the lease of the node is its heartbeat.
const oftenReported = time.Minute

// checkReport finds kubelets that send much without need. The setting follows nodeStatusUpdateFrequency if only that is set, and is five
// minutes otherwise (k/k v1.36.3 pkg/kubelet/apis/config/v1beta1/defaults.go); a status that has changed is sent with the next tick anyway
// (pkg/kubelet/kubelet_node_status.go: tryUpdateNodeStatus).
func checkReport(known []kubelet) Check {
	c := Check{Name: "nodeStatusReportFrequency", Result: OK, Message: values(known, func(k kubelet) time.Duration { return k.report })}
	rate := 0.0
	c.Objects = nodesWith(known, func(k kubelet) string {
		period := math.Ceil(k.report.Seconds()/k.tick.Seconds()) * k.tick.Seconds() // it is sent with a tick
		if period >= oftenReported.Seconds() {
			return ""
		}
		rate += 1 / period
		return fmt.Sprintf("%v, nodeStatusUpdateFrequency %v", k.report, k.tick)
	})
	if len(c.Objects) > 0 {
		c.Result, c.Hint = Warning, tickPage
		c.Message += fmt.Sprintf("; kubelets that send a status more than once a minute although nothing has changed: %d, "+
			"with about %s requests a second in all. Where only nodeStatusUpdateFrequency is set, nodeStatusReportFrequency follows it: set it to 5m", len(c.Objects), number(rate))
	}
	return c
}

// number writes a number for people: three digits, and whole above ten.
func number(n float64) string {
	if n >= 10 {
		return fmt.Sprintf("%.0f", n)
	}
	return fmt.Sprintf("%.3g", n)
}

// checkLeaseDuration compares the node leases with what recovery's profile assumes.
func (h *health) checkLeaseDuration(known []kubelet) Check {
	c := Check{Name: "nodeLeaseDurationSeconds", Result: OK, Message: values(known, func(k kubelet) time.Duration { return k.lease })}
	profile, runs := h.recoveryProfile()
	if !runs {
		c.Message += fmt.Sprintf("; recovery's profile %s assumes at most %v, %s at most %v", fencing.Default.Name, fencing.Default.LeaseDuration, fencing.Fast.Name, fencing.Fast.LeaseDuration)
		if !h.read[ownNamespace] {
			c.Result = Unknown
			c.Message += "; whether recovery runs is unknown: the pods of namespace " + ownNamespace + " were not read"
		}
		return c
	}
	c.Message += fmt.Sprintf("; recovery runs with the profile %s", profile.Name)
	c.Objects = nodesWith(known, func(k kubelet) string {
		hangs := min(k.tick, k.lease)
		switch limit := profile.Limit(k.lease); {
		case limit > profile.Silence:
			return fmt.Sprintf("its lease lasts %v: it is suspected after %v of silence, not after %v", k.lease, limit, profile.Silence)
		case hangs > profile.RequestTimeout:
			return fmt.Sprintf("a connection that hangs delays a renewal by up to %v (nodeStatusUpdateFrequency %v), and the profile allows for %v: it may be suspected while it runs", hangs, k.tick, profile.RequestTimeout)
		}
		return ""
	})
	if len(c.Objects) > 0 {
		c.Result, c.Hint = Warning, profilesPage
		c.Message += fmt.Sprintf(", whose assumptions these do not meet: %d", len(c.Objects))
	}
	return c
}

// recoveryProfile is that of the detector whose pod was found: the other roles have the flag too, and make no use of it to suspect a node.
func (h *health) recoveryProfile() (fencing.Profile, bool) {
	for _, p := range h.programs {
		words := slices.Concat(p.container.Command, p.container.Args)
		names := func(flag, word string) bool {
			return slices.ContainsFunc(flagValues(words, flag), func(v string) bool { return slices.Contains(strings.Split(v, ","), word) })
		}
		detects := names("controllers", "recovery") && (len(flagValues(words, "recovery-roles")) == 0 || names("recovery-roles", "detector"))
		if p.name != kube.FieldManager || !detects {
			continue
		}
		if names("recovery-profile", fencing.Fast.Name) {
			return fencing.Fast, true
		}
		return fencing.Default, true
	}
	return fencing.Profile{}, false
}
