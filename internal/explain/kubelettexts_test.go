package explain

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestTextsOfKubelet: each text has a reason with a guide, and a sentence and a first step of its own where the guide is about texts.
func TestTextsOfKubelet(t *testing.T) {
	for _, text := range slices.Concat(hostPathTexts, mountTexts, storageTexts, containerTexts) {
		g, ok := guides[text.reason]
		if !ok {
			t.Errorf("%s: no guide to %s", text.pattern, text.reason)
		}
		s := Situation{Pod: "p", Namespace: "ns", Wanted: "n1", Volume: "pv", Own: PodVolume{Name: "v", Objects: []string{"ConfigMap app"}}}
		s.Mount = &MountCause{Reason: text.reason, text: &text, groups: slices.Repeat([]string{"group"}, text.pattern.NumSubexp()+1)}
		if ownTexts := g.Summary(Situation{Wanted: "n1", Detail: "d"}) == mountCause(Situation{Wanted: "n1", Detail: "d"}); ownTexts && (text.why == "" || len(text.steps) == 0 && !HasSteps(text.said)) {
			t.Errorf("%s: no sentence, or no step", text.pattern)
		}
		printed := []string{g.Summary(s)}
		for _, step := range g.Steps(s) {
			if printed = append(printed, step.Text, step.Command); step.Command != "" && !strings.HasPrefix(step.Command, "kubectl ") {
				t.Errorf("%s: the command %q", text.pattern, step.Command)
			}
		}
		for _, p := range printed {
			if leftOpen.MatchString(p) {
				t.Errorf("%s: a name is missing in %q", text.pattern, p)
			}
		}
	}
}

var leftOpen = regexp.MustCompile(`\{(\d|[a-z]+)\}|\x00`)

// TestHostileNamesInCommands: the names in an event are words of a shell, and no options.
func TestHostileNamesInCommands(t *testing.T) {
	v := PodVolume{Name: "v", Kind: "csi"}
	for name, want := range map[string]string{
		"disk.x":           "kubectl get csidriver disk.x -o",
		"$(reboot)":        "kubectl get csidriver '$(reboot)' -o",
		"--kubeconfig=/x":  "",
		"';reboot;'":       `kubectl get csidriver ''\'';reboot;'\''' -o`,
		"{node}{pv}{1}{2}": "kubectl get csidriver '{node}{pv}{1}{2}' -o",
	} {
		read, ok := ReadMount(`volume mode "Ephemeral" not supported by driver `+name+` (only supports ["Persistent"])`, v)
		if !ok {
			t.Fatal(name)
		}
		steps := GuideTo(read.Reason).Steps(Situation{Wanted: "n1", Volume: "pv", Mount: &read, Own: v})
		if command := steps[0].Command; want == "" && command != "" || !strings.HasPrefix(command, want) {
			t.Errorf("%s: %q, want %q", name, command, want)
		}
	}
}
