package attachdetach

import "sync"

// unanswered holds the versions of objects that writes of ours were bound to that had no
// answer: each may still be carried out, as long as that version is the newest.
type unanswered[K comparable] struct {
	mu       sync.Mutex
	versions map[K]string
}

func (u *unanswered[K]) add(object K, version string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.versions == nil {
		u.versions = map[K]string{}
	}
	u.versions[object] = version
}

// has tells whether such a write is bound to this, the newest version of the object.
func (u *unanswered[K]) has(object K, version string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	bound, ok := u.versions[object]
	if ok && bound != version {
		delete(u.versions, object)
	}
	return ok && bound == version
}

// forget is called when the object is gone.
func (u *unanswered[K]) forget(object K) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.versions, object)
}
