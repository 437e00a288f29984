package churn

import (
	"strings"
	"testing"
	"time"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/hollow"
	"belay.dev/belay/lab/labdisk"
)

// at is a moment of the stories below, in milliseconds.
func at(ms int) time.Time {
	if ms < 0 {
		return time.Time{}
	}
	return time.Date(2026, 1, 2, 3, 4, 5, ms*int(time.Millisecond), time.UTC)
}

func publish(node string, from, to int) labdisk.Call {
	return labdisk.Call{Method: methodPublish, Driver: "d", Volume: "v", Node: node, Start: at(from), End: at(to), Code: "OK"}
}

func unpublish(node string, from, to int) labdisk.Call {
	c := publish(node, from, to)
	c.Method = methodUnpublish
	return c
}

func failed(c labdisk.Call) labdisk.Call { c.Code = "Internal"; return c }

func mount(node string, from, to int) hollow.Mount {
	return hollow.Mount{Node: node, Volume: kube.UniqueVolumeName("d", "v"), Exclusive: true, Began: at(from), Ended: at(to)}
}

func deleted(node string, from, to int) detach {
	return detach{volume: kube.UniqueVolumeName("d", "v"), node: node, sent: at(from), answered: at(to)}
}

func TestOracleFindsWhatWentWrong(t *testing.T) {
	for name, tc := range map[string]struct {
		history
		want string // part of the one breach; empty for none
	}{
		"a life as it should be": {history: history{
			calls:    []labdisk.Call{publish("a", 10, 20), unpublish("a", 60, 70), publish("b", 80, 90)},
			mounts:   []hollow.Mount{mount("a", 30, 40), mount("b", 95, -1)},
			detaches: []detach{deleted("a", 50, 55)},
		}},
		"published twice in a row to one node": {history: history{
			calls:  []labdisk.Call{publish("a", 10, 20), publish("a", 30, 40)},
			mounts: []hollow.Mount{mount("a", 25, -1)},
		}},
		"two nodes": {
			history: history{calls: []labdisk.Call{publish("a", 10, 20), publish("b", 30, 40)}},
			want:    "was published to b",
		},
		"two nodes, the first of which only may have it": {
			history: history{calls: []labdisk.Call{failed(publish("a", 10, 20)), publish("b", 30, 40)}},
			want:    "was published to b",
		},
		"two nodes after an unpublish that failed": {
			history: history{calls: []labdisk.Call{publish("a", 10, 20), failed(unpublish("a", 30, 40)), publish("b", 50, 60)}},
			want:    "was published to b",
		},
		"calls at the same time": {
			history: history{calls: []labdisk.Call{publish("a", 10, 30), unpublish("a", 20, 40)}},
			want:    "was in flight",
		},
		"mounted before it was published": {
			history: history{calls: []labdisk.Call{publish("a", 10, 20)}, mounts: []hollow.Mount{mount("a", 15, -1)}},
			want:    "not published all that time",
		},
		"unpublished from under a mount": {
			history: history{calls: []labdisk.Call{publish("a", 10, 20), unpublish("a", 40, 50)}, mounts: []hollow.Mount{mount("a", 25, 45)}},
			want:    "not published all that time",
		},
		"attachment deleted from under a mount": {
			history: history{
				calls: []labdisk.Call{publish("a", 10, 20)}, mounts: []hollow.Mount{mount("a", 25, 60)}, detaches: []detach{deleted("a", 30, 35)},
			},
			want: "deleted at",
		},
		"attachment deleted while another node mounts": {history: history{
			calls:    []labdisk.Call{publish("a", 10, 12), unpublish("a", 14, 16), publish("b", 18, 20)},
			mounts:   []hollow.Mount{mount("b", 25, 60)},
			detaches: []detach{deleted("a", 30, 35)},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.breaches()
			switch {
			case tc.want == "" && len(got) > 0:
				t.Errorf("breaches: %v", got)
			case tc.want != "" && (len(got) != 1 || !strings.Contains(got[0], tc.want)):
				t.Errorf("breaches: %v, want one with %q", got, tc.want)
			}
		})
	}
}
