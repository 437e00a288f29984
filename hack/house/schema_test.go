package house

import (
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/far"
	"belay.dev/belay/internal/preflight"
)

// output are pages of docs/output.
func output(t *testing.T, pages ...string) (text string) {
	t.Helper()
	for _, page := range pages {
		text += read(t, filepath.Join(root, "docs", "output", page))
	}
	return text
}

// TestOutputOfExplainIsDocumented checks that docs/output has a table for each type of the output, with each of its fields and no
// others.
func TestOutputOfExplainIsDocumented(t *testing.T) {
	page := output(t, "README.md", "explain.md", "lists.md")
	checkTables(t, page, typesOf(reflect.TypeFor[diagnosis.Explanation]()))
	for _, list := range []reflect.Type{reflect.TypeFor[diagnosis.StuckList](), reflect.TypeFor[diagnosis.OrphanList](), reflect.TypeFor[diagnosis.NodeMap](), reflect.TypeFor[preflight.ClusterHealth]()} {
		types := typesOf(list)
		// These have the fields of another type too, whose table the page refers to.
		types["Orphan"] = without(types["Orphan"], fieldsOf(reflect.TypeFor[diagnosis.Finding]()))
		types["NodeVolume"] = without(types["NodeVolume"], fieldsOf(reflect.TypeFor[diagnosis.Volume]()))
		for kind, fields := range types {
			if len(fields) == 0 {
				delete(types, kind)
			}
		}
		checkTables(t, page, types)
	}
	for _, value := range []diagnosis.Verdict{diagnosis.Clear, diagnosis.InProgress, diagnosis.Unknown, diagnosis.Blocked, diagnosis.Unsafe} {
		if !strings.Contains(page, "`"+string(value)+"`") {
			t.Errorf("the verdict %s is not documented", value)
		}
	}
	if !strings.Contains(page, "`"+diagnosis.APIVersion+"`") {
		t.Errorf("the version %s is not documented", diagnosis.APIVersion)
	}
}

// TestOutputOfTimelineIsDocumented checks timeline.md in the same way; what explain prints too is in the other page. The hops are
// those of docs/timeline.md.
func TestOutputOfTimelineIsDocumented(t *testing.T) {
	page := output(t, "timeline.md")
	types := typesOf(reflect.TypeFor[diagnosis.Timeline]())
	for kind := range typesOf(reflect.TypeFor[diagnosis.Explanation]()) {
		delete(types, kind)
	}
	checkTables(t, page, types)
	page += read(t, filepath.Join(root, "docs", "timeline.md"))
	for _, name := range []any{
		diagnosis.HopPodDeleted, diagnosis.HopEnded, diagnosis.HopUnmounted, diagnosis.HopDetachRequested, diagnosis.HopDetached, diagnosis.HopPodCreated,
		diagnosis.HopScheduled, diagnosis.HopAttachRequested, diagnosis.HopTaken, diagnosis.HopAttached, diagnosis.HopReported, diagnosis.HopMounted,
		diagnosis.HopStarted, diagnosis.HopReady, diagnosis.HopDone, diagnosis.HopUnknown, diagnosis.HopWaiting, diagnosis.HopPending, diagnosis.HopNotNeeded,
	} {
		if !strings.Contains(page, fmt.Sprintf("`%s`", name)) {
			t.Errorf("%s is not documented", name)
		}
	}
}

// TestOutputOfEvidenceIsDocumented checks evidence.md in the same way; what explain prints too is in the other page.
func TestOutputOfEvidenceIsDocumented(t *testing.T) {
	page := output(t, "evidence.md")
	for _, root := range []reflect.Type{reflect.TypeFor[diagnosis.NodeEvidence](), reflect.TypeFor[diagnosis.FencePlan](), reflect.TypeFor[far.ImportPlan]()} {
		types := typesOf(root)
		for kind := range typesOf(reflect.TypeFor[diagnosis.Explanation]()) {
			delete(types, kind)
		}
		checkTables(t, page, types)
	}
	for _, value := range []any{
		diagnosis.Fenceable, diagnosis.NotFenceable, diagnosis.EvidenceUnknown, diagnosis.Held, diagnosis.BeingFenced, diagnosis.ProvenOff, diagnosis.Contradicted,
		diagnosis.StatePoweredOff, diagnosis.DeleteFence, far.Accepted, far.Created, far.Unchanged, far.Refused,
	} {
		if !strings.Contains(page, fmt.Sprintf("`%s`", value)) {
			t.Errorf("%s is not documented", value)
		}
	}
}

func without(fields, others []string) []string {
	return slices.DeleteFunc(fields, func(name string) bool { return slices.Contains(others, name) })
}

// checkTables compares the fields of types with the tables of a page.
func checkTables(t *testing.T, page string, types map[string][]string) {
	t.Helper()
	for kind, fields := range types {
		_, table, ok := strings.Cut(page, "\n## "+kind+"\n")
		if !ok {
			t.Errorf("no table describes the type %s", kind)
			continue
		}
		table, _, _ = strings.Cut(table, "\n#")
		documented := map[string]bool{}
		for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(table, -1) {
			for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
				documented[name[1]] = true
			}
		}
		for _, name := range fields {
			if !documented[name] {
				t.Errorf("the table of %s has no field %s", kind, name)
			}
			delete(documented, name)
		}
		for name := range documented {
			t.Errorf("the table of %s has the field %s, which the type does not have", kind, name)
		}
	}
}

// typesOf are the structs that a value of the type contains, each with the names of its fields in JSON.
func typesOf(root reflect.Type) map[string][]string {
	found := map[string][]string{}
	var visit func(reflect.Type)
	visit = func(t reflect.Type) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if _, seen := found[t.Name()]; seen || t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]() {
			return
		}
		found[t.Name()] = fieldsOf(t)
		for f := range t.Fields() {
			if !f.Anonymous {
				visit(f.Type)
			}
		}
	}
	visit(root)
	return found
}

func fieldsOf(t reflect.Type) (names []string) {
	for f := range t.Fields() {
		if f.Anonymous {
			names = append(names, fieldsOf(f.Type)...)
			continue
		}
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" {
			names = append(names, name)
		}
	}
	return names
}
