package callcheck

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"google.golang.org/grpc/codes"

	"belay.dev/belay/lab/labdisk"
)

// patience bounds the search for an order of one volume's calls.
const patience = time.Minute

// state is what the caller knows from a volume's calls, if they came one after another: what may be so, as no call that would end it has
// succeeded, and what is certain. The sets are sorted and end each element with a newline, so that states compare.
type state struct {
	mayHold, holds   string // nodes
	mayStage, staged string // nodes
	mayPublish       string // "node target"
}

// Check returns what is wrong with the calls about exclusive volumes: a text for each call that began beside another one, and one for each
// volume without an order of its calls in which each was permitted. The calls must be all since the volumes were made.
func Check(calls []labdisk.Call) []string {
	var wrong []string
	of := map[string][]porcupine.Operation{}
	for i, c := range calls {
		if _, ok := rules[c.Method]; !ok || c.Volume == "" {
			continue
		}
		of[c.Volume] = append(of[c.Volume], operation(i, c))
		// An order exists for many calls that overlap, but a caller that has not had an answer must not send the next one (S4).
		if c.Beside != 0 {
			wrong = append(wrong, fmt.Sprintf("volume %s: %s, began while call %d about the volume was in flight", c.Volume, describe(c), c.Beside))
		}
	}
	for _, volume := range slices.Sorted(maps.Keys(of)) {
		result, info := porcupine.CheckOperationsVerbose(model, of[volume], patience)
		switch result {
		case porcupine.Ok:
		case porcupine.Unknown:
			wrong = append(wrong, fmt.Sprintf("volume %s: no order of its %d calls was found within %s", volume, len(of[volume]), patience))
		case porcupine.Illegal:
			wrong = append(wrong, fmt.Sprintf("volume %s: there is no order of its calls in which each was permitted; the first that does not fit: %s",
				volume, firstIllegal(of[volume], info)))
		}
	}
	return wrong
}

func operation(client int, c labdisk.Call) porcupine.Operation {
	o := porcupine.Operation{ClientId: client, Input: c, Call: c.Start.UnixNano(), Return: c.End.UnixNano()}
	if c.End.IsZero() {
		o.Return = math.MaxInt64
	}
	return o
}

// firstIllegal is the first call that no order has which the checker found to fit as far as it goes.
func firstIllegal(history []porcupine.Operation, info porcupine.LinearizationInfo) string {
	fits := map[int]bool{}
	for _, partial := range info.PartialLinearizationsOperations() {
		for _, order := range partial {
			for _, o := range order {
				fits[o.ClientId] = true
			}
		}
	}
	for _, o := range history {
		if !fits[o.ClientId] {
			return describe(o.Input.(labdisk.Call))
		}
	}
	return "none by itself"
}

func describe(c labdisk.Call) string {
	text := fmt.Sprintf("%s on node %s, from %s", c.Method, c.Node, c.Start.Format(time.StampMilli))
	if c.End.IsZero() {
		return text + ", in flight"
	}
	return fmt.Sprintf("%s to %s, %s", text, c.End.Format(time.StampMilli), c.Code)
}

// rule is what a call demands of the state and does to it.
type rule struct {
	permits func(s state, c labdisk.Call) bool
	effect  func(s state, c labdisk.Call) state
}

var rules = map[string]rule{
	"ControllerPublishVolume": {
		func(s state, c labdisk.Call) bool { return only(s.mayHold, c.Node) },
		func(s state, c labdisk.Call) state {
			s.mayHold = with(s.mayHold, c.Node)
			if ok(c) {
				s.holds = with(s.holds, c.Node)
			}
			return s
		},
	},
	"ControllerUnpublishVolume": {
		func(s state, c labdisk.Call) bool { return !has(s.mayStage, c.Node) && !hasNode(s.mayPublish, c.Node) },
		func(s state, c labdisk.Call) state {
			s.holds = without(s.holds, c.Node)
			if ok(c) {
				s.mayHold = without(s.mayHold, c.Node)
			}
			return s
		},
	},
	"NodeStageVolume": {
		func(s state, c labdisk.Call) bool { return has(s.holds, c.Node) },
		func(s state, c labdisk.Call) state {
			if !refused(c) {
				s.mayStage = with(s.mayStage, c.Node)
			}
			if ok(c) {
				s.staged = with(s.staged, c.Node)
			}
			return s
		},
	},
	"NodePublishVolume": {
		func(s state, c labdisk.Call) bool { return has(s.holds, c.Node) && has(s.staged, c.Node) },
		func(s state, c labdisk.Call) state {
			if !refused(c) {
				s.mayPublish = with(s.mayPublish, c.Node+" "+c.Target)
			}
			return s
		},
	},
	"NodeUnpublishVolume": {
		func(state, labdisk.Call) bool { return true },
		func(s state, c labdisk.Call) state {
			if ok(c) {
				s.mayPublish = without(s.mayPublish, c.Node+" "+c.Target)
			}
			return s
		},
	},
	"NodeUnstageVolume": {
		func(s state, c labdisk.Call) bool { return !hasNode(s.mayPublish, c.Node) },
		func(s state, c labdisk.Call) state {
			s.staged = without(s.staged, c.Node)
			if ok(c) {
				s.mayStage = without(s.mayStage, c.Node)
			}
			return s
		},
	},
}

func ok(c labdisk.Call) bool { return c.Code == codes.OK.String() }

// refused reports whether a node's call had no effect, by its code: the other codes leave that open (k/k pkg/volume/csi isFinalError).
func refused(c labdisk.Call) bool {
	switch c.Code {
	case "", codes.OK.String(), codes.Canceled.String(), codes.DeadlineExceeded.String(), codes.Unavailable.String(),
		codes.ResourceExhausted.String(), codes.Aborted.String():
		return false
	}
	return true
}

var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(before, input, _ any) (bool, any) {
		s, c := before.(state), input.(labdisk.Call)
		r := rules[c.Method]
		return r.permits(s, c), r.effect(s, c)
	},
	DescribeOperation: func(input, _ any) string { return describe(input.(labdisk.Call)) },
}

// only reports whether a set has no other element.
func only(set, element string) bool { return set == "" || set == element+"\n" }

func has(set, element string) bool { return slices.Contains(strings.Split(set, "\n"), element) }

// hasNode reports whether a set of "node target" has one of the node.
func hasNode(set, node string) bool {
	return strings.HasPrefix(set, node+" ") || strings.Contains(set, "\n"+node+" ")
}

func with(set, element string) string {
	elements := strings.SplitAfter(set, "\n")
	if has(set, element) {
		return set
	}
	elements = append(elements, element+"\n")
	slices.Sort(elements)
	return strings.Join(elements, "")
}

func without(set, element string) string {
	return strings.Join(slices.DeleteFunc(strings.SplitAfter(set, "\n"), func(e string) bool { return e == element+"\n" }), "")
}
