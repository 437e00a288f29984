package kubectl

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/cli-runtime/pkg/genericclioptions"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/preflight"
)

// aTerminal prints for a terminal of the width.
func aTerminal(t *testing.T, width int, print func(*plugin) error) string {
	t.Helper()
	return strings.Join(printed(t, width, print), "\n") + "\n"
}

// longName is a VolumeAttachment's.
const longName = "csi-e6e6ea3e8dd152fb232eaf1986d50ae3712b11674292fe62e3ac32b601bff422"

func blockedPod(namespace, name string, reason decision.Reason, why explain.Cause) diagnosis.Finding {
	return diagnosis.Finding{Subject: diagnosis.Ref{Resource: diagnosis.Pods, Namespace: namespace, Name: name}, Verdict: diagnosis.Blocked, Reason: reason, Why: why}
}

// TestObjectsCanBeCopied: no table shortens what waits. One long name does not move the other columns: it stands at the end of its line. In a namespace that
// was asked for, its name is not repeated; the cause is named where a reason has several.
func TestObjectsCanBeCopied(t *testing.T) {
	list := &diagnosis.StuckList{Items: []diagnosis.Finding{
		blockedPod("f-multi-rolling", "web-7d9f6c5b8-x2x4q", explain.RollingUpdateDeadlock, ""),
		blockedPod("f-prov-creds-wffc", "app-0", explain.ProvisioningFailed, explain.StorageRefuses),
	}}
	all := aTerminal(t, 80, func(p *plugin) error { return p.stuckTable(list, "") })
	for _, want := range []string{"pod/web-7d9f6c5b8-x2x4q -n f-multi-rolling", "pod/app-0 -n f-prov-creds-wffc"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not whole:\n%s", want, all)
		}
	}
	list.Namespace = "f-prov-creds-wffc"
	list.Items = list.Items[1:]
	one := aTerminal(t, 80, func(p *plugin) error { return p.stuckTable(list, "") })
	if strings.Contains(one, " -n ") || !strings.Contains(one, "pod/app-0 ") || !strings.Contains(one, "ProvisioningFailed   StorageRefuses") {
		t.Errorf("in a namespace:\n%s", one)
	}
	list.Namespace = ""
	list.Items = append(list.Items, diagnosis.Finding{Subject: diagnosis.Ref{Resource: diagnosis.Attachments, Name: longName}, Verdict: diagnosis.Blocked, Reason: explain.OrphanAttachment})
	long := aTerminal(t, 80, func(p *plugin) error { return p.stuckTable(list, "") })
	for line := range strings.Lines(long) {
		if utf8.RuneCountInString(strings.TrimRight(line, "\n")) > 80 && !strings.HasSuffix(line, "volumeattachment/"+longName+"\n") {
			t.Errorf("a line is too long:\n%s", long)
		}
	}
	if !strings.Contains(long, "volumeattachment/"+longName) || !strings.HasSuffix(strings.SplitN(long, "\n", 2)[0], "OBJECT") {
		t.Errorf("a long name:\n%s", long)
	}
}

// TestOrphansCommandsContinue: a command is broken as a shell has it.
func TestOrphansCommandsContinue(t *testing.T) {
	list := &diagnosis.OrphanList{Items: []diagnosis.Orphan{{Finding: diagnosis.Finding{Subject: diagnosis.Ref{Resource: diagnosis.Attachments, Name: longName}, Verdict: diagnosis.Blocked, Reason: explain.OrphanAttachment}}}}
	text := aTerminal(t, 80, func(p *plugin) error {
		p.flags = genericclioptions.NewConfigFlags(true)
		return p.orphansTable(list, "")
	})
	if want := "More      kubectl belay explain \\\n            volumeattachment/" + longName + "\n"; !strings.Contains(text, want) {
		t.Errorf("no %q in:\n%s", want, text)
	}
}

// TestHealthFits: what is not ok fits the terminal too, and names no file of the repository.
func TestHealthFits(t *testing.T) {
	report := &preflight.ClusterHealth{Time: time.Unix(1e9, 0), Checks: []preflight.Check{
		{Category: preflight.CategoryVolumes, Name: "blocked", Result: preflight.Failed, Message: "1 pod", Objects: []string{strings.Repeat("some words ", 20)}, Hint: "kubectl belay runbook"},
		{Category: preflight.CategoryVolumes, Name: "other", Result: preflight.Warning, Message: "m"},
		{Category: preflight.CategoryVolumes, Name: "third", Result: preflight.OK, Message: "m"},
	}}
	var out bytes.Buffer
	p := &plugin{}
	p.Out, p.style = &out, style{width: 80}
	if err := p.healthText(report, &checkOptions{}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if utf8.RuneCountInString(strings.TrimRight(line, "\n")) > 80 {
			t.Errorf("a line is too long: %s", line)
		}
	}
	if !strings.HasSuffix(out.String(), "\n3 checks: 1 failed, 1 warning.\n") {
		t.Error(out.String())
	}
}

// TestRunbookOfPage: a section of another page is printed as text, with what is in its tables.
func TestRunbookOfPage(t *testing.T) {
	out, err := offline(t, "runbook", "migrate#disable-it-by-distribution")
	if err != nil || !strings.HasPrefix(out, "Disable it, by distribution\n") || !strings.Contains(out, "kubeadm") || strings.Contains(out, "|---") || strings.Contains(out, "](") || strings.Contains(out, "Sources") {
		t.Errorf("%v:\n%s", err, out)
	}
	if _, err := offline(t, "runbook", "migrate#no-such"); err == nil || Status(err) != StatusError {
		t.Errorf("a section that does not exist: %v", err)
	}
}
