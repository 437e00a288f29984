package attacher

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/csi"
)

// pendingSecrets holds the secrets that were read before an attachment got its finalizer for the
// call that comes next, which would read them again. They are never logged or stored.
type pendingSecrets struct {
	mu    sync.Mutex
	byKey map[pendingKey]csi.Secrets
}

// pendingKey is which Secret was read for which attachment.
type pendingKey struct {
	uid types.UID
	ref corev1.SecretReference
}

// pendingLife is how long secrets are held: a call that has to wait for longer reads them again.
const pendingLife = 10 * time.Second

// keep holds secrets until they are taken, or their time is over.
func (p *pendingSecrets) keep(uid types.UID, ref *corev1.SecretReference, secrets csi.Secrets) {
	if ref == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byKey == nil {
		p.byKey = map[pendingKey]csi.Secrets{}
	}
	p.byKey[pendingKey{uid, *ref}] = secrets
	time.AfterFunc(pendingLife, func() { p.take(uid, ref) })
}

// take gives the secrets to one call.
func (p *pendingSecrets) take(uid types.UID, ref *corev1.SecretReference) (csi.Secrets, bool) {
	if ref == nil {
		return nil, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	secrets, ok := p.byKey[pendingKey{uid, *ref}]
	delete(p.byKey, pendingKey{uid, *ref})
	return secrets, ok
}
