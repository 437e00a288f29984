package preflight

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
)

// configOf is what a kubelet answers, with much else.
func configOf(tick, report string, lease int) string {
	return fmt.Sprintf(`{"kubeletconfig":{"kind":"KubeletConfiguration","nodeStatusUpdateFrequency":%q,"nodeStatusReportFrequency":%q,"nodeLeaseDurationSeconds":%d,"maxPods":110}}`, tick, report, lease)
}

// reviewed is a client whose API server says whether its user may get nodes/proxy; with an error it does not say.
func reviewed(allowed bool, failed error, objects ...runtime.Object) Config {
	clients := fake.NewClientset(objects...)
	clients.PrependReactor("create", "selfsubjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
		asked := review.Spec.ResourceAttributes
		review.Status.Allowed = allowed && asked.Resource == "nodes" && asked.Subresource == "proxy" && asked.Verb == "get"
		return true, review, failed
	})
	return Config{Clients: clients}
}

// nodesOf is a snapshot with these nodes, Ready.
func nodesOf(names ...string) *diagnosis.Snapshot {
	s := clusterOf()
	ready := s.Nodes[0]
	s.Nodes = nil
	for _, name := range names {
		n := ready.DeepCopy()
		n.Name = name
		s.Nodes = append(s.Nodes, n)
	}
	return s
}

// kubeletsOf are the checks of a report that belong to the category.
func kubeletsOf(report *ClusterHealth) map[string]Check {
	found := map[string]Check{}
	for _, c := range report.Checks {
		if c.Category == CategoryKubelets {
			found[c.Name] = c
		}
	}
	return found
}

// TestKubeletConfigs asks a server that answers as an API server with kubelets behind it, some of which are hostile.
func TestKubeletConfigs(t *testing.T) {
	var elsewhere atomic.Int32
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(thief.Close)
	stored, err := os.ReadFile(filepath.Join("testdata", "configz.json"))
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]http.HandlerFunc{
		"kubelet": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(stored) },
		"good":    func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, configOf("10s", "5m0s", 40)) },
		"huge": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"x":"`+strings.Repeat("x", 2*kubeletAnswer))
		},
		"huge-fail": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			fmt.Fprint(w, strings.Repeat("x", 2*kubeletAnswer))
		},
		"list":  func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `[]`) },
		"html":  func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>\x1b[31mPWNED</html>") },
		"empty": func(http.ResponseWriter, *http.Request) {},
		"null":  func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"kubeletconfig":null}`) },
		"lacks": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"kubeletconfig":{"nodeStatusUpdateFrequency":"10s"}}`)
		},
		"negative": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, configOf("-10s", "5m", 40)) },
		"words":    func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, configOf("soon", "5m", 40)) },
		"deep":     func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("[", 100_000)) },
		"none":     http.NotFound,
		"refuses": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "Forbidden (user=PWNED)", http.StatusForbidden)
		},
		"broken":   func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "PWNED", http.StatusBadGateway) },
		"moved":    func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, thief.URL, http.StatusFound) },
		"hangs up": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		node := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/api/v1/nodes/"), "/proxy/configz")
		if answer := answers[node]; r.Method == http.MethodGet && answer != nil {
			answer(w, r)
			return
		}
		t.Errorf("unexpected: %s %s", r.Method, r.URL.Path)
	}))
	t.Cleanup(server.Close)
	read, err := NewKubeletReader(&rest.Config{Host: server.URL, BearerToken: "token"})
	if err != nil {
		t.Fatal(err)
	}
	config := reviewed(true, nil)
	config.Kubelets = read
	names := slices.Sorted(maps.Keys(answers))
	report := Health(t.Context(), config, nodesOf(names...), false)
	c := kubeletsOf(&report)["configuration"]
	if c.Result != Unknown || !strings.Contains(c.Message, "read from 2 of 17 kubelets") || c.Hint == "" {
		t.Errorf("%+v", c)
	}
	const not = "its answer is not a KubeletConfiguration"
	want := map[string]string{
		"huge": "its answer is larger than 1024 KiB", "huge-fail": "HTTP status 500", "list": not, "html": not, "empty": not, "null": not, "words": not, "deep": not,
		"lacks": "its answer lacks", "negative": "its answer lacks", "none": "serves no /configz", "refuses": "HTTP status 403", "broken": "HTTP status 502", "moved": "HTTP status 302",
		"hangs up": "could not be asked",
	}
	for _, object := range c.Objects {
		node, text, _ := strings.Cut(strings.TrimPrefix(object, "node "), ": ")
		if want[node] == "" || !strings.Contains(text, want[node]) || len(text) > 300 || strings.Contains(text, "PWNED") || strings.Contains(text, "token") {
			t.Errorf("node %s: %q, want %q", node, text, want[node])
		}
		delete(want, node)
	}
	if len(want) > 0 {
		t.Errorf("nothing about %v", want)
	}
	if elsewhere.Load() > 0 {
		t.Error("a redirection was followed, with the credentials")
	}
	if tick := kubeletsOf(&report)["nodeStatusUpdateFrequency"]; tick.Result != OK || !strings.Contains(tick.Message, "10s on 2 nodes:") {
		t.Errorf("%+v", tick)
	}
	if c := kubeletsOf(&report)["nodeStatusReportFrequency"]; c.Result != Warning || !slices.Equal(c.Objects, []string{"node kubelet: 10s, nodeStatusUpdateFrequency 10s"}) {
		t.Errorf("%+v", c)
	}
	if report.Result != Unknown {
		t.Errorf("the whole is %s", report.Result)
	}
}

