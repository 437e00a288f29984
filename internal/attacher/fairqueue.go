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
	behind   map[publication.Key]bool // that wait in second
	moved    map[publication.Key]int  // their places in second that they left
	turn     int
}

func newFair(detaches func(publication.Key) bool) *fair {
	return &fair{
		detaches: detaches,
		first:    workqueue.DefaultQueue[publication.Key](),
		second:   workqueue.DefaultQueue[publication.Key](),
		behind:   map[publication.Key]bool{}, moved: map[publication.Key]int{},
	}
}

// Touch is part of workqueue.Queue: a key that is added again keeps its place, unless an attach waits for it by now.
func (f *fair) Touch(key publication.Key) {
	if f.behind[key] && !f.detaches(key) {
		delete(f.behind, key)
		f.moved[key]++
		f.first.Push(key)
	}
}

// Push is part of workqueue.Queue.
func (f *fair) Push(key publication.Key) {
	if f.detaches(key) {
		f.behind[key] = true
		f.second.Push(key)
	} else {
		f.first.Push(key)
	}
}

// Len is part of workqueue.Queue.
func (f *fair) Len() int { return f.first.Len() + len(f.behind) }

// Pop is part of workqueue.Queue.
func (f *fair) Pop() publication.Key {
	switch {
	case len(f.behind) == 0:
		return f.first.Pop()
	case f.first.Len() == 0:
		return f.popSecond()
	}
	f.turn++
	if f.turn%detachShare == 0 {
		return f.popSecond()
	}
	return f.first.Pop()
}

func (f *fair) popSecond() publication.Key {
	for {
		key := f.second.Pop()
		switch f.moved[key] {
		case 0:
			delete(f.behind, key)
			return key
		case 1:
			delete(f.moved, key)
		default:
			f.moved[key]--
		}
	}
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
