package nodeagent

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/nodeagent/worker"
)

// Like kubelet's token manager, renew a token after four fifths of its lifetime or a day, less a random jitter.
const (
	tokenMaxAge    = 24 * time.Hour
	tokenMaxJitter = 10 * time.Second
)

// tokenKey identifies a token of a pod's service account.
type tokenKey struct {
	audience string // "": the API server's own
	seconds  int64  // 0: the API server's default
}

func keyOf(request storagev1.TokenRequest) tokenKey {
	key := tokenKey{audience: request.Audience}
	if request.ExpirationSeconds != nil {
		key.seconds = *request.ExpirationSeconds
	}
	return key
}

// cachedToken is a token and when to renew it.
type cachedToken struct {
	status  authenticationv1.TokenRequestStatus
	renewAt time.Time
}

// tokenCache caches the tokens of one pod's service account, bound to the pod.
type tokenCache struct {
	request func(context.Context, tokenKey) (*authenticationv1.TokenRequest, error)
	log     logr.Logger

	mu     sync.Mutex
	tokens map[tokenKey]cachedToken // under mu
}

// get returns a valid token, renewed if due. If the request fails, it returns the previous token until that expires.
func (c *tokenCache) get(ctx context.Context, key tokenKey) (authenticationv1.TokenRequestStatus, error) {
	c.mu.Lock()
	held, known := c.tokens[key]
	c.mu.Unlock()
	if known && !time.Now().After(held.renewAt) {
		return held.status, nil
	}
	reply, err := c.request(ctx, key)
	now := time.Now()
	switch {
	case err == nil:
	case known && !held.expired(now):
		c.log.Error(err, "Failed to renew service account token, using the previous one",
			"audience", key.audience, "expiresAt", held.status.ExpirationTimestamp.Time)
		return held.status, nil
	default:
		return authenticationv1.TokenRequestStatus{}, err
	}
	jitter := time.Duration(rand.Float64() * float64(tokenMaxJitter)) //nolint:gosec // spreads the requests
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.tokens, func(_ tokenKey, t cachedToken) bool { return t.expired(now) }) // the CSIDriver may have changed
	c.tokens[key] = cachedToken{status: reply.Status, renewAt: renewAt(reply, now).Add(-jitter)}
	return reply.Status, nil
}

func (t cachedToken) expired(now time.Time) bool { return now.After(t.status.ExpirationTimestamp.Time) }

// renewAt returns the latest time to renew a token that was received now.
func renewAt(reply *authenticationv1.TokenRequest, now time.Time) time.Time {
	expires := reply.Status.ExpirationTimestamp.Time
	lifetime := expires.Sub(now)
	if granted := reply.Spec.ExpirationSeconds; granted != nil {
		lifetime = time.Duration(*granted) * time.Second
	}
	return expires.Add(-max(lifetime/5, lifetime-tokenMaxAge))
}

// tokensOf returns the token cache of a pod. It is dropped with the pod.
func (m *podManager) tokensOf(pod podIdentity) *tokenCache {
	m.mu.Lock()
	defer m.mu.Unlock()
	owner := m.known[pod.UID]
	if owner != nil && owner.tokens != nil {
		return owner.tokens
	}
	cache := &tokenCache{
		log: m.log.WithValues("pod", klog.KRef(pod.Namespace, pod.Name), "podUID", pod.UID, "serviceAccount", pod.ServiceAccount), tokens: map[tokenKey]cachedToken{},
		request: func(ctx context.Context, key tokenKey) (*authenticationv1.TokenRequest, error) {
			return m.requestToken(ctx, pod, key)
		},
	}
	if owner != nil {
		owner.tokens = cache
	}
	return cache
}

// requestToken requests a token that is bound to the pod.
func (m *podManager) requestToken(ctx context.Context, pod podIdentity, key tokenKey) (*authenticationv1.TokenRequest, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences:      []string{},
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if key.audience != "" {
		request.Spec.Audiences = []string{key.audience}
	}
	if key.seconds != 0 {
		request.Spec.ExpirationSeconds = &key.seconds
	}
	ctx, cancel := context.WithTimeout(withoutLogging(ctx), worker.APITimeout)
	defer cancel()
	reply, err := m.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.ServiceAccount, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("request a token of service account %s/%s for audience %q: %w", pod.Namespace, pod.ServiceAccount, key.audience, err)
	}
	return reply, nil
}

// withoutLogging keeps requests and responses out of client-go's log, which prints whole bodies at high verbosity.
func withoutLogging(ctx context.Context) context.Context { return klog.NewContext(ctx, logr.Discard()) }