// TestKubeletsNeedPermission: without it, or without the nodes, nothing is asked, and the answer is unknown.
func TestKubeletsNeedPermission(t *testing.T) {
	asked := 0
	read := func(_ context.Context, _ string) ([]byte, error) {
		asked++
		return []byte(configOf("10s", "5m", 40)), nil
	}
	config := reviewed(false, nil)
	config.Kubelets = read
	report := Health(t.Context(), config, nodesOf("a", "b"), false)
	c := kubeletsOf(&report)["configuration"]
	if c.Result != Unknown || c.Message != "not read: needs the permission to get nodes/proxy" || c.Hint == "" || asked > 0 || len(kubeletsOf(&report)) != 1 {
		t.Errorf("%+v, asked %d", c, asked)
	}
	unread := func(u diagnosis.Unread) bool { return u.Rule() == "get nodes/proxy" && u.Forbidden }
	if !slices.ContainsFunc(report.Unread, unread) || !slices.Contains(check(t, Report{Checks: report.Checks}, "read").Objects, "get nodes/proxy") {
		t.Errorf("unread: %+v", report.Unread)
	}

	hidden := nodesOf()
	hidden.Whole = slices.DeleteFunc(hidden.Whole, func(r diagnosis.Resource) bool { return r == diagnosis.Nodes })
	hidden.Unread = append(hidden.Unread, diagnosis.Unread{Ref: diagnosis.Ref{Resource: diagnosis.Nodes}, Verb: "list", Forbidden: true, Message: "forbidden"})
	config = reviewed(true, nil)
	config.Kubelets = read
	report = Health(t.Context(), config, hidden, false)
	if c := kubeletsOf(&report)["configuration"]; c.Result != Unknown || !strings.Contains(c.Message, "list nodes") {
		t.Errorf("%+v", c)
	}

	config = reviewed(false, errors.New("no answer"))
	config.Kubelets = read
	report = Health(t.Context(), config, nodesOf("a"), false)
	if c := kubeletsOf(&report)["configuration"]; c.Result != OK || asked != 1 {
		t.Errorf("where the API server does not say: %+v, asked %d", c, asked)
	}
	report = Health(t.Context(), reviewed(true, nil), nodesOf("a"), false)
	if found := kubeletsOf(&report); len(found) > 0 {
		t.Errorf("without being asked for: %+v", found)
	}
}

