package kubectl

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
)

// TestOverview runs stuck, orphans and map on a volume that a pod of another node has, and on a VolumeAttachment that no pod needs.
func TestOverview(t *testing.T) {
	server.Start(t)
	namespaces(t, "over", "veiled")
	create(t, node("over-a", "v-over", "v-veiled"))
	create(t, node("over-b"))
	held(t, "over", "v-over", "over-a", "over-b")
	held(t, "veiled", "v-veiled", "over-a", "over-b")
	pv := fixture.PersistentVolume("v-idle", driver, "v-idle")
	create(t, pv)
	idle := fixture.Attachment("by-hand", driver, "over-b", pv.Name)
	idle.Status.Attached = true
	create(t, idle)
	all := apiserver.Kubeconfig(t, server.Config())

	list := run(t, all, "stuck", "-A")
	if list.status != StatusBlocked || !strings.HasPrefix(list.out, "SINCE") || !strings.Contains(list.out, "pod/over-waiter -n over") || !strings.Contains(list.out, "pod/veiled-waiter -n veiled") || !strings.Contains(list.out, "over-a (over-holder)") {
		t.Errorf("exit status %d, want 2 and both pods:\n%s%s", list.status, list.out, list.err)
	}
	if one := run(t, all, "stuck", "-n", "over", "-o", "name"); one.out != "pod/over-waiter\n" || one.status != StatusBlocked {
		t.Errorf("names, exit status %d: %q", one.status, one.out)
	}
	if young := run(t, all, "stuck", "-n", "over", "--older-than", "1h"); young.status != StatusClear || young.out != "" || !strings.Contains(young.err, "Nothing is blocked in namespace over.") {
		t.Errorf("older than an hour, exit status %d: %s%s", young.status, young.out, young.err)
	}
	began := time.Now()
	waited := run(t, all, "stuck", "-n", "over", "--wait", "--timeout", "1s")
	if waited.status != StatusBlocked || time.Since(began) < time.Second || !strings.Contains(waited.err, "Stopped waiting after 1s") || !strings.Contains(waited.err, "1 blocked; the longest is pod/over-waiter -n over (HeldByRunningPod)") {
		t.Errorf("--wait, exit status %d:\n%s%s", waited.status, waited.out, waited.err)
	}
	if wrong := run(t, all, "stuck", "--timeout", "1s"); wrong.status != StatusError || !strings.Contains(wrong.err, "--timeout needs --wait") {
		t.Errorf("--timeout alone, exit status %d: %s", wrong.status, wrong.err)
	}

	orphans := run(t, all, "orphans", "-o", "json")
	var document diagnosis.OrphanList
	if err := json.Unmarshal([]byte(orphans.out), &document); err != nil || document.Kind != "OrphanList" || document.APIVersion != diagnosis.APIVersion {
		t.Fatalf("%v: %s%s", err, orphans.out, orphans.err)
	}
	byHand := slices.IndexFunc(document.Items, func(o diagnosis.Orphan) bool { return o.Subject.Name == "by-hand" && o.Kind == diagnosis.Unneeded })
	needed := slices.ContainsFunc(document.Items, func(o diagnosis.Orphan) bool { return o.Volume.PersistentVolume == "v-over" })
	if byHand < 0 || needed || orphans.status < StatusBlocked {
		t.Errorf("orphans, exit status %d: %s", orphans.status, orphans.out)
	}
	if text := run(t, all, "orphans"); !strings.Contains(text.out, "va/by-hand") || !strings.Contains(text.out, "Next ") {
		t.Errorf("no cause or no next step:\n%s", text.out)
	}

	m := run(t, all, "map", "-o", "wide", "--driver", driver)
	if m.status != StatusClear || !strings.Contains(m.out, "v-over (attached, in use, reported)") || strings.ContainsAny(m.out, "█#") {
		t.Errorf("map, exit status %d:\n%s%s", m.status, m.out, m.err)
	}
	if none := run(t, all, "map", "--node", "no-such-node"); none.status != StatusError || !strings.Contains(none.err, "node no-such-node does not exist") {
		t.Errorf("map of a node that does not exist, exit status %d: %s", none.status, none.err)
	}
	if before, after := run(t, all, "explain", "va/"+kube.AttachmentName("v-over", driver, "over-a")), run(t, all, "stuck", "-o", "no"); before.status != StatusClear || after.status != StatusError {
		t.Errorf("exit status %d and %d", before.status, after.status)
	}
	checkMember(t)
}

