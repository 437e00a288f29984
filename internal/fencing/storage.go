package fencing

// storeProven proves single volumes of a boot about which no switch and no person says anything (class B), and reports whether that it does
// is stored. The driver was declared to cut the node off before it confirms an unpublish: so a detach of the volume is safe whether the machine
// runs or not. The proof never taints and deletes no pod (hole 10), and covers the volumes that it names and no others (hole 11).
func (d *decider) storeProven() bool {
	cuts := len(d.seen.Cut) > 0 && d.seen.Source.mute(d.fence.Boot) && d.seen.silent(d.fence) && d.sameBoot() && d.seen.Isolated && !d.leftAlone()
	switch {
	case !cuts:
	case !d.seen.live(d.now):
		d.do(ReadNode{})
		d.wait(NotReadLive, 0)
		return false
	case !d.fence.StorageProven:
		d.do(ProveVolumes{Volumes: d.seen.Cut})
		return false
	default:
		d.out.Proof = Proof{boot: d.fence.Boot, class: StorageFenced, volumes: d.seen.Cut, until: d.now.Add(proofFor)}
		d.wait(Settled, proofFor/2)
	}
	return true
}

// silentAgain stores that the node fell silent again, on a reading of its lease that is not older than a second.
func (d *decider) silentAgain() {
	if !d.seen.live(d.now) {
		d.do(ReadNode{})
		d.wait(NotReadLive, 0)
		return
	}
	d.do(SilentAgain{Renewal: d.seen.Renewal})
}

// ended reports whether there is evidence now that the machine is off: nothing is mounted there any more.
func (d *decider) ended() bool {
	return d.seen.Source.off(d.now, d.fence.Boot) || d.spoken() && d.seen.silent(d.fence)
}

// awaitReturn waits for a machine that may have volumes mounted that were taken from it, or for evidence that it is off. It may never come back.
func (d *decider) awaitReturn() {
	if d.seen.Source.answers(d.fence.Boot) {
		d.askEvery(AskDeletedEvery, AwaitingReturn)
	}
	d.out.Reason = AwaitingReturn
}

// sameBoot reports whether the Node object is known to show the boot of the fence.
func (d *decider) sameBoot() bool {
	return d.seen.Exists == Yes && d.fence.Boot.Complete() && d.seen.Now == d.fence.Boot
}

// unmounted reports whether a node may get pods again that was silent, and otherwise what it waits for: it must have unmounted what may have
// been taken from it. If such a volume came back to the same boot, the old mount would write to it what it still holds in memory. For a node
// that falls silent again the fence goes back to where it was: another one might not begin, and nothing else would keep it isolated.
func (d *decider) unmounted() bool {
	alive, settled := d.seen.alive(d.fence), d.seen.AliveSince.Add(SettleFor)
	switch {
	case d.seen.restarted(d.fence), !alive && d.ended():
		return true
	case alive && d.seen.Silent && (d.fence.StorageProven || len(d.seen.Mounted) > 0):
		d.silentAgain()
	case d.fence.StorageProven && !alive:
		d.awaitReturn()
	case d.fence.StorageProven && d.now.Before(settled):
		d.wait(AwaitingUnmount, settled.Sub(d.now))
	case len(d.seen.Mounted) > 0:
		d.wait(AwaitingUnmount, AskEvery)
	default:
		return true
	}
	return false
}
