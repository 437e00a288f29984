package explain

import (
	"os/exec"
	"regexp"
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
		for _, cause := range []Cause{NoClass, ClassMissing, NodeWithoutScheduler, NoTopology, SourceNotReady, SecretOfClass, WrongParameters, NotSupported, StorageExhausted, StorageRefuses, DriverSilent, BoundToAnother, BoundToDeleted, OtherClass, HeldBySnapshot, ControllerResizes, NodeResizes, SizeRefused} {
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
