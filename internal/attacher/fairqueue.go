package attacher

import (
	"k8s.io/client-go/util/workqueue"

	"belay.dev/belay/internal/publication"
)

// detachShare: if both kinds wait, one key in four is a detach.
const detachShare = 4

// fairQueue serves keys with something to attach before keys with only detaches, but every fourth key is a detach while
// both wait (external-attacher#761).
type fairQueue struct {
	onlyDetaches  func(publication.Key) bool
	attachQueue   workqueue.Queue[publication.Key]
	detachQueue   workqueue.Queue[publication.Key]
	inDetachQueue map[publication.Key]bool // keys in detachQueue
	movedUp       map[publication.Key]int  // stale entries in detachQueue, by key
	pops          int
}

func newFairQueue(onlyDetaches func(publication.Key) bool) *fairQueue {
	return &fairQueue{
		onlyDetaches:  onlyDetaches,
		attachQueue:   workqueue.DefaultQueue[publication.Key](),
		detachQueue:   workqueue.DefaultQueue[publication.Key](),
		inDetachQueue: map[publication.Key]bool{}, movedUp: map[publication.Key]int{},
	}
}

// Touch implements workqueue.Queue. A key that is added again keeps its place, unless it has something to attach now.
func (f *fairQueue) Touch(key publication.Key) {
	if f.inDetachQueue[key] && !f.onlyDetaches(key) {
		delete(f.inDetachQueue, key)
		f.movedUp[key]++
		f.attachQueue.Push(key)
	}
}

// Push implements workqueue.Queue.
func (f *fairQueue) Push(key publication.Key) {
	if f.onlyDetaches(key) {
		f.inDetachQueue[key] = true
		f.detachQueue.Push(key)
	} else {
		f.attachQueue.Push(key)
	}
}

// Len implements workqueue.Queue.
func (f *fairQueue) Len() int { return f.attachQueue.Len() + len(f.inDetachQueue) }

// Pop implements workqueue.Queue.
func (f *fairQueue) Pop() publication.Key {
	switch {
	case len(f.inDetachQueue) == 0:
		return f.attachQueue.Pop()
	case f.attachQueue.Len() == 0:
		return f.popDetach()
	}
	f.pops++
	if f.pops%detachShare == 0 {
		return f.popDetach()
	}
	return f.attachQueue.Pop()
}

func (f *fairQueue) popDetach() publication.Key {
	for {
		key := f.detachQueue.Pop()
		switch f.movedUp[key] {
		case 0:
			delete(f.inDetachQueue, key)
			return key
		case 1:
			delete(f.movedUp, key)
		default:
			f.movedUp[key]--
		}
	}
}

// onlyDetaches reports whether all attachments of a key are being deleted.
func (a *Attacher) onlyDetaches(key publication.Key) bool {
	attachments := a.attachmentsOf(key)
	for _, va := range attachments {
		if va.DeletionTimestamp == nil {
			return false
		}
	}
	return len(attachments) > 0
}
