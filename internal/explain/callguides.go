package explain

import (
	"cmp"
	"fmt"
	"maps"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/publication"
)

func init() { maps.Copy(guides, callGuides) }

// onAttachment is why what belay-attacher waits for has no event.
const onAttachment = "belay-attacher emits no events: after 10 s the annotation belay.dev/pending-call of the VolumeAttachment has it"

// callGuides are the guides to the reasons for which belay-attacher has no answer of the driver: a call is in flight, or was not sent.
var callGuides = map[decision.Reason]Guide{
	publication.CallInFlight: {
		Title: "The driver has not answered a call",
		Page:  pageAttacher, Event: FailedMount, Verdict: InProgress,
		Summary: func(s Situation) string {
			if s.NotSent {
				return notSent(s, "another call for the volume is in flight")
			}
			return fmt.Sprintf("CSI driver %s has not answered %s yet%s", s.Driver, whatFor(s), because(s.Detail))
		},
		Next: callInFlight,
	},
	publication.DriverBusy: {
		Title: "As many calls are in flight as the attacher allows",
		Page:  pageAttacher, Silence: onAttachment, Verdict: InProgress,
		Summary: func(s Situation) string { return notSent(s, "as many calls are in flight as it allows") },
		Next: func(s Situation) []Step {
			return []Step{
				{Text: "Find out what the calls in flight hang in, in the log of the driver's controller. The call is sent as soon as one of them ends.", Command: logsCommand(s)},
				{Text: "If the driver answers and is only slow, raise the attacher's --worker-threads, or remove that flag: the default is 256."},
			}
		},
	},
	publication.NodeHeldBack: {
		Title: "The node is full, and attaches to it are tried one at a time",
		Page:  pageAttacher, Silence: onAttachment, Verdict: InProgress,
		Summary: func(s Situation) string {
			return notSent(s, "the driver says that the node is full, and attaches to it are tried one at a time")
		},
		Next: func(s Situation) []Step {
			return []Step{{Text: "Free a slot: end a pod on the node that uses volumes of the driver, or delete this pod so that it gets another node. See what the node has.", Command: "kubectl belay map --node " + cmp.Or(s.Wanted, s.Node)}}
		},
	},
	publication.VolumeHeldBack: {
		Title: "The driver is busy with the shared volume, and its nodes are tried one at a time",
		Page:  pageAttacher, Silence: onAttachment, Verdict: InProgress,
		Summary: func(s Situation) string {
			return notSent(s, "the driver is busy with the volume, and its nodes are tried one at a time")
		},
		Next: func(s Situation) []Step {
			return []Step{{Text: "Wait: one node is tried each second. If it lasts, find out in the log of the driver's controller which operation of the volume does not end.", Command: logsCommand(s)}}
		},
	},
	publication.DriverGone: {
		Title: "The connection to the driver is lost",
		Page:  pageAttacher, Silence: onAttachment,
		Summary: func(s Situation) string { return notSent(s, "its connection to the driver is lost") },
		Next: func(s Situation) []Step {
			step := Step{Text: "Find out why the driver's container beside the attacher does not run. The call is sent as soon as it does."}
			if s.LeaseNamespace != "" {
				step.Command = in(s.LeaseNamespace, "kubectl get pods -o wide")
			}
			return []Step{step}
		},
	},
}

// notSent says why the attacher has not called the driver.
func notSent(s Situation, why string) string {
	return fmt.Sprintf("the attacher of CSI driver %s has not sent %s, because %s%s", s.Driver, whatFor(s), why, because(s.Detail))
}

// whatFor is the operation that the driver is called for.
func whatFor(s Situation) string {
	if s.Call == Detach {
		return "the detach from node " + cmp.Or(s.Node, s.Wanted)
	}
	return "the attach to node " + cmp.Or(s.Wanted, s.Node)
}

// callInFlight is what to do while a call is in flight: an attempt cannot be brought forward before it has ended.
func callInFlight(s Situation) []Step {
	wait := Step{Text: "Wait: no other call for the volume is sent before this one ends."}
	if s.Until != "" {
		wait.Text = "Wait: the driver may still work on it. The attacher ends the call by " + s.Until + ", and repeats it."
	}
	ask := Step{Text: "If it lasts, ask the storage what it does with the volume.", Command: s.Ask}
	if s.Ask == "" {
		ask.Text += " The handle of the volume is " + cmp.Or(s.Handle, "unknown") + "."
	}
	if s.Call == Detach {
		ask.Text += " A volume that stays busy is still in use on node " + cmp.Or(s.Node, s.Wanted) + ": end what has it mounted or open there, or shut the machine down."
	}
	ask.Text += documented(s)
	return []Step{wait, ask, {Text: "Find out in the log of the driver's controller what the call hangs in.", Command: logsCommand(s)}}
}
