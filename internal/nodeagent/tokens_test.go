package nodeagent

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/testing/csidriver"
)

// robot is the service account of the pods whose driver asks for tokens.
const robot = "robot"

// podOfRobot is a pod that runs under the service account.
func (w *world) podOfRobot(name string, claims ...string) *corev1.Pod {
	w.Helper()
	return w.podOfRobotWith(name, func(*corev1.Pod) {}, claims...)
}

func (w *world) podOfRobotWith(name string, change func(*corev1.Pod), claims ...string) *corev1.Pod {
	w.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: robot}}
	_, err := w.admin.CoreV1().ServiceAccounts(w.name).Create(w.ctx, account, metav1.CreateOptions{})
	must(w, err)
	return w.podWith(name, func(p *corev1.Pod) {
		p.Spec.ServiceAccountName = robot
		change(p)
	}, claims...)
}

func asksForTokens(requests ...storagev1.TokenRequest) func(*storagev1.CSIDriver) {
	return func(d *storagev1.CSIDriver) { d.Spec.TokenRequests = requests }
}

// tokensIn are those that a publish was given in its volume context or its secrets.
func tokensIn(tb testing.TB, where map[string]string) map[string]authenticationv1.TokenRequestStatus {
	tb.Helper()
	raw, ok := where["csi.storage.k8s.io/serviceAccount.tokens"]
	if !ok {
		return nil
	}
	var tokens map[string]authenticationv1.TokenRequestStatus
	must(tb, json.Unmarshal([]byte(raw), &tokens))
	return tokens
}

// TestPodServiceAccountTokenAttrs has the cases of upstream's tests of this name and of
// csi_service_account_token, with tokens that a real API server made.
func TestPodServiceAccountTokenAttrs(t *testing.T) {
	tenMinutes := int64(600)
	tests := map[string]struct {
		options   []func(*storagev1.CSIDriver)
		audiences []string
		inSecrets bool
	}{
		"no CSIDriver":             {},
		"driver asks for none":     {options: []func(*storagev1.CSIDriver){asksForTokens()}},
		"empty audience":           {options: []func(*storagev1.CSIDriver){asksForTokens(storagev1.TokenRequest{})}, audiences: []string{""}},
		"one audience, 10 minutes": {options: []func(*storagev1.CSIDriver){asksForTokens(storagev1.TokenRequest{Audience: "gcp", ExpirationSeconds: &tenMinutes})}, audiences: []string{"gcp"}},
		"two audiences":            {options: []func(*storagev1.CSIDriver){asksForTokens(storagev1.TokenRequest{Audience: "gcp"}, storagev1.TokenRequest{Audience: "vault"})}, audiences: []string{"gcp", "vault"}},
		"in secrets": {options: []func(*storagev1.CSIDriver){asksForTokens(storagev1.TokenRequest{Audience: "gcp"}), func(d *storagev1.CSIDriver) {
			d.Spec.ServiceAccountTokenInSecrets = new(true)
		}}, audiences: []string{"gcp"}, inSecrets: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, test.options...)
			handle := w.volume("data")
			agent, _ := w.agent()
			pod := w.podOfRobot("p", "data")
			w.bringUp(agent, pod, handle)
			published, staged := csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver), csidriver.LastRequest[*csispec.NodeStageVolumeRequest](w.driver)
			with, without := published.VolumeContext, published.Secrets
			if test.inSecrets {
				with, without = without, with
			}
			tokens := tokensIn(t, with)
			if len(tokens) != len(test.audiences) {
				t.Errorf("tokens for %d audiences, want %q", len(tokens), test.audiences)
			}
			for _, audience := range test.audiences {
				w.wantToken(tokens[audience], audience, pod)
			}
			for where, text := range map[string]map[string]string{"other part of the publish": without, "stage's context": staged.VolumeContext, "stage's secrets": staged.Secrets} {
				if _, has := text["csi.storage.k8s.io/serviceAccount.tokens"]; has {
					t.Errorf("tokens in the %s", where)
				}
			}
			if published.VolumeContext["pool"] != "fast" {
				t.Errorf("the volume's own attributes are lost: %v", published.VolumeContext)
			}
		})
	}
}

// wantToken asks the API server whose token it is.
func (w *world) wantToken(token authenticationv1.TokenRequestStatus, audience string, pod *corev1.Pod) {
	w.Helper()
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token.Token}}
	if audience != "" {
		review.Spec.Audiences = []string{audience}
	}
	review, err := w.admin.AuthenticationV1().TokenReviews().Create(w.ctx, review, metav1.CreateOptions{})
	must(w, err)
	got, want := review.Status, "system:serviceaccount:"+w.name+":"+robot
	if !got.Authenticated || got.User.Username != want {
		w.Errorf("the token for audience %q is %q's (authenticated: %v, %s), want %q", audience, got.User.Username, got.Authenticated, got.Error, want)
	}
	if diff := cmp.Diff(authenticationv1.ExtraValue{string(pod.UID)}, got.User.Extra["authentication.kubernetes.io/pod-uid"]); diff != "" {
		w.Errorf("pod that the token is bound to (-want +got):\n%s", diff)
	}
	if left := time.Until(token.ExpirationTimestamp.Time); left < time.Minute {
		w.Errorf("the token expires in %s", left)
	}
}

