package attacher

import (
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/publication"
)

// secretFor returns the Secret for a call. The one that is recorded on the attachment stays with the volume from its attach to its detach, and a
// person may name another one there: an unpublish whose Secret is gone would never end. Until the volume is attached, the
// PersistentVolume's is used, and recorded first.
func (s *subject) secretFor(verb publication.Verb) *corev1.SecretReference {
	if s.attachment != nil && (verb == publication.Unpublish || s.seen.Attached) {
		if recorded := recordedSecret(s.attachment); recorded != nil {
			return recorded
		}
	}
	return s.source.secret
}

// unrecorded reports whether the volume or the Secret of the next publish is not recorded on the attachment.
func (s *subject) unrecorded() bool {
	return s.sourceErr == nil && s.source.mustRecord() &&
		(recordedHandle(s.attachment) == "" || !reflect.DeepEqual(recordedSecret(s.attachment), s.secretFor(publication.Publish)))
}

// pendingSecrets keeps the secrets that were read before an attachment got its finalizer, for the call that follows.
// They are never logged or stored.
type pendingSecrets struct {
	mu    sync.Mutex
	byKey map[pendingSecretKey]csi.Secrets
}

// pendingSecretKey identifies a Secret and the attachment that it was read for.
type pendingSecretKey struct {
	uid types.UID
	ref corev1.SecretReference
}

// pendingSecretsTTL bounds how long secrets are kept: a call that starts later reads them again.
const pendingSecretsTTL = 10 * time.Second

// keep stores secrets until they are taken or expire.
func (p *pendingSecrets) keep(uid types.UID, ref *corev1.SecretReference, secrets csi.Secrets) {
	if ref == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byKey == nil {
		p.byKey = map[pendingSecretKey]csi.Secrets{}
	}
	p.byKey[pendingSecretKey{uid, *ref}] = secrets
	time.AfterFunc(pendingSecretsTTL, func() { p.take(uid, ref) })
}

// take removes and returns the secrets for a call.
func (p *pendingSecrets) take(uid types.UID, ref *corev1.SecretReference) (csi.Secrets, bool) {
	if ref == nil {
		return nil, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	secrets, ok := p.byKey[pendingSecretKey{uid, *ref}]
	delete(p.byKey, pendingSecretKey{uid, *ref})
	return secrets, ok
}
