package mutants

import (
	"maps"
	"slices"
	"testing"
)

// hole is a rule of recovery, and the test that fails without it. The numbers are those of ADR 23.
type hole struct {
	number, what string
	file         string
	with         string // the rule, which occurs once in the file
	without      string
	pkg, test    string
}

const (
	cause                           = "internal/fencing/cause.go"
	decide, evidence, boot, suspect = "internal/fencing/decide.go", "internal/fencing/evidence.go", "internal/fencing/boot.go", "internal/fencing/suspect.go"
	life, detectorFile, fencerFile  = "internal/fencing/life.go", "internal/recovery/detector.go", "internal/recovery/fencer.go"
	storage, decideAttach, epoch    = "internal/fencing/storage.go", "internal/attachment/decide.go", "internal/fencing/epoch.go"
	levelsFile, loginsFile          = "internal/recovery/levels.go", "internal/recovery/logins.go"
	record, remediation             = "internal/fencing/record.go", "internal/recovery/remediation.go"
	fenceName, sameName             = "internal/kube/fencename.go", "internal/recovery/samename.go"
	pure, shell                     = "internal/fencing", "internal/recovery"
	groupFile                       = "internal/mount/group.go"
)

var holes = []hole{
	{
		"1", "the second answer Off need not be to a question after the taint", decide,
		"case source.Status.Asked.After(d.seen.TaintSeen):", "case true:", pure, "TestBracket",
	},
	{"1", "On after the taint does not take it back", decide, "d.seen.alive(d.fence) || d.doubted()", "d.seen.alive(d.fence)", pure, "TestBracket"},
	{"1", "a fence's taint forces a detach before the second answer Off", "internal/attachment/policy.go", " && !p.unproven(node)", "", "internal/attachment", "TestFenceTaint"},
	{
		"2", "a taint of a fence counts for any boot", "internal/kube/facts.go",
		`boot != "" && node.Annotations[FencedBootAnnotation] == boot`, "true || boot == \"\"", "internal/kube", "TestOutOfServiceOfAFence",
	},
	{"3", "another machine under the name counts as the same machine", boot, "return OtherMachine", "return Rebooted", pure, "TestReplacedNode"},
	{"3", "a fence of a machine that was replaced waits for nothing", decide, "d.seen.Exists != No && !d.replaced() || d.fence", "d.seen.Exists != No || d.fence", pure, "TestReplacedMachineIsNotKeptFromItsOwnFence"},
	{"3", "a fence whose volumes have moved waits for the machine that replaced its own", decide, "d.seen.Exists == No || d.replaced() || d.seen.Ready", "d.seen.Exists == No || d.seen.Ready", pure, "TestReplacedMachineIsNotKeptFromItsOwnFence"},
	{"3", "what the switch says about the machine before counts for the one that replaced it", detectorFile, "machine := boundSource(source).SaidOn.Machine; machine == n.Boot.Machine {", "machine := n.Boot.Machine; machine == n.Boot.Machine {", shell, "TestPowerOfTheMachineBefore"},
	{"3", "a kubelet that claims the UUID of a machine keeps its fence from its end", "internal/recovery/observe.go", " || fence.Proven() {", " {", shell, "TestClaimedUUIDKeepsNoFence"},
	{"3", "who claims a UUID does not matter before the boot has ended", "internal/recovery/observe.go", " || fence.Proven() {", " || fence.Boot.Complete() {", shell, "TestSharedUUIDProvesNoRestart"},
	{"3", "a machine has no fence while that of an earlier one of its name waits", fenceName, "!FenceFinished(f) && f.Spec.NodeName == shown.Node && !shown.Replaces(FencedBoot(f))", "!FenceFinished(f) && f.Spec.NodeName == shown.Node", shell, "TestReplacedMachineIsProtected"},
	{"3", "a fence that the API server refuses holds back those of other nodes", detectorFile, "if !apierrors.IsInvalid(err) {", "if err != nil || true {", shell, "TestRefusedFenceHoldsBackNoOther"},
	{"3", "two machines of a name share a NodeFence", fenceName, `if place.Name == "" && !taken[name] {`, `if place.Name == "" {`, "internal/kube", "TestPlaceFence"},
	{"3", "a machine counts as silent because an earlier one of its name is fenced", detectorFile, `if (kube.FenceStands(f, shown[name]) || shown[name].Node == "") && !d.lapsed(f) {`, "if true {", shell, "TestReplacedMachineCountsByItsLease"},
	{"3", "a machine has to lose what an earlier one of its name has", "internal/recovery/occupants.go", "return !shown.Replaces(kube.RecordedBoot(&va))", "return true || shown.Complete()", shell, "TestOccupants"},
	{"3", "the switch of a machine that has a fence is asked for no other one", fencerFile, "state.earlier && !f.replaced(ctx, r.Name, open)", "state.earlier", shell, "TestSwitchOfAnEarlierMachine"},
	{"6", "the outlet of a machine that was replaced is switched off for it", sameName, "if replaced || r.Now.Replaces(fenced) {", "if replaced && false {", shell, "TestOutletOfAMachineThatWasReplaced"},
	{"3", "a machine that takes a Node over stays isolated", decide, "case d.seen.Isolated && d.replaced() && !d.fence.StorageProven:", "case false:", pure, "TestMachineThatTakesANodeOver"},
	{"3", "a machine whose volumes were taken finds its Node without the isolation", decide, "d.seen.Isolated && d.replaced() && !d.fence.StorageProven:", "d.seen.Isolated && d.replaced():", pure, "TestMachineThatTakesANodeOver"},
	{"3", "two fences take turns at one Node", decide, "!d.seen.Isolated && !shared", "!d.seen.Isolated && (!shared || true)", pure, "TestTwoFencesTakeNoTurns"},
	{"3", "the pods of a later machine are deleted for an earlier one", decide, " || d.seen.Exists == No && d.seen.Later", "", pure, "TestLaterMachineKeepsItsPods"},
	{"3", "the taint releases the volumes of an earlier machine", decide, "if !d.seen.Earlier || !d.sameMachine() {", "if true {", pure, "TestEarlierMachineKeepsItsVolumes"},
	{"3", "nothing shows that an earlier machine has volumes", sameName, "return va.DeletionTimestamp == nil && kube", "return false && kube", shell, "TestEarlierMachineBesideUpstream"},
	{"3", "a fence that waits for an earlier machine counts among those in flight", record, "f.InFlight() && !f.BesideEarlier", "f.InFlight()", pure, "TestEarlierMachineKeepsItsVolumes"},
	{"3", "a machine that is lost again in its release gets no next fence", decide, " || d.seen.Silent && d.seen.Ready != Yes && source.Status.Asked.After(ended)", "", pure, "TestSilentAgainInRelease"},
	{"3", "what is proven about one machine of a name takes back what is of another", "internal/recovery/proofs.go", "delete(p.proofs, fence)", "clear(p.proofs)", shell, "TestProofsOfTwoMachines"},
	{"4", "an old answer authorizes", evidence, "now.Sub(a.given()) <= FreshFor", "true", pure, "TestOldAnswer"},
	{"4", "what a switch takes to answer makes its answer old", evidence, "return a.Asked.Add(a.took())", "return a.Asked", pure, "TestOldAnswer"},
	{"4", "an answer is young for as long as it says that it took", evidence, "return min(max(a.Took, 0), MaxLevels*LevelWithin)", "return a.Took", pure, "TestOldAnswer"},
	{"4", "a slow answer is not waited for", evidence, "*LevelWithin + answerSlack", "*answerSlack", shell, "TestSlowAnswerIsAwaited"},
	{"4", "a level has no time for what its agent takes", levelsFile, "context.WithTimeout(ctx, fencing.LevelWithin)", "context.WithTimeout(ctx, fencing.LevelWithin/3)", shell, "TestSlowSwitch"},
	{"4", "the feeds of a level are asked one after the other", levelsFile, "group.Go(func() { answers[i] = askSwitch(ctx, s, off, known) })", "answers[i] = askSwitch(ctx, s, off, known)", shell, "TestSlowSwitch"},
	{"4", "a dead level takes the time of the next, again and again", loginsFile, "!s.silent.IsZero() && l.now.Sub(s.silent) < restFor", "false && l.now.Sub(s.silent) < restFor", shell, "TestSlowSwitch"},
	{"4", "an old answer On takes the evidence back", decide, "return source.Status.fresh(d.now) && source.Status.Power == PowerOn", "return source.Status.Power == PowerOn", pure, "TestDoubt"},
	{"4", "an Off is asked for as seldom as what does not change", "internal/fencing/news.go", " && d.seen.Source.Status.Power != PowerOff", "", pure, "TestNewsBringsThePaceBack"},
	{"4", "what changes about a fence is no news", "internal/fencing/news.go", "n.at.IsZero() || is != n.last", "n.at.IsZero()", pure, "TestNewsBringsThePaceBack"},
	{"19", "a fence logs in each second for weeks", "internal/fencing/news.go", "d.now.Sub(d.seen.News) >= NoNewsFor", "false", pure, "TestFenceWithoutNewsAsksSeldom"},
	{"4", "a statement that has expired still counts in Tainting", decide, " || !d.fence.stated(d.now)", "", pure, "TestDoubt"},
	{"4", "a new leader does not listen first", decide, "case !d.seen.silent(d.fence):\n\t\td.wait(SilenceTooShort, AskEvery)\n\tcase !tainted", "case !tainted", pure, "TestNewLeaderListens"},
	{
		"5", "a node is released while a command may still be carried out", decide,
		"case intent.open(d.now):\n\t\td.wait(IntentOpen, intent.NotAfter.Sub(d.now))\n\tcase d.seen.OutOfService", "case intent.Nonce == \"none\":\n\tcase d.seen.OutOfService", pure, "TestLateOff",
	},
	{"5", "a machine that is off already is commanded, because that answer came late", decide, "case source.Status.Power == PowerOff && source.Status.Machine == d.fence.Boot.Machine:", "case false:", pure, "TestLateAnswerOff"},
	{"5", "a node is released before its switch says On", decide, "!d.onAgain():", "source.Name == \"none\":", pure, "TestLateOff"},
	{"4", "another write makes a statement young", "internal/kube/fence.go", "r != nil && f.Spec.Statement != nil && r.Expires.Equal(&f.Spec.Statement.Expires)", "r != nil && false", shell, "TestHostileAnotherFieldDoesNotMakeAStatementYoung"},
	{"4", "a statement counts for more than a day", evidence, "s.Expires.Sub(s.Made) <= StatementFor+statementSlack", "true", pure, "TestStatement"},
	{"5", "a fence ends while a command may still be carried out", decide, "case intent.open(d.now):\n\t\td.wait(IntentOpen, intent.NotAfter.Sub(d.now))\n\tcase source.answers", "case source.answers", pure, "TestHostileDeletedFenceOfALiveNodeEndsWithoutItsSwitch"},
	{"5", "a silent switch isolates a node that lives", decide, "return d.now.Sub(since) >= EnduresFor", "return false", pure, "TestSilentSwitchIsolatesNoLivingNode"},
	{"5", "a node is released at its first sign of life after the command", decide, "return d.now.Sub(since) >= EnduresFor", "return true", pure, "TestSilentSwitchIsolatesNoLivingNode"},
	{"5", "a node that flaps has lived on since its first sign of life", "internal/recovery/observe.go", "again.After(t.mem.alive) && seen.Renewed", "false && again.After(t.mem.alive)", shell, "TestFlappingNodeStaysIsolated"},
	{"5", "a silence that was over before anything looked is none", "internal/fencing/silence.go", "h.alive = now", "_ = h.alive", pure, "TestAliveSince"},
	{"5", "a command that is still open counts as long ago", decide, "since.Before(ended) {", "false && since.Before(ended) {", pure, "TestSilentSwitchIsolatesNoLivingNode"},
	{"5", "a fence ends without the state of the machine after the command", evidence, "s.Status.Power != PowerUnknown && s.Status.Asked.After(after)", "s.Status.Asked.After(after)", pure, "TestLastSignOfLife"},
	{"5", "a live node waits for a switch that is not asked", decide, "case source.answers(d.fence.Boot) && !d.fence.Deleting", "case source.Name != \"\" && !d.fence.Deleting", pure, "TestHostileLiveNodeWaitsForASwitchThatIsNotAsked"},
	{"5", "a node is released after its switch says On, although that is not asked", decide, "source.answers(d.fence.Boot) && !d.onAgain():", "source.Name != \"\" && !d.onAgain():", pure, "TestReleaseWithoutASwitchThatAnswers"},
	{"6", "a switch counts for a boot that is not known in full", evidence, "b.Complete() && s.SaidOn == b", "s.SaidOn == b", pure, "TestWrongMachine"},
	{"6", "a proof counts for a boot that is not known in full", evidence, "!b.Complete() || b != p.boot", "b != p.boot", pure, "TestProof"},
	{"6", "a switch counts whose hardware is another's", evidence, "s.SaidOn == b && s.Machine == b.Machine", "s.SaidOn == b", pure, "TestWrongMachine"},
	{"6", "a switch is taken from the fence of an earlier machine, whatever its hardware says", fencerFile, "if source.Status.Bound == nil {", "if false {", shell, "TestSwitchOfAnEarlierMachine"},
	{"6", "a switch counts that said On under another boot", evidence, "s.SaidOn == b &&", "s.SaidOn.Node != \"\" &&", pure, "TestWrongMachine"},
	{"6", "one outlet counts as two", "internal/recovery/levels.go", "if feed.Plug != \"\" {", "if false {", shell, "TestHostileOneOutletWithAndWithoutItsPort"},
	{"6", "a switch of two nodes counts", evidence, "s.Name != \"\" && !s.Shared", "s.Name != \"\"", pure, "TestWrongMachine"},
	{"6", "a switch is commanded whose cable was swapped", levelsFile, "if !nameless && hardware != o.machine {", "if false {", shell, "TestSwappedSwitch"},
	{"6", "a switch without an identity counts that has not said On while the node lived", levelsFile, "case nameless && !known:", "case false:", shell, "TestUnknownLevel"},
	{"6", "no answer unbinds a level", fencerFile, "if boundSource(source).SaidOn != boot {", "if true {", shell, "TestNoAnswerTakesNothingBack"},
	{"6", "a BMC that is dead unbinds the outlets behind it", fencerFile, "hardware == \"\" && s.SaidOn == boot", "false && s.SaidOn == boot", shell, "TestLevelsCountForThemselves"},
	{"7", "a renewal after Off does not contradict it", "internal/fencing/record.go", "return o.Renewed && o.Exists == Yes", "return false && o.Exists == Yes", pure, "TestFalseOff"},
	{"8", "an answer that contradicts itself later is Off", "internal/fenceagent/agent.go", `exit == exitOff && says(text, "OFF")`, `exit == exitOff && says(a.shown(text), "OFF")`, "internal/fenceagent", "TestHostileLongAnswers"},
	{"8", "exit status 2 alone is Off", "internal/fenceagent/agent.go", `exit == exitOff && says(text, "OFF")`, "exit == exitOff", "internal/fenceagent", "TestStatus"},
	{"8", "the Off of any agent counts", "internal/fenceagent/known.go", "case !read:", "case !read && false:", "internal/fenceagent", "TestOffIsBelieved"},
	{"8", "a person's word makes an agent count that lies", "internal/fenceagent/known.go", `case k.Lies != "":`, `case k.Lies != "" && tested == "":`, "internal/fenceagent", "TestOffIsBelieved"},
	{"8", "what an agent calls Off counts for each version", "internal/fenceagent/known.go", "if version != knownVersion {", "if false {", "internal/fenceagent", "TestOffIsBelieved"},
	{"8", "an option that changes what Off means may be set", "internal/fenceagent/agent.go", "network_fencing|", "", "internal/fenceagent", "TestValuesOfAFenceSource"},
	{"8", "an option of another machine behind the BMC may be set", "internal/fenceagent/agent.go", "|target|", "|", "internal/fenceagent", "TestValuesOfAFenceSource"},
	{"8", "a switch is asked whose Off does not count", "internal/recovery/levels.go", "s, untested = distrusted{err}, fmt", "untested = fmt", shell, "TestUntestedOff"},
	{"19", "a Secret goes to any address", "internal/recovery/binding.go", "case len(missing.Addresses) > 0:", "case false:", shell, "TestSecretGoesOnlyWhereItIsFor"},
	{"19", "a Secret goes over any protocol", "internal/fenceagent/binding.go", "k.plain != nil && !b.Plain", "false", "internal/fenceagent", "TestBinding"},
	{"19", "an option has another argument in it", "internal/fenceagent/known.go", "if !form.MatchString(value) {", "if false {", "internal/fenceagent", "TestValuesOfAFenceSource"},
	{"19", "a password in a template of FAR shows in a FenceSource", "internal/far/far.go", "case hidden.MatchString(option):", "case false:", "internal/far", "TestHostile"},
	{"19", "two nodes share a Secret and have two passwords", "internal/far/secret.go", " && len(lacks) == 0", "", "internal/far", "TestPasswordsShareNoSecret"},
	{"19", "the BMC's password goes where the BMC says", "internal/fenceagent/redfish.go", `to.URL.Scheme != "https" || to.URL.Host != via[0].URL.Host || `, "", "internal/fenceagent", "TestRedfishIdentity"},
	{"6", "one of two systems of a BMC counts as its only one", "internal/fenceagent/redfish.go", "if len(systems.Members) != 1 {", "if len(systems.Members) == 0 {", "internal/fenceagent", "TestRedfishIdentity"},
	{"9", "the pods of a new boot are deleted for the old one", decide, "case d.seen.restarted(d.fence): // its kubelet does the rest", "case false:", pure, "TestRestartedNeverTaints"},
	{"10", "a driver that cuts at unpublish has the node tainted", storage, "d.out.Proof = Proof{boot: d.fence.Boot, class: StorageFenced, volumes: d.seen.Cut, until: d.now.Add(proofFor)}", "d.do(Enter{Phase: Tainting, Evidence: StorageFenced})", pure, "TestStorageFenced"},
	{"10", "the simulation finds no proof about volumes that ends the boot", storage, "class: StorageFenced, volumes: d.seen.Cut", "class: PoweredOff", shell, "TestRecoverySimulation"},
	{"10", "a proof about volumes ends the boot", storage, "class: StorageFenced, volumes: d.seen.Cut", "class: PoweredOff", pure, "TestStorageFenced"},
	{"11", "a proof about a volume holds for others", evidence, "p.class != StorageFenced || slices.Contains(p.volumes, v)", "len(p.volumes) >= 0 || slices.Contains(p.volumes, v)", pure, "TestStorageFenced"},
	{"11", "volumes are proven that are not declared or attached to the boot", "internal/recovery/storage.go", `known && cuts[volume.Driver] && va.Annotations[kube.BootIDAnnotation] == t.fence.Spec.BootID`, "known && cuts != nil", "internal/recovery", "TestStorageEvidence"},
	{"11", "the simulation finds no proof about a volume that holds for others", evidence, "p.class != StorageFenced || slices.Contains(p.volumes, v)", "len(p.volumes) >= 0 || slices.Contains(p.volumes, v)", shell, "TestRecoverySimulation"},
	{"11", "the simulation finds no proof about a driver that is not declared", "internal/recovery/storage.go", "known && cuts[volume.Driver] &&", "known && cuts != nil &&", shell, "TestRecoverySimulation"},
	{"11", "the simulation finds no second writer behind storage that does not cut", "internal/recovery/simplane_test.go", "driverOf(volume) == cutDriver && !p.lies", "p.lies && false", shell, "TestRecoverySimulation"},
	{"11", "volumes are proven although the switch says On", storage, "d.seen.Source.mute(d.fence.Boot) && ", "", pure, "TestStorageFencedNeedsTheRest"},
	{"11", "volumes are proven of another boot", storage, " && d.seen.Now == d.fence.Boot", "", pure, "TestStorageFencedNeedsTheRest"},
	{"11", "volumes are proven of a node that may get pods", storage, " && d.seen.Isolated", "", pure, "TestStorageFencedNeedsTheRest"},
	{"11", "volumes may be taken before that is stored", storage, "case !d.fence.StorageProven:", "case false:", pure, "TestStorageFencedIsStoredFirst"},
	{"11", "a volume is taken that no driver is asked to cut", "internal/attachment/policy.go", " || a.Implied || !a.Finalized", "", "internal/attachment", "TestStorageProof"},
	{"11", "a shared volume is taken from one node", "internal/attachment/policy.go", "p.want.Shared != No || ", "", "internal/attachment", "TestStorageProof"},
	{"11", "a node that may have a volume mounted that was taken from it gets pods", storage, "case len(d.seen.Mounted) > 0:", "case false:", pure, "TestReturnOfAnotherKind"},
	{"11", "a node that has not come back gets pods", storage, "case d.fence.StorageProven && !alive:", "case false:", pure, "TestReturnOfAnotherKind"},
	{"11", "a machine that never comes back keeps a fence that is to end", storage, "!alive && d.ended()", "false && d.ended()", pure, "TestEndWithoutReturn"},
	{"11", "a node that flaps loses its isolation", storage, "case alive && d.seen.Silent && (d.fence.StorageProven || len(d.seen.Mounted) > 0):", "case false:", pure, "TestSilentAgain"},
	{"11", "a statement from before a sign of life counts", "internal/fencing/record.go", " && (f.SilentAgain.IsZero() || f.Statement.Made.After(f.SilentAgain))", "", pure, "TestSilentAgain"},
	{"14", "a node that may have old mounts is not isolated again", decide, "case d.isolates():\n\t\td.out.Steps", "case false:\n\t\td.out.Steps", pure, "TestHostileReturnUnderAnotherNodeObject"},
	{"11", "a declaration that is withdrawn lifts the isolation", "internal/recovery/storage.go", "(taken || cuts[driver])", "(taken && false || cuts[driver])", shell, "TestHostileWithdrawnDeclaration"},
	{"11", "a volume is attached to the boot that it was taken from", decideAttach, "return n.InUse == Yes && (n.Isolated || cut)", "return false && cut", "internal/attachment", "TestHostileNoAttachToTheBootThatWasCutOff"},
	{"12", "the VolumeAttachments of a deleted Node stay", decide, "if !d.sameMachine() && !a.Deleting {", "if false {", pure, "TestDeletedNode"},
	{"12", "the machine of a deleted Node is switched off", decide, "case d.fence.NodeDeleted || d.seen.Exists != Yes:", "case false:", pure, "TestNodeDeletedMachineOn"},
	{"12", "a machine is switched off whose Node was deleted during the fence", decide, "case d.fence.NodeDeleted || d.seen.Exists != Yes:", "case d.fence.NodeDeleted:", pure, "TestHostileNodeDeletedInTheMiddleIsNotSwitchedOff"},
	{"12", "the fencer commands the machine of a deleted Node", "internal/fencing/serve.go", "r.Exists != Yes || since", "r.Exists == Yes && since", pure, "TestHostileFencerSparesADeletedNode"},
	{"12", "the fence of a deleted Node waits for its machine for ever", decide, "back := d.seen.Exists == No ||", "back :=", pure, "TestMovedWithoutNode"},
	{"12", "Nodes that are deleted all at once pass the brakes", suspect, "return n.Deleted || n.Heard", "return n.Heard", pure, "TestSuspectDeleted"},
	{"12", "the fence of a deleted Node ends while something of it is left", decide, "if !waits {\n\t\td.enter(Cancelled)", "if true {\n\t\td.enter(Cancelled)", pure, "TestNodeDeletedNothingLeft"},
	{"12", "a fence ends after volumes were taken from a machine that may register again", decide, "|| d.fence.StorageProven ||", "||", pure, "TestNodeDeletedNothingLeft"},
	{"17", "Nodes that are not there hold back the fence of one that is", suspect, "if n.Deleted {\n\t\treturn &c.all\n\t}\n\treturn &c.there", "return &c.all", pure, "TestSuspectBesideDeleted"},
	{"12", "Nodes that are deleted all at once do not count for each other", suspect, "if n.Deleted {\n\t\treturn &c.all\n\t}\n\treturn &c.there", "return &c.there", pure, "TestSuspectDeleted"},
	{
		"12", "the timer takes a volume from a boot that runs", "internal/attachment/policy.go", "case UnmountTimeout, DeletedNode:\n\t\treturn n.runs(a)",
		"case DeletedNode:\n\t\treturn n.runs(a)", "internal/attachment", "TestNodeStillRuns",
	},
	{
		"12", "the deletion of a Node takes a volume from a boot that runs", "internal/attachment/policy.go", "case UnmountTimeout, DeletedNode:\n\t\treturn n.runs(a)",
		"case UnmountTimeout:\n\t\treturn n.runs(a)", "internal/attachment", "TestNodeStillRuns",
	},
	{"12", "a switch of another boot shows that one runs", life, "if !source.bound(boot) ||", "if", pure, "TestLife"},
	{"12", "an old answer shows that a boot runs", life, "!source.Status.fresh(d.now) ||", "", pure, "TestLife"},
	{"12", "another boot of the machine runs, and so this one", life, "l.boot.ID == b.ID && ", "", pure, "TestLife"},
	{"12", "a boot of another node runs, and so this one", life, "l.boot.Node == b.Node && ", "", pure, "TestLife"},
	{"12", "a boot of another machine runs, and so this one", life, " && l.boot.Machine == b.Machine", "", pure, "TestLife"},
	{"12", "a Node that does not identify its machine shows that one runs", life, " || !shown.Complete()", "", pure, "TestLifeByLease"},
	{"12", "a lease that was only read shows that the node runs", "internal/fencing/silence.go", "if known && h.renewal != renewal {", "if h.renewal != renewal {", pure, "TestLifeByLease"},
	{"13", "two fences of one machine both continue", sameName, ") > 0", ") > 3", shell, "TestDoubledFenceIsFound"},
	{"13", "a fence that is doubled continues", record, "o.Epoch >= max(f.Epoch, 1) || o.Doubled", "o.Epoch > f.Epoch", pure, "TestDoubledFence"},
	{"13", "an epoch is used twice", epoch, "max(shown, recorded)+1", "max(min(shown, 0), recorded)+1", pure, "TestNextEpoch"},
	{"13", "an epoch is used twice if the Node lost it", epoch, "max(shown, recorded)+1", "shown+1", pure, "TestNextEpoch"},
	{"13", "a node writes an epoch that no fence can have", epoch, "if shown > now.Add(EpochAhead).Unix() {", "if false {", pure, "TestNextEpoch"},
	{"13", "the detector does not know the fence before", detectorFile, "NextEpoch(d.now(), max(place.Epoch, d.numbered[name]), ", "NextEpoch(d.now(), d.numbered[name], ", shell, "TestEpoch"},
	{"13", "the detector does not know what the Node shows", detectorFile, ", shownEpoch(node))", ", min(shownEpoch(node), 0))", shell, "TestEpoch"},
	{"13", "a fence that was created late counts", cause, "return seen.outdates(f) || ", "return ", pure, "TestOutdatedFence"},
	{"13", "no fence outdates another", "internal/recovery/actor.go", "if f.Spec.Epoch > last.epoch || f.UID == last.of {", "if true {", shell, "TestOnlyAFenceOutdatesAFence"},
	{"13", "an epoch is used twice if the Node and the fence were deleted", epoch, "+1, now.Unix())", "+1, 0)", pure, "TestNextEpoch"},
	{"12", "another fence begins for a boot whose fence a client has deleted", "internal/recovery/deleted.go", "if va.Annotations[kube.UnfencedBootAnnotation] == boot.ID && boot.ID != \"\" {", "if false {", shell, "TestBootsWithoutNode"},
	{"13", "a taint is set without its fence", "internal/recovery/act.go", "now.UID != t.fence.UID || ", "", shell, "TestNoTaintWithoutItsFence"},
	{"13", "a taint is set for a fence that another process has cancelled", "internal/recovery/act.go", " || now.Status.Phase != t.fence.Status.Phase", "", shell, "TestNoTaintWithoutItsFence"},
	{"13", "nothing keeps a fence whose taints are there", detectorFile, "Name: place.Name, Finalizers: []string{finalizer}", "Name: place.Name", shell, "TestEpoch"},
	{"13", "a fence with taints makes room for the next", "internal/kube/fence.go", "!slices.Contains(f.Finalizers, FenceFinalizer)", "true", shell, "TestDeletedFenceStays"},
	{"14", "a taint of another client does not count", decide, "tainted := d.seen.OutOfService || d.seen.ForeignTaint", "tainted := d.seen.OutOfService", pure, "TestForeignTaint"},
	{"15", "pods come at once after the untaint", decide, "case d.now.Before(settled):", "case false:", pure, "TestFence"},
	{
		"15", "a node that restarted waits for the volumes that its pods use", decide,
		"case d.seen.OutOfService:\n\t\td.untaint()\n\tcase d.fence.Untainted", "case len(d.seen.Attachments) > 0:\n\t\td.wait(AwaitingDetach, 0)\n\tcase d.seen.OutOfService:\n\t\td.untaint()\n\tcase d.fence.Untainted",
		pure, "TestRestartedKeepsItsVolumes",
	},
	{"16", "the command is stored on an old reading of the node", decide, "case !d.seen.live(d.now):\n\t\td.do(ReadNode{})\n\t\td.wait(NotReadLive, 0)\n\tdefault:\n\t\td.do(Command", "default:\n\t\td.do(Command", pure, "TestLiveReadBeforeOff"},
	{"16", "the command is stored on a reading from the future", "internal/fencing/record.go", "!now.Before(o.ReadAt) && ", "", pure, "TestLiveReadBeforeOff"},
	{"16", "the command is sent on a reading from the future", "internal/fencing/serve.go", "!now.Before(r.ReadAt) && ", "", pure, "TestServe"},
	{"16", "a detector that did not run counts what it did not hear", "internal/fencing/silence.go", "now.Sub(s.tick) > MaxTickGap", "false", pure, "TestSilences"},
	{"16", "the command is sent although the lease was renewed", "internal/fencing/serve.go", "case commanded && r.overtaken():", "case false:", pure, "TestServe"},
	{"16", "the command is sent although the node lives once the switch has shown whose it is", levelsFile, "if err := o.stands(ctx); err != nil {", "if err := error(nil); err != nil {", shell, "TestOptOutBeforeOff"},
	{"16", "the command is sent although the owner has opted out since", "internal/fencing/serve.go", "r.OptedOut || r.Maintenance || r.ControlPlane || r.Fence.Deleting", "r.ControlPlane || r.Fence.Deleting", pure, "TestServe"},
	{"16", "the command is sent for a fence that a client has deleted", "internal/fencing/serve.go", " || r.Fence.Deleting", "", pure, "TestServe"},
	{"16", "the command is sent although the fence was deleted once the switch has shown whose it is", fencerFile, "if r.Fence = fenceState(fence); r.Fence.Intent.Nonce != nonce {", "if _ = fence; r.Fence.Intent.Nonce != nonce {", shell, "TestHostileFenceDeletedBeforeOff"},
	{"16", "one slow answer of a kubelet is silence", detectorFile, "known && d.now().Sub(a.at) < n.Limit", "known && false && d.now().Sub(a.at) < n.Limit", shell, "TestHostileOneSlowAnswerOfAKubeletIsNoSilence"},
	{"16", "a dead node without a lease is not fenced", detectorFile, "case !apierrors.IsNotFound(err):\n\t\treturn fmt.Errorf(\"read the lease", "case err != nil:\n\t\treturn fmt.Errorf(\"read the lease", shell, "TestHostileDeadNodeWithoutALease"},
	{"17", "no limit on nodes that are commanded in a time", suspect, "return lately >= b.Fences", "return false && lately >= b.Fences", pure, "TestBrakes"},
	{"17", "a fence counts as one in flight although it has no switch to command", "internal/fencing/record.go", "(!f.Waits || f.offSent() || s.answers(f.Boot))", "(true || f.Waits || f.offSent() || s.answers(f.Boot))", shell, "TestNodesWithoutASwitchTakeNoPlace"},
	{"17", "a fence that has commanded does not count when its switch is gone", "internal/fencing/record.go", "(!f.Waits || f.offSent() || s.answers(f.Boot))", "(!f.Waits || s.answers(f.Boot))", pure, "TestMayTake"},
	{"17", "the command of a node takes its own place", suspect, "name != n.Boot.Node && ", "name != \"\" && ", pure, "TestBrakes"},
	{"17", "a fence is begun that the actor cancels", detectorFile, " || d.needless(n.Boot, node):", ":", shell, "TestNothingBegunInVain"},
	{"17", "a fence that waits for others counts as in flight", "internal/fencing/record.go", "[]Phase{Detaching, Moved, Releasing", "[]Phase{Moved, Releasing", pure, "TestInFlight"},
	{"17", "a clock that is ahead empties the window", detectorFile, "ahead := d.now().Sub(d.serverTime())", "ahead := time.Duration(0)", shell, "TestHostileBrakeOnAClockThatIsAhead"},
	{"1", "two feeds that were off one after the other count as off together", levelsFile, "last-first > fencing.FreshFor", "false", shell, "TestFeedsAreOffTogether"},
	{"1", "a feed that said Off long before the other is not asked again", levelsFile, "last-a.took > fencing.FreshFor", "false", shell, "TestFeedsAreOffTogether"},
	{"17", "a fence counts only once the cache shows it", detectorFile, "d.count(fleet, fences, byName(sources))", "_ = byName", shell, "TestBrakesWithACacheThatLags"},
	{"17", "a create without an answer does not count", detectorFile, "d.unanswered[name] = d.now()", "", shell, "TestBrakesWithACreateWithoutAnAnswer"},
	{"4", "two creates have one epoch, of which one is carried out late", detectorFile, "max(place.Epoch, d.numbered[name])", "place.Epoch", shell, "TestEpochOfACreateWithoutAnAnswer"},
	{"16", "a refused connection is a sign of life for ever", suspect, "speaks && n.PowerOff != Yes && !spent", "speaks && n.PowerOff != Yes && (!spent || true)", pure, "TestSuspicion"},
	{"16", "a machine is switched off whose kubelet is restarted", suspect, "n.Endpoint == Yes || n.Refused || n.Leaving", "n.Endpoint == Yes || n.Refused && p.Name == Default.Name || n.Leaving", pure, "TestChanceOfAStoppedKubelet"},
	{"16", "a refused connection counts for one look", detectorFile, "case known && a.refused:\n\t\tn.Refused = true", "case known && a.refused:", shell, "TestOneLookWithoutARefusalEndsNoChance"},
	{"16", "a kubelet that could not be asked is silent", detectorFile, "if err := d.answers(ctx, n); err != nil {\n", "if err := d.answers(ctx, n); err != nil && false {\n", shell, "TestOneLookWithoutARefusalEndsNoChance"},
	{"16", "a machine that runs is fenced because a time has passed, although its own kubelet answers", suspect, "n.Endpoint == Yes && n.Own || n.chance(p)", "n.chance(p)", pure, "TestSuspicion"},
	{"16", "a Ready node is given no chance", suspect, "spent := n.Ready == No && (", "spent := (", pure, "TestSuspicion"},
	{"16", "a node that has nothing to lose is switched off", suspect, "return n.Idle == Yes && (!n.Asked || n.Ready != No)", "return false", pure, "TestSuspicion"},
	{"16", "a drained node is switched off for the pods that move nowhere", "internal/fencing/chance.go", " && !o.Returns }", " }", shell, "TestOccupants"},
	{"16", "an eviction of another silence gives a node up", "internal/recovery/occupants.go", " && d.serverTime().Sub(c.LastTransitionTime.Time) <= silent", "", shell, "TestHostileEvictionBeforeTheSilenceGivesNoNodeUp"},
	{"16", "an announcement is forgotten when the lifecycle controller marks the node", "internal/recovery/occupants.go", "return known && d.now().Sub(at) <= n.Silent", "return leaving && known && !at.IsZero()", shell, "TestHostileAnnouncementOutlivesWhatTheLifecycleControllerWrites"},
	{"16", "a machine that its owner takes down is switched off meanwhile", "internal/recovery/occupants.go", "if kube.TakedownOf(node) != (kube.Takedown{}) {", "if false {", shell, "TestLeaving"},
	{"16", "a machine whose object is being deleted is switched off meanwhile", "internal/recovery/occupants.go", "return machine.DeletionTimestamp != nil", "return false", shell, "TestLeaving"},
	{"17", "what a fence takes without a switch counts in no window", detectorFile, "at.After(fleet.Commanded[name]) {", "false && at.After(fleet.Commanded[name]) {", shell, "TestHostileBrakeCountsVolumesTakenOneByOne"},
	{"16", "a pod that terminates for another reason gives its node up", "internal/fencing/chance.go", " && silent >= o.Grace+terminatingFor", "", pure, "TestAbandonedByTheCluster"},
	{"16", "a node is idle although a volume is attached to it", "internal/recovery/occupants.go", "return !shown.Replaces(kube.RecordedBoot(&va))", "return false && shown.Complete()", shell, "TestOccupants"},
	{"16", "a remediation has a Ready node fenced that has nothing to lose", suspect, "(!n.Asked || n.Ready != No)", "!n.Asked", pure, "TestAskedNode"},
	{"16", "a remediation asks for nothing", suspect, "(n.Asked || n.GivenUp", "(n.GivenUp", pure, "TestAskedNode"},
	{"14", "a node is fenced while another component has its lease", suspect, "case n.Leased:", "case false:", pure, "TestAskedNode"},
	{"14", "a remediation that timed out ends a fence whose machine was commanded", record, " && !f.offSent() && !f.StorageProven", " && !f.StorageProven", shell, "TestNodeHealthCheckTimesOutAfterTheOff"},
	{"14", "a fence commands the machine that another remediator works on", decide, "case d.lapsed():", "case d.lapsed() && d.now.IsZero():", shell, "TestWithdrawnFenceCommandsNoMore"},
	{"14", "a node is never commanded again once a remediation was withdrawn", detectorFile, "&& !d.lapsed(f) {", "{", shell, "TestDetectorReplacesAWithdrawnFence"},
	{"14", "the detector ends a fence whose command may still be carried out", record, "&& !f.Intent.open(now) && !f.StorageProven", "&& !f.StorageProven", shell, "TestDetectorReplacesAWithdrawnFence"},
	{"14", "a fence commands while it is unknown whether a remediation asks", remediation, "seen.Withdrawn = !asks", "seen.Withdrawn = !asks && err == nil", shell, "TestWithdrawnFenceCommandsNoMore"},
	{"14", "a remediation that is deleted with its Node ends the fence", remediation, " && t.there(ctx)", "", shell, "TestUnaskedFenceEnds"},
	{"14", "a fence for which no remediation asks keeps the next one from beginning", cause, " || seen.Unasked && !f.StorageProven", "", shell, "TestUnaskedFenceEnds"},
	{"14", "remediations that cannot be read ask for nothing", remediation, "!asks && known && t.there", "!asks && (known || true) && t.there", shell, "TestUnaskedFenceEnds"},
	{"14", "a remediation asks for a fence at each failure of its node", remediation, "if c := x.over(); c != nil &&", "if c := x.over(); c != nil && false &&", shell, "TestRemediationIsAboutOneFailure"},
	{"13", "a create that is carried out late has the number of the fence that is over", record, "o.Epoch >= max(f.Epoch, 1)", "o.Epoch > f.Epoch", shell, "TestOnlyAFenceOutdatesAFence"},
	{"13", "two fences of one machine are not found once both have begun", sameName, "case !state.MayEnd():", "case state.Phase != fencing.Suspected:", shell, "TestDoubledFenceIsFound"},
	{"13", "of two fences the one that has commanded is cancelled", sameName, "cmp.Compare(came(f), came(t.fence)), ", "", shell, "TestDoubledFenceIsFound"},
	{"13", "two fences cancel each other", sameName, " || fenceState(f).Phase == fencing.Cancelled {", " {", shell, "TestDoubledFenceIsFound"},
	{"12", "a VolumeAttachment without a record hides the boot of another one", "internal/recovery/deleted.go", " || boot.Complete() && !known.boot.Complete()", "", shell, "TestBootsWithoutNode"},
	{"3", "the record of a fence of another node keeps a node from being fenced", fenceName, "if f.Name == place.Name && f.Spec.NodeName != boot.Node {", "if false {", "internal/kube", "TestPlaceFence"},
	{"14", "the simulation finds no remediation that ends a fence whose machine was commanded", record, " && !f.offSent() && !f.StorageProven", " && !f.StorageProven", shell, "TestRecoverySimulation"},
	{"14", "the simulation finds no remediation that is deleted with its Node and ends the fence", remediation, " && t.there(ctx)", "", shell, "TestRecoverySimulation"},
	{"14", "the name of a remediation is that of its node", "internal/kube/medik8s.go", "; ok {\n\t\treturn node\n\t}\n\treturn r.Name", "; ok && node == \"\" {\n\t\treturn node\n\t}\n\treturn r.Name", shell, "TestNodeHealthCheck"},
	{"17", "no limit on fences in flight", suspect, "case fleet.InFlight >= b.InFlight:", "case false:", pure, "TestBrakes"},
	{"17", "two switches that never answer stop the fences of all other nodes", record, "return f.MayTake(s) && !vain", "return f.MayTake(s) || vain", shell, "TestTwoDeadBMCsDoNotStopAllRecovery"},
	{"17", "a fence counts no more in flight once it has commanded", record, "now.Sub(commanded) >= window", "now.Sub(commanded) >= 0", pure, "TestActive"},
	{"17", "no limit on silent nodes", suspect, "t.silent > allowed(b.Share, t.may)", "t.silent > t.may", pure, "TestBrakes"},
	{"17", "no limit on silent nodes of a zone", suspect, "zone.silent > allowed(b.ZoneShare, zone.may)", "zone.silent > zone.may", pure, "TestBrakes"},
	{"17", "nodes of the control plane are fenced", suspect, "case n.ControlPlane:", "case false:", pure, "TestSuspicion"},
	{"17", "the fencer switches off a node that it hears", "internal/fencing/serve.go", "(!n.Heard || n.Silent < n.Limit)", "!n.Heard", shell, "TestFencerDecidesItself"},
	{"17", "the fencer has no brake of its own", "internal/fencing/serve.go", "reason := hold(now, fleet.Count(), n); reason != Settled", "reason := hold(now, fleet.Count(), n); false && reason != Settled", shell, "TestFencerDecidesItself"},
	{"17", "a person's request is held back by what recovery commanded", "internal/fencing/serve.go", "if asked {", "if false {", shell, "TestFencerDecidesItself"},
	{"17", "a person's request is carried out although nothing is heard", "internal/fencing/serve.go", "decision.Reason { return b.doubt(fleet, n) }", "decision.Reason { _ = b.doubt(fleet, n); return Settled }", shell, "TestFencerDecidesItself"},
	{"17", "a request counts that no policy guards", "internal/recovery/brake.go", "return err == nil\n", "return err == nil || true\n", shell, "TestFencerDecidesItself"},
	{"17", "no event says that a person's request has ended", "internal/recovery/act.go", "if r := t.fence.Spec.Request; r != nil {", "if r := t.fence.Spec.Request; false && r != nil {", shell, "TestRequestOfALivingNode"},
	{"16", "a request is written for a node that is Ready again", "internal/inspect/fencewrite.go", "if kube.Ready(node) || said", "if said", "internal/kubectl", "TestPowerOffIsReadAgain"},
	{"16", "a request is written for a node that has renewed its lease", "internal/inspect/fencewrite.go", "said != was.LastRenewal || ", "said == \"none\" || ", "internal/kubectl", "TestPowerOffIsReadAgain"},
	{"16", "a person asks for the power-off of a node that renews its lease", "internal/diagnosis/poweroff.go", "x.isSilent(n, nil), notReady(n), power}", "notReady(n), power}", "internal/kubectl", "TestPowerOff"},
	{"16", "a person asks for the power-off of a node that is Ready", "internal/diagnosis/poweroff.go", "x.isSilent(n, nil), notReady(n), power}", "x.isSilent(n, nil), power}", "internal/kubectl", "TestPowerOff"},
	{"17", "the fencer forgets what an earlier one commanded", "internal/recovery/brake.go", "c != nil && c.Time.After(", "c != nil && false && c.Time.After(", shell, "TestFencerDecidesItself"},
	{"17", "the fencer switches off a node of the control plane", "internal/fencing/serve.go", " || r.ControlPlane", "", shell, "TestFencerDecidesItself"},
	{"18", "the end of a fence does not say that its machine may be off", "internal/explain/fencing.go", "if !commanded {", "if true {", "internal/explain", "TestEndAfterACommand"},
	{"17", "diagnosis counts fences in flight that the detector does not", "internal/diagnosis/heldback.go", "return kube.FenceActive(object, x.sources[object.Spec.NodeName], x.Now, fencing.DefaultBrakes().Window)", "return kube.FenceState(object).InFlight()", "internal/diagnosis", "TestEventsThatTheObjectsContradict"},
	{"4", "the actor does not know since when nothing has changed", "internal/recovery/actor.go", "seen.News = t.mem.news.Since(t.now(), state, seen)", "_ = t.mem.news.Since(t.now(), state, seen)", shell, "TestActorKnowsWhatIsNews"},
	{"18", "a fence is cancelled after the first delete", decide, "case d.seen.restarted(d.fence): // its kubelet does the rest", "case d.cancels():\n\tcase d.seen.restarted(d.fence):", pure, "TestNoCancelAfterDelete"},
	{"18", "the record does not say that upstream's timer runs", "internal/recovery/act.go", "case p == fencing.Evicting:", "case false:", shell, "TestUpstreamForces"},
	{"19", "a switch that refuses is asked without an end", loginsFile, "r.Times < maxLogins", "true", shell, "TestLogins"},
	{"19", "a switch that starts again is locked after three seconds", loginsFile, "l.now.Sub(s.refusedAt) < refusedFor", "false", shell, "TestRestartOfABMCLocksNothing"},
	{"19", "a command that no level was asked with counts as sent", fencerFile, "if len(logins.mayAsk()) == 0 {", "if false {", shell, "TestRestartOfABMCLocksNothing"},
	{"19", "an answer does not forget the refusals before it", loginsFile, "case !r.refused: // a clear answer", "case record != nil && !r.refused && false:", shell, "TestLogins"},
	{"19", "no answer locks a switch", levelsFile, "failed: true, refused: errors.Is(err, ErrRefused)}", "failed: true, refused: true}", shell, "TestNoAnswerLocksNothing"},
	{"19", "a level that did not answer is left out", loginsFile, "min(exerciseEvery<<min(max(s.missed-2, 0), 8), limit)", "1000*limit", shell, "TestNoAnswerLocksNothing"},
	{"19", "a switch that may refuse is asked as often as one that has worked", loginsFile, "s, limit := l.state(i), maxGuess", "s, limit := l.state(i), maxRest", shell, "TestGuess"},
	{"19", "what one level refuses counts against the others", loginsFile, "return r.Level == int32(level) && r.SecretVersion", "return r.SecretVersion", shell, "TestLevelsCountForThemselves"},
	{"19", "a BMC puts its password into the status of a FenceSource", "internal/fenceagent/redfish.go", "a.shown(response.Status)", "response.Status", "internal/fenceagent", "TestRedfishStatusLineIsRedacted"},
	{"19", "a BMC that answers 401 is asked on", "internal/fenceagent/redfish.go", "response.StatusCode == http.StatusUnauthorized && user", "false && user", "internal/fenceagent", "TestRedfishRefusedLogin"},
	{"19", "a 401 that only asks for a password counts as a refusal", "internal/fenceagent/redfish.go", ` && user != "" && pass != ""`, "", "internal/fenceagent", "TestRedfishRefusedLogin"},
	{"19", "a BMC that does not answer counts as one that refuses", "internal/fenceagent/ipmi.go", "if refused(exit, text) {", "if exit != 0 {", "internal/fenceagent", "TestRefusedLogin"},
	{"19", "a Secret that was corrected during a fence is not tried", fencerFile, "c.Reason == reasonLocked && f.mayLogin(ctx, source)", "false", shell, "TestSecretCorrectedDuringAFence"},
	{"19", "a Secret that was corrected is not tried", loginsFile, " && r.SecretVersion == l.versions[level]", "", shell, "TestLogins"},
	{"20", "a pod that nothing evicts stays", decide, "if pod.leaves() && !pod.Leaving {", "if false {", pure, "TestFence"},
	{"20", "the pods of DaemonSets are deleted", "internal/recovery/observe.go", `owner.Kind == "DaemonSet"`, "false", shell, "TestReturns"},
	{"20", "mirror pods are deleted", "internal/recovery/observe.go", "return kube.MirrorPod(pod) || ", "return false || ", shell, "TestReturns"},
	{"20", "a pod with a volume stays because of what it claims to be", "internal/fencing/record.go", "(p.Volume || !p.Returns)", "!p.Returns", pure, "TestPodsThatLeave"},
	{"20", "the next pods of a DaemonSet are deleted", "internal/fencing/record.go", "return !p.Late && ", "return ", pure, "TestPodsThatLeave"},
	{"20", "the actor knows no next pod", "internal/recovery/observe.go", "Late: !t.mem.bound[pod.UID]", "Late: false", shell, "TestPodsOfTheBoot"},
	{"20", "a pod that came before the taint was set again stays", "internal/recovery/observe.go", " || !t.mem.boundAt.Equal(t.mem.tainted)", "", shell, "TestPodsOfTheBoot"},
	{"S2", "an ID that looks outdated does not keep the volume at the machine", "internal/publication/places.go", "other.holds(names, other.SameMachine)", "other.holds(names, other.sameMachine())", "internal/publication", "TestWatchOfNodesIsBehind"},
	{"S2", "what is gone is unpublished at an earlier ID of a Node that has the volume", "internal/publication/places.go", "return a.Gone && a.Node == other.Node", "return false", "internal/publication", "TestGoneAtAnEarlierIDOfTheNode"},
	{"S1", "a finalizer that another client removed counts as the previous attacher's", "internal/publication/places.go", "return a.Released && !slices", "return !slices", "internal/publication", "TestReleasedByAnEarlierProcess"},
	{"S1", "what this process has published counts as the previous attacher's", "internal/publication/places.go", "!a.Call.at(id).OnRecord || ", "", "internal/publication", "TestReleasedByAnEarlierProcess"},
	{"S1", "a write of the previous attacher is carried out at any time", "internal/attacher/calls.go", "now.Before(l.started.Add(lateWrites))", "now.After(l.started)", "internal/attacher", "TestDetachThatTheProcessBeforeHasEnded"},
	{"node", "a driver is called with a path that its container does not have", "internal/nodeagent/requests.go", "Root: r.records.configuredRoot(),", "", "internal/nodeagent", "TestDriversGetTheRootAsConfigured"},
	{"node", "a mount is ended by another path than it was made with", "internal/nodeagent/files.go", `cmp.Or(r.Root, s.root.Path("."))`, "cmp.Or(s.root.Configured(), r.Root)", "internal/nodeagent", "TestRecordsOfTheResolvedRoot"},
	{"node", "a repeated call has another path than the first", "internal/nodevolume/record.go", "if earlier.Path == r.Path {", "if false {", "internal/nodevolume", "TestRecordKeepsTheRootOfTheFirstCall"},
	{"node", "a CSINode that another client deletes stays away", "internal/nodeagent/plugins/identity.go", "running.Go(func() { i.lookAtCSINode(ctx) })", "", "internal/nodeagent/plugins", "TestCSINodeThatAnotherClientChangesComesBack"},
	{"node", "an interrupted change of the group is not seen", groupFile, "setMode(top, st.Mode&modeBits&^unix.S_ISGID)", "error(nil)", "internal/mount", "TestInterruptedChangeIsSeenForEveryGroup"},
	{"node", "a repair takes the group from what containers create", groupFile, "int(st.Gid) == w.GID || st.Mode&unix.S_ISGID == 0", "st.Mode&unix.S_ISGID == 0", "internal/mount", "TestRepairIsNotSeenByContainers"},
	{"node", "the files may reach the disk before the top that mismatches", groupFile, "return w.sync(w.fsync, dir)", "return nil", "internal/mount", "TestChangeReachesTheDiskInOrder"},
	{"node", "the top that fits may reach the disk before the files", groupFile, "len(w.down) == 1 && !fits(st, w.GID)", "false", "internal/mount", "TestChangeReachesTheDiskInOrder"},
}

