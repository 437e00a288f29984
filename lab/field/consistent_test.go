package field

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/diagnosis"
)

// TestCommandsAgree: what explain calls blocked, stuck lists, with the same cause; check counts what stuck lists; and no pod that waits is named
// as a holder.
func TestCommandsAgree(t *testing.T) {
	r, plugin := rig(t)
	situations, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range situations {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			var list diagnosis.StuckList
			r.read(t, plugin, &list, "stuck", "-n", s.Namespace())
			for i := range list.Items {
				checkHolders(t, &list.Items[i])
			}
			for _, subject := range r.subjects(t, s) {
				var e diagnosis.Explanation
				r.read(t, plugin, &e, "explain", subject, "-n", s.Namespace())
				checkListed(t, subject, &e, list.Items)
			}
		})
	}
	t.Run("check", func(t *testing.T) {
		t.Parallel()
		var list diagnosis.StuckList
		r.read(t, plugin, &list, "stuck", "-A")
		var health struct {
			Checks []struct {
				Name    string   `json:"name"`
				Objects []string `json:"objects"`
			} `json:"checks"`
		}
		r.read(t, plugin, &health, "check")
		for _, c := range health.Checks {
			if c.Name == "blocked" && len(c.Objects) != len(list.Items) {
				t.Errorf("check counts %d, stuck -A lists %d", len(c.Objects), len(list.Items))
			}
		}
	})
}

// read asks a question and reads the answer. The exit status says what is in it.
func (r *Rig) read(t *testing.T, plugin string, into any, args ...string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), plugin, append(args, "-o", "json")...)
	command.Env = r.environment()
	out, _ := command.Output()
	if err := json.Unmarshal(out, into); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

// subjects are what a person asks about, and all pods and claims beside.
func (r *Rig) subjects(t *testing.T, s *Situation) []string {
	t.Helper()
	all := slices.Clone(s.Ask)
	for kind, short := range map[string]string{"Pod": "pod/", "PersistentVolumeClaim": "pvc/"} {
		list, err := r.maker.resource(kind, s.Namespace()).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			if subject := short + list.Items[i].GetName(); !slices.Contains(all, subject) {
				all = append(all, subject)
			}
		}
	}
	return all
}

func checkListed(t *testing.T, subject string, e *diagnosis.Explanation, items []diagnosis.Finding) {
	t.Helper()
	for i := range e.Findings {
		f := &e.Findings[i]
		if f.Verdict != diagnosis.Blocked && f.Verdict != diagnosis.Unsafe {
			continue
		}
		same := func(item diagnosis.Finding) bool { return item.Subject == f.Subject && item.Reason == f.Reason }
		has := func(item diagnosis.Finding) bool {
			return slices.ContainsFunc(item.Holders, func(h diagnosis.Holder) bool {
				return h.Attachment != "" && h.Attachment == f.Subject.Name || f.Subject.Resource == diagnosis.Nodes && h.Node.Name == f.Subject.Name
			})
		}
		if !slices.ContainsFunc(items, same) && !slices.ContainsFunc(items, has) {
			t.Errorf("explain %s says %s: %s (%s) of %s, and stuck lists %s", subject, f.Verdict, f.Summary, f.Reason, f.Subject, causes(items))
		}
	}
	for i := range items {
		item := &items[i]
		about := item.Subject == e.Subject
		says := slices.ContainsFunc(e.Findings, func(f diagnosis.Finding) bool { return f.Subject == item.Subject && f.Reason == item.Reason })
		if about && !says {
			t.Errorf("stuck lists %s: %s (%s), and explain says %s (%s)", item.Subject, item.Summary, item.Reason, e.Summary, causes(e.Findings))
		}
	}
}

func causes(found []diagnosis.Finding) string {
	var all []string
	for i := range found {
		all = append(all, found[i].Subject.String()+" "+string(found[i].Reason))
	}
	if len(all) == 0 {
		return "nothing"
	}
	return strings.Join(all, ", ")
}

// checkHolders: a node where a pod waits for the volume is a holder only if another pod uses the volume there, and the pod is none.
func checkHolders(t *testing.T, f *diagnosis.Finding) {
	t.Helper()
	for _, h := range f.Having() {
		if f.Volume != nil && h.Node.Name == f.Volume.WantedOn && len(h.Pods)+h.HiddenPods == 0 {
			t.Errorf("%s: node %s waits for the volume, and is a holder", f.Subject, h.Node.Name)
		}
		if slices.ContainsFunc(h.Pods, func(p diagnosis.PodState) bool {
			return f.Volume != nil && h.Node.Name == f.Volume.WantedOn && p.Namespace == f.Subject.Namespace && p.Name == f.Subject.Name
		}) {
			t.Errorf("%s waits, and holds the volume that it waits for", f.Subject)
		}
	}
}
