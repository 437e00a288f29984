package diagnosis

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
)

// TestListsSayWhatExplainSays: what Explain calls blocked is in the list of what is stuck, and both lists name the causes that Explain
// names, in clusters that chance made and in those of the lab's situations.
func TestListsSayWhatExplainSays(t *testing.T) {
	for seed := range uint64(500) {
		s := chance{rand.New(rand.NewPCG(seed, 2))}.snapshot()
		s.AllNamespaces = true
		s.Whole = append(s.Whole, Pods, Claims, Volumes, Attachments)
		names := map[string]bool{}
		s.Attachments = slices.DeleteFunc(s.Attachments, func(va *storagev1.VolumeAttachment) bool {
			again := names[va.Name]
			names[va.Name] = true
			return again
		})
		checkConsistent(t, "seed", seed, s)
	}
	files, err := filepath.Glob("testdata/*/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d snapshots (%v)", len(files), err)
	}
	for _, file := range files {
		document, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var stored struct{ Snapshot *Snapshot }
		if err := json.Unmarshal(document, &stored); err != nil {
			t.Fatal(err)
		}
		stored.Snapshot.AllNamespaces = true
		checkConsistent(t, "file", file, stored.Snapshot)
	}
}

func checkConsistent(t *testing.T, of string, which any, s *Snapshot) {
	t.Helper()
	list := Stuck(s, "", 0).Items
	listed := func(f *Finding) bool {
		return slices.ContainsFunc(list, func(item Finding) bool {
			told := f.Subject.Resource == Attachments && (slices.ContainsFunc(item.Holders, func(h Holder) bool { return h.Attachment == f.Subject.Name }) ||
				item.Subject == Ref{Resource: Nodes, Name: f.Holders[0].Node.Name} && item.Reason == f.Reason)
			return item.Subject == f.Subject && item.Reason == f.Reason || told
		})
	}
	for _, r := range refsIn(s) {
		e, err := Explain(s, r)
		if err != nil {
			continue // it is hidden
		}
		for i := range e.Findings {
			if f := &e.Findings[i]; stuck(f) && f.Reason != "Incomplete" && !listed(f) {
				t.Errorf("%s %v: explain %s: %s of %s is not in the list", of, which, r, f.Reason, f.Subject)
			}
		}
	}
	items := list
	for _, o := range Orphans(s, false).Items {
		items = append(items, o.Finding)
	}
	for i := range items {
		f := &items[i]
		e, err := Explain(s, f.Subject)
		if err != nil || f.Subject.Resource == Nodes || f.Subject.Name == "" {
			continue
		}
		if !slices.ContainsFunc(e.Findings, func(of Finding) bool { return of.Subject == f.Subject && of.Reason == f.Reason }) {
			t.Errorf("%s %v: a list says %s of %s, and explain %s %s", of, which, f.Reason, f.Subject, e.Verdict, e.Reason)
		}
	}
}

// refsIn are the objects that a list has findings about.
func refsIn(s *Snapshot) (all []Ref) {
	for _, o := range s.Pods {
		all = append(all, Ref{Resource: Pods, Namespace: o.Namespace, Name: o.Name})
	}
	for _, o := range s.Claims {
		all = append(all, Ref{Resource: Claims, Namespace: o.Namespace, Name: o.Name})
	}
	for _, o := range s.Volumes {
		all = append(all, Ref{Resource: Volumes, Name: o.Name})
	}
	for _, o := range s.Attachments {
		all = append(all, Ref{Resource: Attachments, Name: o.Name})
	}
	return all
}