// TestKubeletSettings judges what kubelets answer.
func TestKubeletSettings(t *testing.T) {
	const tick, report, lease = "nodeStatusUpdateFrequency", "nodeStatusReportFrequency", "nodeLeaseDurationSeconds"
	recovers := func(profile string) []runtime.Object {
		args := []string{"--controllers=recovery"}
		if profile != "" {
			args = append(args, "--recovery-profile="+profile)
		}
		return []runtime.Object{runs("belay-system", "recovery", "belay-controller:v1", args...)}
	}
	for name, tt := range map[string]struct {
		answers []string
		objects []runtime.Object
		check   string
		want    Result
		says    string
		nodes   int
	}{
		"defaults":   {[]string{configOf("10s", "5m0s", 40), configOf("10s", "5m0s", 40)}, nil, tick, OK, "10s on 2 nodes: a volume that moves waits up to that long", 0},
		"two values": {[]string{configOf("1s", "5m0s", 40), configOf("10s", "5m0s", 40), configOf("10s", "5m0s", 40)}, nil, tick, OK, "10s on 2 nodes, 1s on 1", 0},
		"seven values": {
			[]string{configOf("1s", "5m", 40), configOf("2s", "5m", 40), configOf("3s", "5m", 40), configOf("4s", "5m", 40), configOf("5s", "5m", 40), configOf("6s", "5m", 40), configOf("7s", "5m", 40)},
			nil, tick, OK, "1s on 1 node, 2s on 1, 3s on 1, 4s on 1, 5s on 1, others on 2: a volume", 0,
		},
		"a slow tick":          {[]string{configOf("1m", "5m0s", 40), configOf("10s", "5m0s", 40)}, nil, tick, Warning, "the default is 10s", 1},
		"it does not follow":   {[]string{configOf("1s", "5m0s", 40)}, nil, report, OK, "5m0s on 1 node", 0},
		"it follows":           {[]string{configOf("1s", "1s", 40), configOf("4s", "4s", 40), configOf("10s", "5m0s", 40)}, nil, report, Warning, "more than once a minute although nothing has changed: 2, with about 1.25 requests a second in all", 2},
		"it almost follows":    {[]string{configOf("1s", "2s", 40), configOf("1s", "2s", 40)}, nil, report, Warning, "nothing has changed: 2, with about 1 requests a second in all", 2},
		"a tick of a minute":   {[]string{configOf("1m", "1m", 40)}, nil, report, OK, "1m0s on 1 node", 0},
		"once a minute":        {[]string{configOf("10s", "51s", 40)}, nil, report, OK, "51s on 1 node", 0},
		"shorter than a tick":  {[]string{configOf("10s", "1s", 40)}, nil, report, Warning, "with about 0.1 requests a second", 1},
		"no recovery":          {[]string{configOf("10s", "5m0s", 60)}, nil, lease, OK, "1m0s on 1 node; recovery's profile default assumes at most 40s, fast at most 10s", 0},
		"as default assumes":   {[]string{configOf("10s", "5m0s", 40)}, recovers(""), lease, OK, "with the profile default", 0},
		"longer than that":     {[]string{configOf("10s", "5m0s", 40), configOf("10s", "5m0s", 60)}, recovers("default"), lease, Warning, "do not meet: 1", 1},
		"a request that hangs": {[]string{configOf("20s", "5m0s", 40)}, recovers("default"), lease, Warning, "do not meet: 1", 1},
		"as fast assumes":      {[]string{configOf("1s", "5m0s", 10)}, recovers("fast"), lease, OK, "with the profile fast", 0},
		"defaults with fast":   {[]string{configOf("10s", "5m0s", 40)}, recovers("fast"), lease, Warning, "do not meet: 1", 1},
		"fast, slow tick":      {[]string{configOf("10s", "5m0s", 10)}, recovers("fast"), lease, Warning, "do not meet: 1", 1},
		"belay-controller":     {[]string{configOf("10s", "5m0s", 60)}, []runtime.Object{runs("belay-system", "c", "belay-controller:v1")}, lease, OK, "profile default assumes", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := nodesOf()
			answers := map[string]string{}
			for i, answer := range tt.answers {
				node := fmt.Sprintf("n%d", i)
				answers[node] = answer
				s.Nodes = append(s.Nodes, nodesOf(node).Nodes...)
			}
			agent := nodesOf("agent").Nodes[0]
			agent.Annotations[kube.VolumesRootAnnotation] = "boot /root"
			s.Nodes = append(s.Nodes, agent)
			config := reviewed(true, nil, tt.objects...)
			config.Kubelets = func(_ context.Context, node string) ([]byte, error) {
				if answers[node] == "" {
					t.Errorf("node %s was asked", node)
				}
				return []byte(answers[node]), nil
			}
			health := Health(t.Context(), config, s, false)
			c := kubeletsOf(&health)[tt.check]
			if c.Result != tt.want || !strings.Contains(c.Message, tt.says) || len(c.Objects) != tt.nodes || (c.Hint != "") != (tt.want != OK) {
				t.Errorf("%+v; want %s with %q and %d nodes", c, tt.want, tt.says, tt.nodes)
			}
			if read := kubeletsOf(&health)["configuration"]; read.Result != OK || read.Message != fmt.Sprintf("read from %d of %d kubelets", len(answers), len(answers)) {
				t.Errorf("%+v", read)
			}
		})
	}
}

