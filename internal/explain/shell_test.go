package explain

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"belay.dev/belay/internal/decision"
)

// TestCommandsAreSafeToCopy: the API server checks neither the name of an owner, nor of a pod's claim, nor of the holder of a lease, so a
// shell must take each as one word.
func TestCommandsAreSafeToCopy(t *testing.T) {
	const evil = "x; touch 'y' $(z) `w`"
	for reason, guide := range guides {
		for _, owner := range []string{"", "Deployment/" + evil, "StatefulSet/" + evil} {
			for _, step := range guide.Steps(Situation{
				Pod: "p", Namespace: "n", Claim: evil, Volume: evil, Driver: evil, Node: evil, Wanted: evil, Attachment: evil, HolderNamespace: "n", HolderName: "h",
				HolderOwner: owner, LeaseNamespace: "n", AttacherPod: evil,
			}) {
				checkCommand(t, reason, step.Command, evil)
			}
		}
		for _, cause := range causes {
			for _, step := range guide.Steps(Situation{
				Pod: "p", Namespace: "n", Claim: evil, Volume: evil, Driver: evil, Node: evil, Wanted: evil, Cause: cause, Class: evil, Provisioner: evil, ProvisionerPod: evil,
				SourceKind: evil, SourceName: evil, SourceNamespace: "n", Workload: evil, HolderNamespace: "n", HolderName: evil,
			}) {
				checkCommand(t, reason, step.Command, evil)
			}
		}
	}
}

// checkCommand runs the command with a kubectl that shows its arguments, and what it reads: whatever else the shell would start does not exist.
func checkCommand(t *testing.T, reason decision.Reason, command, evil string) {
	t.Helper()
	if !strings.Contains(command, "touch") {
		return
	}
	shell := exec.CommandContext(t.Context(), "sh", "-c", `kubectl() { for word; do echo "<$word>"; done; [ "$word" != - ] || while read -r line; do echo "<$line>"; done; }; `+command)
	shell.Env = []string{"PATH=/nonexistent"}
	out, err := shell.CombinedOutput()
	if err != nil || !strings.Contains(string(out), evil) {
		t.Errorf("%s: %s\n%s%v", reason, command, out, err)
	}
}

// TestShellWord leaves names that need no quotes as they are.
func TestShellWord(t *testing.T) {
	for text, want := range map[string]string{"pvc-0.x_y": "pvc-0.x_y", "a b": "'a b'", "o'neil": `'o'\''neil'`, "": "''", "$HOME": "'$HOME'", "a\nb": "'a\nb'"} {
		if got := ShellWord(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// changes matches commands that change something in the cluster, or open an editor for that. Those of belay only show it without --confirm.
var changes = regexp.MustCompile(`kubectl (delete|patch|edit|taint|drain|cordon|uncordon|scale|annotate|label|create|apply|set|rollout)\b`)

// changeFirst are the reasons whose first command changes something, and why that is right.
var changeFirst = map[decision.Reason]string{
	RollingUpdateDeadlock: "the strategy can be changed back, and what the change rests on was read",
}

// causes are all of them.
var causes = []Cause{
	"", NoClass, NoDynamicClass, MadeByHand, PerhapsByHand, ClassMissing, NodeWithoutScheduler, NodeNotChosen, NoTopology, SourceNotReady, SecretOfClass, WrongParameters, NotSupported, StorageExhausted, StorageRefuses, DriverSilent,
	BoundToAnother, BoundToDeleted, OtherClass, HeldBySnapshot, ControllerResizes, NodeResizes, SizeRefused, VolumesStay, HasFinalizers,
	DriverMissing, ModeDiffers, LifecycleDiffers, KindUnknown, KindRemoved, MountOptions, NodeExcluded, LabelsDiffer, MediumUnusable, SubPathUnusable, LabelRefused, MountPathUnusable, MountDead,
	KeyUnusable, AttemptRepeated, PolicyMissing, NoDatastore, ExportNotWritable, ServerRefuses, CredentialsMissing, StorageUnreachable, CertificateRefused,
}

// TestLookBeforeYouChange: the first command of an answer shows something, and changes nothing.
func TestLookBeforeYouChange(t *testing.T) {
	for reason, guide := range guides {
		for _, cause := range causes {
			for _, s := range []Situation{
				{Wanted: "n2"}, {Node: "n1"}, {Wanted: "n2", HolderEnded: true}, {Wanted: "n2", HolderOwner: "StatefulSet/web"}, {Wanted: "n2", Answer: Answer{Affinity: true}}, {Bare: true},
			} {
				s.Pod, s.Namespace, s.Claim, s.Volume, s.Driver, s.Attachment, s.Cause = "pod", "ns", "claim", "pv", "disk.example.com", "csi-1", cause
				s.HolderNamespace, s.HolderName = "ns", "holder"
				for _, step := range guide.Steps(s) {
					if changes.MatchString(step.Command) && changeFirst[reason] == "" {
						t.Errorf("%s (%s): the first command is %q", reason, cause, step.Command)
					}
					if step.Command != "" {
						break
					}
				}
			}
		}
	}
	for _, text := range slices.Concat(mountTexts, storageTexts, containerTexts) {
		for i, step := range text.steps {
			if i == 0 && (step.Command == "" || changes.MatchString(step.Command)) {
				t.Errorf("%s: the first step %q shows nothing", text.pattern, step.Text)
			}
		}
	}
}

// TestPodWithoutOwner: what no controller has created has no template, and no controller creates it again.
func TestPodWithoutOwner(t *testing.T) {
	for reason, guide := range guides {
		for _, cause := range causes {
			s := Situation{Pod: "pod", Namespace: "ns", Claim: "claim", Volume: "pv", Wanted: "n2", Cause: cause, Bare: true}
			text := ""
			for _, step := range guide.Steps(s) {
				text += step.Text + " "
			}
			if strings.Contains(text, "template") {
				t.Errorf("%s: a pod without an owner has a template: %s", reason, text)
			}
			deletes := slices.ContainsFunc(guide.Steps(s), func(step Step) bool { return step.Command == "kubectl delete pod pod -n ns" })
			if again := strings.Count(text, noController); again > 1 || deletes && again == 0 {
				t.Errorf("%s: it says %d times that it has no controller: %s", reason, again, text)
			}
			s.Bare = false
			for _, step := range guide.Steps(s) {
				if strings.Contains(step.Text, noController) {
					t.Errorf("%s: %s", reason, step.Text)
				}
			}
		}
	}
}

// TestNoPlaceholders: whatever is known of a situation, a command has real names, or is not there.
func TestNoPlaceholders(t *testing.T) {
	capitals := regexp.MustCompile(`(^|[ /=<])[A-Z][A-Z_-]+( |$)`)
	all := Situation{
		Pod: "pod", Namespace: "ns", Claim: "claim", Volume: "pv", Driver: "disk.example.com", Node: "n1", Wanted: "n2", Attachment: "csi-1",
		HolderNamespace: "ns", HolderName: "holder", HolderOwner: "Deployment/web", LeaseNamespace: "kube-system", AttacherPod: "attacher", NodeID: "i-1",
	}
	for reason, guide := range guides {
		for name, s := range map[string]Situation{"nothing": {}, "the pod alone": {Pod: "pod", Namespace: "ns"}, "all": all} {
			for _, step := range guide.Steps(s) {
				if word := capitals.FindString(step.Command); word != "" {
					t.Errorf("%s, with %s known: %q has the placeholder%s", reason, name, step.Command, word)
				}
			}
		}
	}
}
