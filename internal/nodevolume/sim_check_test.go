package nodevolume

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"belay.dev/belay/internal/testing/excuse"
)

// What must hold in the simulation, after each step and in the end.

// check is S7, against what is true.
func (w *simWorld) check() error {
	for uid := range w.published {
		if _, recorded := w.records[uid]; !recorded && !w.unreadable[uid] {
			return fmt.Errorf("S7: the volume is published for %s and there is no record of it", uid)
		}
		if w.staged && w.publishedAs[uid] != w.stagedAs {
			return fmt.Errorf("the volume is published for %s with label %q and staged with %q", uid, w.publishedAs[uid], w.stagedAs)
		}
		if other := otherPod(uid); w.published[other] && w.publishedAs[other] != w.publishedAs[uid] {
			return fmt.Errorf("the volume is published with two labels: %v", w.publishedAs)
		}
	}
	switch {
	case w.inline && (w.staged || w.inUse()):
		return fmt.Errorf("an inline volume is staged (%v) or listed in use (%v)", w.staged, w.inUse())
	case w.inline:
		return nil
	case len(w.handshakes) > 0 && !w.inUse():
		return fmt.Errorf("S7: there are records of %v and the Node does not list the volume in use", slices.Collect(maps.Keys(w.handshakes)))
	case w.staged && !w.recordedAtAll(StageKind):
		return fmt.Errorf("S7: the volume is staged and there is no record of it")
	}
	for name := range w.handshakes {
		if w.mountedFor(name) && w.vaUID == 0 {
			return fmt.Errorf("S2: the volume is mounted (%s) and its attachment is gone", name)
		}
	}
	return nil
}

func (w *simWorld) recordedAtAll(name string) bool {
	_, recorded := w.records[name]
	return recorded || w.unreadable[name]
}

// checkEnding: of a pod that is over by its object, and whose containers run, nothing is taken and nothing is mounted for it.
func (w *simWorld) checkEnding(step Step, name string, before Phase) error {
	if stage, ok := step.(StageVolume); ok {
		name = stage.For.PodUID
	}
	_, undo := recordOf(step)
	switch {
	case !w.running[name]:
		return nil
	case !undo:
		return fmt.Errorf("%T for pod %s, which is over", step, name)
	case w.mountedFor(name):
		return fmt.Errorf("%T takes the volume from pod %s (%s), whose containers run", step, name, before)
	default:
		return nil
	}
}

// checkCall is what must hold when the driver is called.
func (w *simWorld) checkCall(step Step) error {
	a := w.agent
	_, isStage := step.(StageVolume)
	_, isPublish := step.(Publish)
	_, isUnstage := step.(Unstage)
	unpublish, isUnpublish := step.(Unpublish)
	first := !w.inline && (isStage || isPublish && !w.stages)
	is, by := strconv.Itoa(w.vaUID), a.life.decidedOn.UID
	attached := (isStage || isPublish) && by != ""
	switch {
	case !w.registered:
		return fmt.Errorf("the driver is called for %T and is not there", step)
	case first && !w.inUse() && a.attaches == No && (!w.attaches || w.excuse(excuse.AttachRequired)):
	case first && !w.inUse():
		return fmt.Errorf("S7: a stage, or a publish without one, begins and the Node does not list the volume in use")
	case isUnstage && len(w.published) > 0:
		return fmt.Errorf("S7: the volume is unstaged and it is published for %v", w.published)
	case w.hasUsers() && isUnstage:
		return fmt.Errorf("the volume is unstaged under the containers of %v", w.lingering)
	case w.hasUsers() && isUnpublish && !w.inline && len(w.handshakes) > 0 && len(w.published) == 1 && w.published[unpublish.Key.PodUID] && !w.staged:
		return fmt.Errorf("the volume is taken from the machine under the containers of %v", w.lingering)
	case attached && by != is:
		return fmt.Errorf("%T for attachment %s, and the volume is attached as %s", step, by, is)
	case attached && isPublish && w.stages && w.staged && w.stagedBy != "" && w.stagedBy != is:
		return fmt.Errorf("%T for attachment %s on the stage of attachment %s", step, is, w.stagedBy)
	}
	return nil
}

// stagedEarlier: the stage belongs to an attachment that is no more.
func (w *simWorld) stagedEarlier() bool {
	by := w.agent.life.stagedAttachment()
	return w.attaches && by != "" && by != strconv.Itoa(w.vaUID)
}

// keeps: the agent found the pod's mount, by an earlier attachment, and cannot know whether the pod runs on it. Until it is removed, it may.
func (w *simWorld) keeps(uid string) bool {
	p := w.agent.life.podVolume(PublishKey{PodUID: uid})
	return w.published[uid] && w.stagedEarlier() && p != nil && p.Inherited && w.excuse(excuse.KeptMount)
}

// settled: what is wanted is published, what is not is gone.
func (w *simWorld) settled() bool {
	waiting := 0
	for uid := range w.owned {
		if w.published[uid] && w.agent.phase(uid) == Confirmed || w.keeps(uid) {
			continue
		}
		if w.leaving[uid] && !w.published[uid] && !w.recordedAtAll(uid) {
			waiting++ // it gets no first mount
			continue
		}
		other := otherPod(uid)
		if (w.agent.phase(other) == Confirmed || w.keeps(other)) && w.stagedEarlier() {
			if !w.published[uid] {
				waiting++ // for the pod that has it by an earlier attachment
			}
			continue
		}
		if w.published[uid] || !w.published[other] || w.publishedAs[other] == w.label(uid) {
			return false
		}
		waiting++ // for the pod that has the volume with another label
	}
	if len(w.published) != len(w.owned)-waiting || len(w.published) > 0 && !w.staged && w.stages && !w.inline {
		return false
	}
	return len(w.owned) > 0 || (!w.staged && !w.inUse() && len(w.records)+len(w.unreadable) == 0)
}

// settle continues without further changes by the owner until everything is settled.
func (w *simWorld) settle() error {
	w.settling = true
	w.containersEnd()
	w.syncPods()
	w.registered = true
	for range 5000 {
		if w.settled() {
			return nil
		}
		var err error
		switch n := w.rng.IntN(5); n {
		case 0:
			w.controller()
		case 1:
			w.write()
			w.syncPods()
		case 2:
			w.see()
		case 3:
			w.person()
		default:
			err = w.turn()
			w.syncPods()
		}
		if err == nil {
			err = w.check()
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("liveness: never settled; owned %v, published %v, staged %v, in use %v, records %v, unreadable %v", w.owned, w.published, w.staged, w.inUse(), w.records, w.unreadable)
}
