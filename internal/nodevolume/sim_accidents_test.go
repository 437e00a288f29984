package nodevolume

import "belay.dev/belay/internal/testing/excuse"

// What befalls a node in the simulation besides kills.

// accident is one that the agent has no part in.
func (w *simWorld) accident() {
	switch n := w.rng.IntN(8); {
	case n == 0:
		w.reboot()
	case n < 3:
		w.reattach()
	case n < 5 && !w.inline && w.labels == nil:
		w.changeCSIDriver()
	default:
		w.registered = !w.registered
		w.agent.stages = Unknown
		w.log("the driver is there: %v", w.registered)
	}
}

// excuse notes that something is permitted, or not done, that docs/not-guaranteed.md lists as not guaranteed.
func (w *simWorld) excuse(name excuse.Name) bool {
	w.excused[name]++
	return true
}

func (w *simWorld) changeCSIDriver() {
	w.attaches = !w.attaches
	w.log("the CSIDriver says that volumes are attached: %v", w.attaches)
}

// reattach deletes the attachment, normally or by force, and creates another one. The change cannot be noticed between a read of it
// and the call that follows.
func (w *simWorld) reattach() {
	if w.vaUID == 0 || w.justRead && w.excuse(excuse.UnseenReattach) {
		return
	}
	w.nextUID++
	w.vaUID = w.nextUID
	w.log("attached again as %d", w.vaUID)
}

// meanwhile is what others do while the driver is at work.
func (w *simWorld) meanwhile() {
	w.justRead = false
	if w.settling {
		return
	}
	if w.rng.IntN(16) == 0 {
		w.owner()
	}
	w.others()
}

// others is what those do who do not see pods.
func (w *simWorld) others() {
	for range w.rng.IntN(4) {
		switch n := w.rng.IntN(16); {
		case n == 0:
			w.reattach()
		case n < 5:
			w.controller()
		case n < 8:
			w.see()
		}
	}
}

// reboot ends everything on the node but its disk.
func (w *simWorld) reboot() {
	w.log("reboot")
	w.boot++
	w.staged, w.begun = false, nil
	clear(w.lingering)
	clear(w.running)
	clear(w.started)
	clear(w.published)
	w.tear()
	w.start()
}

// containersEnd ends those that outlived their pods.
func (w *simWorld) containersEnd() {
	if w.hasUsers() {
		w.log("the containers of %v end", w.lingering)
	}
	clear(w.lingering)
	for uid := range w.running {
		w.ended(uid)
	}
}

// ended: the runtime says that the containers of a pod have ended.
func (w *simWorld) ended(uid string) {
	delete(w.running, uid)
	w.agent.say(uid, PodState{Removed: true})
	w.log("the runtime says that the containers of %s have ended", uid)
}

// runs: the containers of a pod that is there were started on what is published for it.
func (w *simWorld) runs(uid string) bool { return w.started[uid] && w.owned[uid] && w.published[uid] }

func (w *simWorld) hasUsers() bool { return w.lingering["a"] || w.lingering["b"] }

// endCalls has the driver end the calls whose callers have died, or given them up.
func (w *simWorld) endCalls() {
	for _, late := range w.begun {
		w.carryOut(late)
	}
	w.begun = nil
}

// person follows the log's instructions for a record that cannot be read, if no pod recreates it: unmount what is left of it,
// publishes first, remove it and restart the agent.
func (w *simWorld) person() {
	w.endCalls()
	for _, uid := range []string{"a", "b"} {
		if w.unreadable[uid] && (!w.owned[uid] || w.stagedEarlier()) {
			w.log("a person unpublishes for %s", uid)
			delete(w.published, uid)
			delete(w.unreadable, uid)
			delete(w.handshakes, uid)
			w.start()
		}
	}
	if w.unreadable[StageKind] && len(w.owned)+len(w.published)+len(w.records) == 0 {
		w.log("a person unstages")
		w.staged = false
		delete(w.unreadable, StageKind)
		delete(w.handshakes, StageKind)
		w.start()
	}
}
