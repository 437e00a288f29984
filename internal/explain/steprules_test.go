package explain

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// eachStep calls a function with the steps of each guide in many situations, and with those of each text of kubelet.
func eachStep(t *testing.T, do func(t *testing.T, name string, steps []Step)) {
	t.Helper()
	full := Situation{
		Pod: "pod", Namespace: "ns", Claim: "claim", Volume: "pv", Driver: "disk.example.com", Node: "n1", Wanted: "n2", Attachment: "csi-1", Policy: "Delete",
		HolderNamespace: "ns", HolderName: "holder", LeaseNamespace: "kube-system", AttacherPod: "attacher", NodeID: "i-1", Class: "gold", Provisioner: "disk.example.com",
		ProvisionerPod: "controller", ProvisionerNamespace: "kube-system",
	}
	full.Answer = Answer{Handle: "vol-1", Ask: "aws ec2 describe-volumes --volume-ids vol-1", AskSource: "https://docs.example.com/x", Zones: []Zone{{Name: "b", Nodes: "n3"}}, Call: Attach}
	mount, bare, ended, encodedError, kept := full, full, full, full, full
	mount.Call, bare.Bare, ended.HolderEnded, encodedError.Detail = Mount, true, true, encoded
	ended.HolderEnded, kept.HolderEnded, kept.Policy = true, true, "Retain"
	for reason, guide := range guides {
		for _, cause := range causes {
			for _, s := range []Situation{full, mount, bare, ended, encodedError, kept, {}} {
				s.Cause = cause
				do(t, string(reason)+" "+string(cause), guide.Steps(s))
			}
		}
	}
	for _, text := range slices.Concat(hostPathTexts, mountTexts, storageTexts, containerTexts) {
		do(t, text.pattern.String(), text.steps)
	}
}

// TestURLsCanBeCopied: what follows a URL in a step is not printed behind it, as a full stop would be.
func TestURLsCanBeCopied(t *testing.T) {
	behind := regexp.MustCompile(`https://\S+( ?[.,;)]+)?(\s|$)`)
	eachStep(t, func(t *testing.T, name string, steps []Step) {
		t.Helper()
		for _, step := range steps {
			for _, found := range behind.FindAllString(step.Text, -1) {
				if trimmed := strings.TrimSpace(found); strings.TrimRight(trimmed, " .,;)") != trimmed {
					t.Errorf("%s: %q in %q", name, found, step.Text)
				}
			}
			if strings.Contains(step.Text, "https://") && strings.HasSuffix(step.Text, " .") {
				t.Errorf("%s: %q", name, step.Text)
			}
		}
	})
}

// TestNoFileOfTheRepository: who runs the plugin has no docs directory.
func TestNoFileOfTheRepository(t *testing.T) {
	eachStep(t, func(t *testing.T, name string, steps []Step) {
		t.Helper()
		for _, step := range steps {
			if strings.Contains(strings.ReplaceAll(step.Text, "https://kubernetes.io/docs/", ""), " (docs/") || strings.Contains(step.Text, " docs/") {
				t.Errorf("%s: %s", name, step.Text)
			}
		}
	})
}

// TestLogStepsPrintTheLog: a step that says to read a log has a command that prints it, or none.
func TestLogStepsPrintTheLog(t *testing.T) {
	reads := regexp.MustCompile(`^Read (?:in )?(?:the logs? |kubelet's log|its log)`)
	eachStep(t, func(t *testing.T, name string, steps []Step) {
		t.Helper()
		for _, step := range steps {
			if reads.MatchString(step.Text) && step.Command != "" && !strings.Contains(step.Command, "kubectl logs") && !strings.Contains(step.Command, "journalctl") {
				t.Errorf("%s: %q has the command %q", name, step.Text, step.Command)
			}
		}
	})
}

// TestDrainAsksFirst: no command to drain a node overrides what kubectl refuses for the data of pods (k8s.io/kubectl v0.36.3 pkg/drain/filters.go), and
// before it the mount is looked at and kubelet restarted.
func TestDrainAsksFirst(t *testing.T) {
	drains := 0
	eachStep(t, func(t *testing.T, name string, steps []Step) {
		t.Helper()
		for i, step := range steps {
			if !strings.HasPrefix(step.Command, "kubectl drain") {
				continue
			}
			drains++
			if strings.Contains(step.Command, "--force") || strings.Contains(step.Command, "--delete-emptydir-data") {
				t.Errorf("%s: %s", name, step.Command)
			}
			before := ""
			for _, earlier := range steps[:i] {
				before += earlier.Text + " " + earlier.Command + "\n"
			}
			for _, word := range []string{"journalctl -u kubelet", "mountinfo", "systemctl restart kubelet"} {
				if !strings.Contains(before, word) {
					t.Errorf("%s: nothing before the drain has %q: %s", name, word, before)
				}
			}
		}
	})
	if drains == 0 {
		t.Error("no guide drains a node")
	}
}