func TestBlockVolumeGetsNoTokens(t *testing.T) {
	w := newWorld(t, noAttach, asksForTokens(storagev1.TokenRequest{}))
	w.volume("disk", func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) })
	agent, _ := w.agent()
	pod := w.podWith("p", func(p *corev1.Pod) {
		p.Spec.Containers[0].VolumeMounts = nil
		p.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "disk", DevicePath: "/dev/xvda"}}
	}, "disk")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	if got := tokensIn(t, csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver).VolumeContext); got != nil {
		t.Error("a block volume was given tokens")
	}
}

func TestMissingServiceAccountEmitsEvent(t *testing.T) {
	w := newWorld(t, noAttach, asksForTokens(storagev1.TokenRequest{Audience: "vault"}))
	w.volume("data")
	agent, _ := w.agent()
	pod := w.podWith("p", func(p *corev1.Pod) { p.Spec.ServiceAccountName = "nobody" }, "data")
	agent.SetPod(pod)
	w.untilEvent(pod, "FailedMount", "MountVolume.SetUp failed", "request a token of service account "+w.name+"/nobody", `audience "vault"`)
	for _, call := range w.driver.Made() {
		if call == "Publish data" {
			t.Error("published without the tokens")
		}
	}
}

// TestSecretsAreNeitherReportedNorStored has a driver that repeats what it was given.
func TestSecretsAreNeitherReportedNorStored(t *testing.T) {
	if ranAlone(t) {
		return
	}
	w := newWorld(t, asksForTokens(storagev1.TokenRequest{}), func(d *storagev1.CSIDriver) { d.Spec.RequiresRepublish = new(true) })
	const password = "hunter2-and-more"
	_, err := w.admin.CoreV1().Secrets(w.name).Create(w.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "key"}, StringData: map[string]string{"password": password},
	}, metav1.CreateOptions{})
	must(t, err)
	ref := &corev1.SecretReference{Namespace: w.name, Name: "key"}
	handle := w.volume("data", func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.NodeStageSecretRef, pv.Spec.CSI.NodePublishSecretRef = ref, ref
	})
	w.driver.Before = func(method, _ string, attempt int) error {
		switch {
		case method == "Stage" && attempt == 1:
			return status.Errorf(codes.InvalidArgument, "stage with %s fails", csidriver.LastRequest[*csispec.NodeStageVolumeRequest](w.driver).Secrets)
		case method == "Publish" && attempt != 2: // the first one, and those of a pod that runs
			r := csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver)
			return status.Errorf(codes.InvalidArgument, "publish with %s and %s fails", r.Secrets, r.VolumeContext)
		}
		return nil
	}
	log := &lines{}
	logAllRequests(t, log.logger())
	agent, stop := w.agent(func(c *Config) { c.Logger, c.republishPeriod = log.logger(), 10*time.Millisecond })
	pod := w.podOfRobot("p", "data")
	w.bringUp(agent, pod, handle)
	w.untilEvent(pod, "MountVolume.MountDevice failed", "[REDACTED]")
	w.untilEvent(pod, "MountVolume.SetUp failed", "[REDACTED]")
	w.untilEvent(pod, "MountVolume.SetUp failed", "again", "[REDACTED]")
	stop()
	token := tokensIn(t, csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver).VolumeContext)[""].Token
	events, err := w.admin.CoreV1().Events(w.name).List(w.ctx, metav1.ListOptions{})
	must(t, err)
	logged := strings.Join(log.with(""), "\n")
	bodies := undumped(t, logged)
	if !strings.Contains(bodies, w.name+"-data") {
		t.Error("client-go logged no bodies: there was nothing to find")
	}
	places := map[string]string{"the log": logged, "the bodies in the log": bodies, "the events": fmt.Sprint(events.Items)}
	must(t, filepath.WalkDir(w.root, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			var raw []byte
			raw, err = os.ReadFile(path)
			places[path] = string(raw)
		}
		return err
	}))
	if len(places) < 6 {
		t.Errorf("looked at %d places only", len(places))
	}
	for place, text := range places {
		if strings.Contains(text, token) {
			t.Errorf("the token is in %s", place)
		}
		if strings.Contains(text, password) {
			t.Errorf("the password is in %s", place)
		}
	}
}

// ranAlone runs the test in a process of its own, and reports whether it did: false in that process. klog's logger may be set only while
// nothing logs, and client-go does not wait for the requests of an informer that has ended.
func ranAlone(t *testing.T) bool {
	t.Helper()
	const variable = "BELAY_TEST_ALONE"
	if os.Getenv(variable) == t.Name() {
		return false
	}
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v")
	c.Env = append(os.Environ(), variable+"="+t.Name())
	switch out, err := c.CombinedOutput(); {
	case strings.Contains(string(out), "--- SKIP: "+t.Name()):
		t.Skipf("in a process of its own:\n%s", out)
	case err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Errorf("in a process of its own: %v\n%s", err, out)
	}
	return true
}

