package field

import (
	"strings"
	"testing"
)

// TestSituationsAreComplete: a reader can grade each answer, and all that is made is of a known kind.
func TestSituationsAreComplete(t *testing.T) {
	situations, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	if len(situations) < 56 {
		t.Errorf("%d situations", len(situations))
	}
	around, err := load(surroundings)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range situations {
		if s.Title == "" || s.Cause == "" || s.Step == "" || len(s.Sources) == 0 || len(s.Ask) == 0 {
			t.Errorf("%s lacks title, cause, step, sources or what is asked", s.Name)
		}
		for _, o := range s.Objects {
			if text(o, "kind") == "Node" {
				t.Errorf("%s has a Node: the scheduler tells the pods of all situations about it, so it belongs to %s", s.Name, surroundings)
			}
		}
	}
	does := map[string]bool{"Event": true, "NodeVolumes": true, "Delete": true, "Patch": true, "Wait": true}
	for _, s := range append(situations, around) {
		for _, o := range s.Objects {
			kind := text(o, "kind")
			if _, known := kinds[kind]; !known && !does[kind] {
				t.Errorf("%s has an object of the kind %q", s.Name, kind)
			}
		}
	}
	if _, err := Load("no-such"); err == nil || !strings.Contains(err.Error(), "no-such") {
		t.Errorf("a situation that does not exist: %v", err)
	}
}
