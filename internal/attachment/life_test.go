package attachment

import (
	"testing"
	"time"

	"belay.dev/belay/internal/fencing"
)

// runs gives a node the knowledge that a boot runs.
func runs(change ...func(*fencing.Boot)) func(*Node) {
	m := machine("a")
	boot := fencing.Boot{Node: "a", NodeUID: m.NodeUID, ID: m.BootID, Machine: m.SystemUUID}
	for _, c := range change {
		c(&boot)
	}
	said := fencing.Decide(t0, fencing.Fence{Phase: fencing.Fencing, Boot: boot}, fencing.Observed{
		Exists: fencing.No,
		Source: fencing.Source{
			Name: "ipmi", SaidOn: boot, Machine: boot.Machine, Status: fencing.Answer{Power: fencing.PowerOn, Asked: t0, Machine: boot.Machine},
		},
	})
	return func(n *Node) { n.Lives = append(n.Lives, said.Life) }
}

// TestNodeStillRuns (S2): a policy that is no evidence does not take a volume from a boot that is known to run. A person's taint does, and
// the step says so. A boot that is unknown changes nothing.
func TestNodeStillRuns(t *testing.T) {
	detach := Policy{OutOfService: true, DeletedNode: DeletedNodeDetach}
	late := t0.Add(6 * time.Minute)
	held := Wait{Node: "a", Attachment: "csi-a", Reason: NodeStillRuns, Detail: "PoweredOn"}
	byTimer := ForceDetach{Node: "a", Attachment: ref("a"), Authority: UnmountTimeout{}}
	byDeletion := ForceDetach{Node: "a", Attachment: ref("a"), Authority: DeletedNode{}}
	byPerson := ForceDetach{Node: "a", Attachment: ref("a"), Authority: OutOfServiceTaint{}}
	warned := byPerson
	warned.Runs = true
	otherBoot := runs(func(b *fencing.Boot) { b.ID = "boot-b" })
	runTimed(t, map[string]timed{
		"the timeout": {
			at: late, policy: sixMinutes, seen: onA(attached("a", waiting), node("a", checked, reported, inUse, unhealthy, runs())),
			steps: []Step{held}, recheck: late.Add(lifeRecheck),
		},
		"the deleted Node": {
			at: late, policy: detach, seen: onA(attached("a", waiting), node("a", inUse, lost, checked, runs())),
			steps: []Step{held}, recheck: late.Add(lifeRecheck),
		},
		"the timeout, and the Node is deleted": {
			at: late, policy: sixMinutes, seen: onA(attached("a", waiting), node("a", inUse, lost, checked, runs())),
			steps: []Step{held}, recheck: late.Add(lifeRecheck),
		},
		"not yet: the wait is for the unmount": {
			at: t0, policy: sixMinutes, seen: onA(attached("a", waiting), node("a", checked, reported, inUse, unhealthy, runs())),
			steps: []Step{Wait{Node: "a", Attachment: "csi-a", Reason: StillInUse}}, recheck: late,
		},
		"the taint of a person": {
			at: t0, policy: sixMinutes, seen: onA(attached("a", waiting), node("a", checked, inUse, outOfService, runs())), steps: []Step{warned},
		},
		"the taint of a person, without a sign of life": {
			at: t0, policy: sixMinutes, seen: onA(attached("a", waiting), node("a", checked, inUse, outOfService)), steps: []Step{byPerson},
		},
		"a proof": {
			at: t0, policy: sixMinutes, seen: onA(attached("a", waiting), node("a", checked, inUse, unhealthy, runs(), proves(t0))),
			steps: []Step{ForceDetach{Node: "a", Attachment: ref("a"), Authority: Fenced{}}},
		},
		"another boot runs": {
			at: late, policy: sixMinutes, seen: onA(attached("a", waiting), node("a", checked, inUse, unhealthy, otherBoot)), steps: []Step{byTimer},
		},
		"unknown": {
			at: late, policy: detach, seen: onA(attached("a", waiting), node("a", inUse, lost, checked)), steps: []Step{byDeletion},
		},
		"the boot was not recorded, and the Node is gone": {
			at: late, policy: detach, seen: onA(attached("a", waiting, byUpstream), node("a", inUse, lost, checked, runs())), steps: []Step{byDeletion},
		},
		"not in use": {
			at: late, policy: sixMinutes, seen: onA(attached("a", waiting), node("a", checked, unhealthy, runs())),
			steps: []Step{Detach{Node: "a", Attachment: ref("a")}},
		},
	})
}

// TestUpperCaseUUID: kubelets of some platforms write the system UUID in upper case; evidence has it in lower case.
func TestUpperCaseUUID(t *testing.T) {
	a := attached("a")
	a.Machine.SystemUUID = "HW-A"
	if boot := (Node{}).bootOf(&a); boot.Machine != "hw-a" {
		t.Errorf("the boot is of machine %q", boot.Machine)
	}
}
