package nodeagent

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/nodeagent/plugins"
	"belay.dev/belay/internal/nodevolume"
)

// facts gathers what a decision needs beyond the volume's own state.
type facts struct {
	// republishPeriod is Config.republishPeriod.
	republishPeriod time.Duration
	records         *recordStore
	pods            *podManager
	plugins         *plugins.Plugins
}

// observe returns the facts for a decision that are not in the volume's state. The caller holds mu.
func (f *facts) observe(v *volume, node nodevolume.Node) nodevolume.Facts {
	rules := f.plugins.Rules(v.driver)
	facts := nodevolume.Facts{
		Node: node, AttachRequired: rules.AttachRequired, Unaccounted: f.records.isUnaccounted(v.name),
		Pod: func(p *nodevolume.PodVolume) nodevolume.PodFacts {
			facts := nodevolume.PodFacts{PodState: f.pods.state(types.UID(p.Key.PodUID))}
			if w := v.findPod(p.Key).toMount; w != nil {
				facts.Wants, facts.Label, facts.SolePod, facts.ReadOnly = true, labelFor(w, rules), w.solePod, w.readOnly
			}
			return facts
		},
	}
	if client, has := f.plugins.Registered(v.driver); client != nil {
		facts.Driver.Registered = true
		if rules.Republish {
			facts.Driver.RepublishEvery = f.republishPeriod
		}
		if has != nil {
			facts.Driver.Stages = decision.Known(has.Stage)
		}
	}
	return facts
}

// demands returns a function for the demand of each pod of the volume. The caller holds mu.
func (f *facts) demands(v *volume) func(*podVolume) nodevolume.Demand {
	facts := f.observe(v, nodevolume.Node{})
	return func(p *podVolume) nodevolume.Demand { return v.state.Demand(facts, p.PodVolume) }
}

// labelFor returns the label to mount a volume with, according to its CSIDriver.
func labelFor(w *volumeToMount, rules plugins.Rules) string {
	if w == nil || !rules.SELinux {
		return ""
	}
	return w.seLinuxLabel
}