// TestRecovery: each rule is needed.
func TestRecovery(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT RUN: builds the tests once for each rule; `make mutants` does")
	}
	tests := map[string]map[string]bool{}
	for _, h := range holes {
		if tests[h.pkg] == nil {
			tests[h.pkg] = map[string]bool{}
		}
		tests[h.pkg][h.test] = true
	}
	for _, pkg := range slices.Sorted(maps.Keys(tests)) {
		t.Run("0 "+pkg, func(t *testing.T) {
			b := build(t, pkg)
			for _, test := range slices.Sorted(maps.Keys(tests[pkg])) {
				b.passes(t, test)
			}
		})
	}
	for _, h := range holes {
		t.Run(h.number+" "+h.what, func(t *testing.T) {
			t.Parallel()
			h.mutant().build(t).fails(t, h.test)
		})
	}
}

func (h hole) mutant() mutant {
	return mutant{file: h.file, with: h.with, without: h.without, pkg: h.pkg}
}

// TestRulesAreThere: each rule of recovery is where the list says, so that TestRecovery can take it out.
func TestRulesAreThere(t *testing.T) {
	for _, h := range holes {
		if _, err := h.mutant().source(); err != nil {
			t.Errorf("hole %s, %s: %v", h.number, h.what, err)
		}
	}
}