// checkMember: a reader of one namespace sees no name of another, learns what is missing, and nothing is called an orphan.
func checkMember(t *testing.T) {
	t.Helper()
	kubeconfig := member(t, "over-member", "over")
	for _, args := range [][]string{{"stuck", "-n", "over"}, {"stuck", "-A"}, {"stuck", "-n", "veiled"}, {"orphans"}, {"orphans", "--all"}, {"map"}, {"map", "--node", "over-a"}} {
		for _, format := range []string{"json", "yaml", "wide", "name"} {
			for _, command := range [][]string{args, append(slices.Clip(args), "-o", format)} {
				text := run(t, kubeconfig, command...)
				for _, hidden := range []string{"veiled-", "veiled/"} {
					if strings.Contains(text.out+text.err, hidden) {
						t.Errorf("%v has a name of another namespace:\n%s%s", command, text.out, text.err)
					}
				}
				if all := text.out + text.err; !strings.Contains(all, "forbidden") && !strings.Contains(all, "lack permission to ") {
					t.Errorf("%v does not say which permission is missing:\n%s%s", command, text.out, text.err)
				}
				if args[0] == "orphans" && (text.status != StatusError || strings.Contains(text.out, "by-hand")) {
					t.Errorf("%v called something an orphan, exit status %d:\n%s%s", command, text.status, text.out, text.err)
				}
			}
		}
	}
	if own := run(t, kubeconfig, "stuck", "-n", "over"); own.status != StatusBlocked || !strings.Contains(own.out, "over-waiter") {
		t.Errorf("exit status %d, want 2 and the pod:\n%s%s", own.status, own.out, own.err)
	}
	if orphans := run(t, kubeconfig, "orphans"); !strings.Contains(orphans.err, "Nothing may be called an orphan") || !strings.Contains(orphans.err, "persistentvolumeclaims, pods: the answer") {
		t.Errorf("the missing permission is not named:\n%s%s", orphans.out, orphans.err)
	}
}

// TestTableFits: on a terminal, names are shortened in the middle until the lines fit, and a column that cannot fit is left whole.
func TestTableFits(t *testing.T) {
	table := &table{columns: []string{"OBJECT", "REASON"}, flexible: []string{"OBJECT"}}
	table.add("pod production/a-name-that-is-very-long-0", "HeldByRunningPod\x1b[2J")
	table.add("", "Other")
	var out bytes.Buffer
	if err := table.print(&out, style{width: 48}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for _, line := range lines {
		if len([]rune(line)) > 48 {
			t.Errorf("%d columns: %s", len([]rune(line)), line)
		}
	}
	if !strings.HasPrefix(lines[1], "pod produ..") || strings.Contains(out.String(), "\x1b") || !strings.HasPrefix(lines[2], "-") {
		t.Errorf("printed:\n%s", out.String())
	}
}

func TestSlotBar(t *testing.T) {
	t.Setenv("LC_ALL", "C")
	for want, d := range map[string]diagnosis.DriverSlots{
		"":           {Used: 3},
		"..........": {Limit: new(int32(25))},
		"#.........": {Used: 1, Limit: new(int32(100))},
		"#####.....": {Used: 5, Limit: new(int32(10))},
		"##########": {Used: 12, Limit: new(int32(10))},
	} {
		if got := slotBar(&d); got != want {
			t.Errorf("%+v: %q, want %q", d, got, want)
		}
	}
	t.Setenv("LC_ALL", "en_US.UTF-8")
	if got := slotBar(&diagnosis.DriverSlots{Used: 5, Limit: new(int32(10))}); got != "█████░░░░░" {
		t.Errorf("with UTF-8: %q", got)
	}
}
