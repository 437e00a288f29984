package callcheck

import (
	"strings"
	"testing"
	"time"

	"belay.dev/belay/lab/labdisk"
)

// The letters of a story: P and U are the controller's calls, s, p, q and u those of a node: stage, publish, unpublish, unstage.
var methods = map[byte]string{
	'P': "ControllerPublishVolume", 'U': "ControllerUnpublishVolume",
	's': "NodeStageVolume", 'p': "NodePublishVolume", 'q': "NodeUnpublishVolume", 'u': "NodeUnstageVolume",
}

// story makes calls of words like "Pa", one after another; "Pa?" failed, "Pa!" was refused, "Pa~" is in flight at the end, and "Pa+3" returns after
// three more have begun. Those of the controller that overlap are marked as the driver marks them.
func story(words string) []labdisk.Call {
	var calls []labdisk.Call
	inFlight := labdisk.Call{} // the controller's call that ends last
	for i, w := range strings.Fields(words) {
		start := time.Date(2026, 1, 2, 3, 4, 5+10*i, 0, time.UTC)
		c := labdisk.Call{Sequence: uint64(i + 1), Method: methods[w[0]], Volume: "v", Node: w[1:2], Target: "/t", Start: start, End: start.Add(5 * time.Second), Code: "OK"}
		switch rest := w[2:]; {
		case rest == "?":
			c.Code = "Unavailable"
		case rest == "!":
			c.Code = "InvalidArgument"
		case rest == "~":
			c.Code, c.End = "", time.Time{}
		case rest != "":
			c.End = c.End.Add(time.Duration(rest[1]-'0') * 10 * time.Second)
		}
		if strings.HasPrefix(c.Method, "Controller") {
			if inFlight.End.After(c.Start) {
				c.Beside = inFlight.Sequence
			}
			if c.End.After(inFlight.End) {
				inFlight = c
			}
		}
		calls = append(calls, c)
	}
	return calls
}

func TestCheck(t *testing.T) {
	for name, tt := range map[string]struct {
		words string
		want  string // a part of what is wrong; empty for nothing
	}{
		"a move":                                           {"Pa sa pa qa ua Ua Pb sb pb", ""},
		"calls are repeated":                               {"Pa Pa sa sa pa pa qa qa ua ua Ua Ua Pb", ""},
		"an unpublish of what was never there":             {"Ua Pb Ua", ""},
		"a publish that failed is taken back":              {"Pa? Ua Pb", ""},
		"a stage that was refused":                         {"Pa sa! Ua Pb", ""},
		"a publish that failed is repeated":                {"Pa? Pa Ua Pb", ""},
		"a stage that was cut off is taken back":           {"Pa sa~ ua Ua Pb", ""},
		"the node unpublishes while another publish waits": {"Pa sa pa qa+1 pa qa ua Ua Pb", ""},

		"a publish begins during another node's unpublish": {"Pa Ua+1 Pb", "ControllerPublishVolume on node b, from Jan  2 03:04:25.000 to Jan  2 03:04:30.000, OK, began while call 2 about the volume was in flight"},
		"calls of two nodes begin during a publish":        {"Pa+2 Pb Ub Ua", "began while call 1 about the volume was in flight"},
		"an unpublish begins during the publish":           {"Pa+1 Ua", "ControllerUnpublishVolume on node a"},
		"published to a second node":                       {"Pa Pb", "ControllerPublishVolume on node b"},
		"published to a second node after a failure":       {"Pa Pb? Pb", "ControllerPublishVolume on node b"},
		"published elsewhere after an unpublish failed":    {"Pa Ua? Pb", "ControllerPublishVolume on node b"},
		"staged after an unpublish failed":                 {"Pa Ua? sa", "NodeStageVolume on node a"},
		"staged after a publish failed":                    {"Pa? sa", "NodeStageVolume on node a"},
		"unpublished while it is staged":                   {"Pa sa pa Ua Pb", "ControllerUnpublishVolume on node a"},
		"unpublished between the node's two calls":         {"Pa sa pa qa Ua ua", "ControllerUnpublishVolume on node a"},
		"staged before the publish has returned":           {"sa Pa", "NodeStageVolume on node a"},
		"staged after the unpublish":                       {"Pa sa pa qa ua Ua sa", "NodeStageVolume on node a"},
		"published to a pod without a stage":               {"Pa pa", "NodePublishVolume on node a"},
		"unstaged under a pod":                             {"Pa sa pa ua", "NodeUnstageVolume on node a"},
		"unpublished under a stage with unknown outcome":   {"Pa sa? Ua", "ControllerUnpublishVolume on node a"},
		"unpublished while the unstage is in flight":       {"Pa sa ua~ Ua Pb", "ControllerUnpublishVolume on node a"},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := strings.Join(Check(story(tt.words)), "\n")
			if tt.want == "" && wrong != "" || !strings.Contains(wrong, tt.want) {
				t.Errorf("%s: wrong is %q, want %q", tt.words, wrong, tt.want)
			}
		})
	}
}

// TestCheckKnowsVolumes: the calls of one volume say nothing about another.
func TestCheckKnowsVolumes(t *testing.T) {
	calls := story("Pa Pb")
	calls[1].Volume = "w"
	if wrong := Check(calls); len(wrong) > 0 {
		t.Error(wrong)
	}
}

// TestCheckIsFast: a volume of a long test has thousands of calls, some of which failed.
func TestCheckIsFast(t *testing.T) {
	words := strings.Repeat("Pa? Pa sa? sa pa qa ua? ua Ua? Ua Pb sb pb qb ub Ub ", 200)
	began := time.Now()
	if wrong := Check(story(words)); len(wrong) > 0 {
		t.Error(wrong)
	}
	t.Logf("%d calls in %s", len(strings.Fields(words)), time.Since(began))
}