// TestTaintIsRemoved: who is to declare a node out of service is also to remove the taint: Kubernetes does not (KEP-2268).
func TestTaintIsRemoved(t *testing.T) {
	eachStep(t, func(t *testing.T, name string, steps []Step) {
		t.Helper()
		for i, step := range steps {
			if !strings.Contains(step.Command, outOfService) {
				continue
			}
			if !slices.ContainsFunc(steps[i+1:], func(s Step) bool { return strings.HasSuffix(s.Command, "node.kubernetes.io/out-of-service-") }) {
				t.Errorf("%s: the taint of %q is not removed", name, step.Text)
			}
		}
	})
}

// TestDataIsKeptFirst: where the end of a claim deletes its volume, the first steps name the policy and keep the data, and the delete says what it destroys.
func TestDataIsKeptFirst(t *testing.T) {
	for policy, want := range map[string]struct {
		steps  int
		danger string
	}{
		"Delete": {3, "volume pv (10Gi) and its data are deleted"}, "": {3, "if its reclaim policy is not Retain"}, "Retain": {2, ""},
	} {
		for _, ended := range []bool{true, false} {
			steps := GuideTo(ClaimTerminating).Steps(Situation{Claim: "data", Namespace: "ns", Volume: "pv", HasSize: "10Gi", Policy: policy, HolderName: "job-x", HolderNamespace: "ns", HolderEnded: ended})
			last := steps[len(steps)-1]
			if len(steps) != want.steps || last.Command != "kubectl delete pod job-x -n ns" || !strings.Contains(last.Danger, want.danger) || want.danger == "" != (last.Danger == "" || !ended && last.Danger == "what the pod does is interrupted") {
				t.Errorf("%q %v: %+v", policy, ended, steps)
			}
			if policy == "Retain" {
				continue
			}
			if policy != "" && !strings.Contains(steps[0].Text, "reclaim policy "+policy) || strings.Contains(steps[0].Text, "Delete pod") || !strings.Contains(steps[1].Command, `"Retain"`) {
				t.Errorf("%q %v: %+v", policy, ended, steps)
			}
		}
	}
}

// TestRepairHasOneMachine: the pod stays off, the volume is attached again to one machine for the repair, and the danger stands with that step.
func TestRepairHasOneMachine(t *testing.T) {
	steps := GuideTo(FileSystemDamaged).Steps(Situation{Volume: "pv", Claim: "claim", Namespace: "ns", Wanted: "n1", Answer: Answer{FSType: "ext4"}})
	text := ""
	for _, step := range steps {
		text += step.Text + " " + step.Danger + "\n"
	}
	for _, words := range []string{"snapshot", "stays off", "e2fsck -f", "volumeMode Block", "mounted nowhere", "destroys it"} {
		if !strings.Contains(text, words) {
			t.Errorf("no %q in:\n%s", words, text)
		}
	}
	if strings.Index(text, "snapshot") > strings.Index(text, "e2fsck") {
		t.Errorf("the repair comes before the snapshot:\n%s", text)
	}
	if xfs := GuideTo(FileSystemDamaged).Steps(Situation{Volume: "pv", Wanted: "n1", Answer: Answer{FSType: "xfs"}}); !strings.Contains(xfs[2].Text, "xfs_repair") || strings.Contains(xfs[2].Text, "e2fsck") {
		t.Errorf("xfs: %s", xfs[2].Text)
	}
}

// TestBelayIsNamedWhereItRuns: an answer refers to what belay-attacher does only if it runs, and says what it does not look at.
func TestBelayIsNamedWhereItRuns(t *testing.T) {
	for _, runs := range []bool{true, false} {
		steps := GuideTo(BackendDisagrees).Steps(Situation{Volume: "pv", Answer: Answer{BelayFrees: runs}})
		i := slices.IndexFunc(steps, func(s Step) bool { return strings.Contains(s.Text, "belay-attacher") })
		if (i >= 0) != runs || i >= 0 && steps[i].Danger == "" {
			t.Errorf("%v: %+v", runs, steps)
		}
	}
}

// TestClassIsNotChosen: of several StorageClasses none is put into a command, and what cannot be changed again says so.
func TestClassIsNotChosen(t *testing.T) {
	for _, class := range []string{"", "gold"} {
		steps := GuideTo(ClaimNotBound).Steps(Situation{Claim: "data", Namespace: "ns", Cause: NoClass, AClass: class})
		patches := slices.ContainsFunc(steps, func(s Step) bool { return strings.Contains(s.Command, "storageClassName") })
		if patches != (class != "") || len(steps) != 3 {
			t.Errorf("%q: %+v", class, steps)
		}
		for _, step := range steps[1:] {
			if step.Danger == "" {
				t.Errorf("%q: %s has no danger", class, step.Text)
			}
		}
	}
}

// TestCausesAreListed: the list of the tests has all causes that a text can have.
func TestCausesAreListed(t *testing.T) {
	used := map[Cause]bool{}
	for _, text := range slices.Concat(hostPathTexts, mountTexts, storageTexts, containerTexts) {
		used[text.cause] = true
		if text.cause == "" && (text.reason == VolumeUnsupported || text.reason == ContainerMountFailing) {
			t.Errorf("%s has no cause: a list of what is stuck would name the reason alone", text.pattern)
		}
	}
	for _, cause := range slices.Sorted(maps.Keys(used)) {
		if !slices.Contains(causes, cause) {
			t.Errorf("%s is not in the list", cause)
		}
	}
}