// logAllRequests has client-go log all that it sends and receives.
func logAllRequests(t *testing.T, logger logr.Logger) {
	t.Helper()
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	must(t, flags.Set("v", "10"))
	klog.SetLogger(logger)
	t.Cleanup(func() {
		klog.ClearLogger()
		must(t, flags.Set("v", "0"))
	})
}

// undumped are the bodies that client-go logged in hexadecimal.
func undumped(t *testing.T, logged string) string {
	t.Helper()
	var text strings.Builder
	for _, line := range regexp.MustCompile(`[0-9a-f]{8}  ([0-9a-f ]{48,50}) \|`).FindAllStringSubmatch(logged, -1) {
		raw, err := hex.DecodeString(strings.ReplaceAll(line[1], " ", ""))
		must(t, err)
		text.Write(raw)
	}
	return text.String()
}

// issuer makes tokens for a tokenCache, each with its number.
type issuer struct {
	made int
	life time.Duration
	err  error
}

func (i *issuer) ask(context.Context, tokenKey) (*authenticationv1.TokenRequest, error) {
	if i.err != nil {
		return nil, i.err
	}
	i.made++
	return &authenticationv1.TokenRequest{
		Spec:   authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(i.life.Seconds()))},
		Status: authenticationv1.TokenRequestStatus{Token: fmt.Sprint("token ", i.made), ExpirationTimestamp: metav1.NewTime(time.Now().Add(i.life))},
	}, nil
}

func newTestCache(i *issuer) *tokenCache {
	return &tokenCache{request: i.ask, log: logr.Discard(), tokens: map[tokenKey]cachedToken{}}
}

// TestTokenIsRenewedBeforeItExpires: after four fifths of its lifetime or after a day, at most 10 s early.
func TestTokenIsRenewedBeforeItExpires(t *testing.T) {
	tests := map[string]struct{ life, kept, renewed time.Duration }{
		"ten minutes": {10 * time.Minute, 7*time.Minute + 49*time.Second, 8*time.Minute + time.Second},
		"an hour":     {time.Hour, 47*time.Minute + 49*time.Second, 48*time.Minute + time.Second},
		"a week":      {7 * 24 * time.Hour, 24*time.Hour - 11*time.Second, 24*time.Hour + time.Second},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &issuer{life: test.life}
				cache, start := newTestCache(api), time.Now()
				for _, step := range []struct {
					at   time.Duration
					want string
				}{{0, "token 1"}, {test.kept, "token 1"}, {test.renewed, "token 2"}, {test.renewed + test.kept, "token 2"}, {2 * test.renewed, "token 3"}} {
					time.Sleep(time.Until(start.Add(step.at)))
					got, err := cache.get(t.Context(), tokenKey{})
					if err != nil || got.Token != step.want {
						t.Errorf("after %s: %q (%v), want %q", step.at, got.Token, err, step.want)
					}
				}
			})
		})
	}
}

func TestTokenThatCannotBeRenewedIsUsedUntilItExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &issuer{life: 10 * time.Minute}
		cache := newTestCache(api)
		first, err := cache.get(t.Context(), tokenKey{})
		must(t, err)
		api.err = errors.New("nobody answers")
		time.Sleep(10 * time.Minute)
		if got, err := cache.get(t.Context(), tokenKey{}); err != nil || got.Token != first.Token {
			t.Errorf("while it is good: %q, %v", got.Token, err)
		}
		time.Sleep(time.Second)
		if got, err := cache.get(t.Context(), tokenKey{}); !errors.Is(err, api.err) || got.Token != "" {
			t.Errorf("after it expired: %q, %v", got.Token, err)
		}
		api.err = nil
		if got, err := cache.get(t.Context(), tokenKey{}); err != nil || got.Token != "token 2" {
			t.Errorf("when the API server answers again: %q, %v", got.Token, err)
		}
	})
}

func TestTokensAreCachedByAudienceAndLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &issuer{life: 10 * time.Minute}
		cache := newTestCache(api)
		keys := []tokenKey{{}, {audience: "vault"}, {audience: "vault", seconds: 700}}
		for range 2 {
			for n, key := range keys {
				if got, err := cache.get(t.Context(), key); err != nil || got.Token != fmt.Sprint("token ", n+1) {
					t.Errorf("%+v: %q, %v", key, got.Token, err)
				}
			}
		}
		// Expired tokens that are not requested any more are dropped when another one is added.
		time.Sleep(11 * time.Minute)
		_, err := cache.get(t.Context(), tokenKey{audience: "new"})
		must(t, err)
		if len(cache.tokens) != 1 {
			t.Errorf("%d tokens are held", len(cache.tokens))
		}
	})
}
