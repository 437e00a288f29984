package attacher

import (
	"k8s.io/client-go/util/workqueue"

	"belay.dev/belay/internal/publication"
)

// detachShare: where both wait, one key in so many has only something to detach.
const detachShare = 4

// fair is the order in which keys are worked on: those with something to attach
// before those with something to detach, of which every fourth is one where
// both wait (external-attacher#761).
type fair struct {
	detaches func(publication.Key) bool
	first    workqueue.Queue[publication.Key]
	second   workqueue.Queue[publication.Key]
	turn     int
}

func newFair(detaches func(publication.Key) bool) *fair {
	return &fair{
		detaches: detaches,
		first:    workqueue.DefaultQueue[publication.Key](),
		second:   workqueue.DefaultQueue[publication.Key](),
	}
}

// Touch is part of workqueue.Queue: a key that is added again keeps its place.
func (f *fair) Touch(publication.Key) {}

// Push is part of workqueue.Queue.
func (f *fair) Push(key publication.Key) {
	if f.detaches(key) {
		f.second.Push(key)
	} else {
		f.first.Push(key)
	}
}

// Len is part of workqueue.Queue.
func (f *fair) Len() int { return f.first.Len() + f.second.Len() }

// Pop is part of workqueue.Queue.
func (f *fair) Pop() publication.Key {
	switch {
	case f.second.Len() == 0:
		return f.first.Pop()
	case f.first.Len() == 0:
		return f.second.Pop()
	}
	f.turn++
	if f.turn%detachShare == 0 {
		return f.second.Pop()
	}
	return f.first.Pop()
}

// onlyDetaches tells whether nothing of a key is wanted any more.
func (a *Attacher) onlyDetaches(key publication.Key) bool {
	attachments := a.attachmentsOf(key)
	for _, va := range attachments {
		if va.DeletionTimestamp == nil {
			return false
		}
	}
	return len(attachments) > 0
}