// TestKubeletsThatDoNotAnswer take five seconds each, few at a time, and a minute in all; a node that is not Ready is not asked.
func TestKubeletsThatDoNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The first end after 5 s, 15 times as many after 3.5 s each, the next are cut off at 60 s, and the last ones are not asked.
		var names []string
		for i := range 1 + 17*kubeletsAtOnce + 3 {
			names = append(names, fmt.Sprintf("n%03d", i))
		}
		s := nodesOf(names...)
		s.Nodes[0].Status.Conditions[0].Status = corev1.ConditionUnknown
		var mu sync.Mutex
		var now, most, asked int
		config := reviewed(true, nil)
		config.Kubelets = func(ctx context.Context, node string) ([]byte, error) {
			mu.Lock()
			now, asked = now+1, asked+1
			most = max(most, now)
			patient, cancel := context.WithTimeout(ctx, 3500*time.Millisecond)
			if asked <= kubeletsAtOnce {
				patient = ctx
			}
			mu.Unlock()
			<-patient.Done()
			cancel()
			mu.Lock()
			now--
			mu.Unlock()
			return nil, errors.New("slow")
		}
		began := time.Now()
		report := Health(t.Context(), config, s, false)
		c := kubeletsOf(&report)["configuration"]
		if took := time.Since(began); took != allKubelets || most != kubeletsAtOnce || asked != 17*kubeletsAtOnce {
			t.Errorf("took %v, %d at once, %d asked", took, most, asked)
		}
		count := map[string]int{}
		for _, object := range c.Objects {
			_, text, _ := strings.Cut(object, ": ")
			count[text]++
		}
		want := map[string]int{
			"not asked: the node is not Ready": 1, "did not answer within 5s": kubeletsAtOnce, "could not be asked: slow": 15 * kubeletsAtOnce,
			"did not answer before all kubelets together took longer than 1m0s": kubeletsAtOnce, "not asked: all kubelets together took longer than 1m0s": 3,
		}
		if !maps.Equal(count, want) || c.Result != Unknown || !strings.Contains(c.Message, fmt.Sprintf("read from 0 of %d kubelets", len(names))) {
			t.Errorf("%s: %s: %v, want %v", c.Result, c.Message, count, want)
		}
	})
}

// TestRequestsOfManyKubelets: a number of requests is written as a person reads it.
func TestRequestsOfManyKubelets(t *testing.T) {
	var names []string
	for i := range 5000 {
		names = append(names, fmt.Sprintf("n%04d", i))
	}
	config := reviewed(true, nil)
	config.Kubelets = func(context.Context, string) ([]byte, error) { return []byte(configOf("4s", "4s", 40)), nil }
	health := Health(t.Context(), config, nodesOf(names...), false)
	if c := kubeletsOf(&health)["nodeStatusReportFrequency"]; !strings.Contains(c.Message, "about 1250 requests a second") {
		t.Errorf("%s", c.Message)
	}
}

// TestImplausibleTick: one node does not make up the requests of all.
func TestImplausibleTick(t *testing.T) {
	config := reviewed(true, nil)
	config.Kubelets = func(_ context.Context, node string) ([]byte, error) {
		if node == "hostile" {
			return []byte(configOf("1ns", "1ns", 40)), nil
		}
		return []byte(configOf("10s", "5m", 40)), nil
	}
	health := Health(t.Context(), config, nodesOf("hostile", "a"), false)
	if c := kubeletsOf(&health)["nodeStatusReportFrequency"]; c.Result != OK || c.Message != "5m0s on 1 node" {
		t.Errorf("%s: %s", c.Result, c.Message)
	}
	c := kubeletsOf(&health)["configuration"]
	if c.Result != Unknown || !slices.Equal(c.Objects, []string{"node hostile: its nodeStatusUpdateFrequency of 1ns is not plausible"}) {
		t.Errorf("%+v", c)
	}
}

// TestProfileOfAnotherRole: the detector's profile counts; the actor's and the fencer's say nothing of when a node is suspected.
func TestProfileOfAnotherRole(t *testing.T) {
	objects := []runtime.Object{
		runs("belay-system", "a-actor", "belay-controller:v1", "--controllers=attachdetach,recovery", "--recovery-roles=actor"),
		runs("belay-system", "detector", "belay-controller:v1", "--controllers=recovery", "--recovery-roles=detector", "--recovery-profile=fast"),
	}
	config := reviewed(true, nil, objects...)
	config.Kubelets = func(context.Context, string) ([]byte, error) { return []byte(configOf("10s", "5m", 40)), nil }
	health := Health(t.Context(), config, nodesOf("a"), false)
	if c := kubeletsOf(&health)["nodeLeaseDurationSeconds"]; c.Result != Warning || !strings.Contains(c.Message, "profile fast") {
		t.Errorf("%s: %s; the detector runs with fast", c.Result, c.Message)
	}
}

// TestLeasesBesidePodsThatWereNotRead: whether a detector runs is unknown then, and with it what the leases have to be.
func TestLeasesBesidePodsThatWereNotRead(t *testing.T) {
	config := reviewed(true, nil)
	config.Kubelets = func(context.Context, string) ([]byte, error) { return []byte(configOf("10s", "5m", 60)), nil }
	config.Clients.(*fake.Clientset).PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", nil)
	})
	health := Health(t.Context(), config, nodesOf("a"), false)
	if c := kubeletsOf(&health)["nodeLeaseDurationSeconds"]; c.Result != Unknown || !strings.Contains(c.Message, "the pods of namespace belay-system were not read") {
		t.Errorf("%s: %s", c.Result, c.Message)
	}
}
