package kubectl

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
)

// waiting is a pod that waits for a volume of a node that is lost.
func waiting(pod, volume string) diagnosis.Finding {
	return diagnosis.Finding{
		Verdict: diagnosis.Unsafe, Reason: explain.NodeNotReady, Subject: diagnosis.Ref{Resource: diagnosis.Pods, Namespace: "prod", Name: pod},
		Summary: "node worker-17.eu-central-1.compute.internal has the volume and is not Ready, so nothing unmounts it there, and its machine may still write",
		Volume:  &diagnosis.Volume{PersistentVolume: volume, Namespace: "prod", Claim: "data-" + pod, WantedOn: "worker-3"},
		Holders: []diagnosis.Holder{{Node: diagnosis.NodeState{Name: "worker-17.eu-central-1.compute.internal", State: diagnosis.NodeUnreachable}, Attachment: "csi-1"}},
		Clock:   []string{"nothing happens by itself"},
		Facts:   []diagnosis.Fact{{Component: "kubelet", Message: "said something"}},
		Next: []explain.Step{
			{Text: "If it can come back, bring it back.", Command: "kubectl get node worker-17.eu-central-1.compute.internal"},
			{
				Text: "Only if the machine is off: declare it out of service.", Danger: "if the machine still runs, two nodes write to the volume",
				Command: "kubectl taint node worker-17.eu-central-1.compute.internal node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
			},
		},
	}
}

func textOf(t *testing.T, width int, wide bool, findings ...diagnosis.Finding) []string {
	t.Helper()
	var out bytes.Buffer
	e := diagnosis.Explanation{Time: time.Unix(1e9, 0), Verdict: diagnosis.Unsafe, Findings: findings}
	if err := writeText(&out, &page{style: style{width: width}, now: e.Time, wide: wide}, e); err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

func lineOf(lines []string, text string) int {
	for i, line := range lines {
		if strings.Contains(line, text) {
			return i + 1
		}
	}
	return 0
}

// TestFirstLines: the verdict, the cause and the first command come first, and what they rest on only if it is asked for.
func TestFirstLines(t *testing.T) {
	for width, most := range map[int]int{80: 10, 120: 6, 200: 5} {
		lines := textOf(t, width, false, waiting("db-0", "pvc-aa92e0bf"))
		for _, text := range []string{"BLOCKED, UNSAFE TO FORCE", "may still write", "kubectl get node worker-17.eu-central-1.compute.internal"} {
			if at := lineOf(lines, text); at == 0 || at > most {
				t.Errorf("%d columns: %q stands on line %d:\n%s", width, text, at, strings.Join(lines, "\n"))
			}
		}
		for _, text := range []string{"Holder", "Last", "csi-1", "ReadWriteOnce"} {
			if at := lineOf(lines, text); at != 0 {
				t.Errorf("%d columns: %q stands on line %d without -o wide", width, text, at)
			}
		}
		wide := textOf(t, width, true, waiting("db-0", "pvc-aa92e0bf"))
		if holder, next := lineOf(wide, "Holder"), lineOf(wide, "Next"); holder < next || next == 0 {
			t.Errorf("%d columns, wide: Holder on line %d, Next on line %d", width, holder, next)
		}
	}
}

// TestCommandContinues: a command that is longer than the terminal is wide continues as a shell has it, and no name is broken.
func TestCommandContinues(t *testing.T) {
	lines := textOf(t, 80, false, waiting("db-0", "pvc-aa92e0bf"))
	command := strings.Join(lines, "\n")
	command = command[strings.Index(command, "kubectl taint"):]
	for i, line := range lines {
		if len(line) > 80 && strings.Contains(strings.TrimSpace(line), " ") && !strings.HasSuffix(line, ":NoExecute") {
			t.Errorf("line %d has %d columns: %s", i+1, len(line), line)
		}
	}
	command, _, _ = strings.Cut(strings.ReplaceAll(command, "\\\n", ""), "\n")
	if want := waiting("", "").Next[1].Command; strings.Join(strings.Fields(command), " ") != want {
		t.Errorf("%q, want %q", command, want)
	}
}

// TestQuotesAreNotBroken: a quoted word stays on one line.
func TestQuotesAreNotBroken(t *testing.T) {
	f := waiting("db-0", "pv")
	f.Next = []explain.Step{{Text: "Patch it.", Command: `kubectl patch volumeattachment csi-0123456789012345678901234567890123456789 --type=merge -p '{"metadata": {"finalizers": null}}'`}}
	if text := strings.Join(textOf(t, 60, false, f), "\n"); !strings.Contains(text, `'{"metadata": {"finalizers": null}}'`) {
		t.Error(text)
	}
}

// TestSameCause: what has one cause is one answer, with a count.
func TestSameCause(t *testing.T) {
	other := waiting("db-9", "pvc-9")
	other.Reason = explain.MountFailing
	lines := textOf(t, 200, false, waiting("db-0", "pvc-0"), waiting("db-1", "pvc-1"), waiting("db-2", "pvc-2"), other)
	if at := lineOf(lines, "pod/db-0 -n prod waits for volume pvc-0 (and 2 more objects with the same cause)"); at != 1 {
		t.Error(strings.Join(lines, "\n"))
	}
	if lineOf(lines, "db-1") != 0 || lineOf(lines, "pod/db-9 -n prod") == 0 {
		t.Error(strings.Join(lines, "\n"))
	}
	if lines := textOf(t, 200, true, waiting("db-0", "pvc-0"), waiting("db-0", "pvc-1")); lineOf(lines, "(and 1 more volume)") != 1 || lineOf(lines, "Also") == 0 {
		t.Error(strings.Join(lines, "\n"))
	}
}
