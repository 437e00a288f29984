package nodeagent

import (
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/nodevolume"
)

// observe returns the facts for a decision that are not in the volume's state. The caller holds mu.
func (m *volumeManager) observe(v *volume, node nodevolume.Node) nodevolume.Facts {
	rules := m.plugins.Rules(v.driver)
	facts := nodevolume.Facts{
		Node: node, AttachRequired: rules.AttachRequired, Unaccounted: m.isUnaccounted(v.name),
		Pod: func(p *nodevolume.PodVolume) nodevolume.PodFacts {
			facts := nodevolume.PodFacts{PodState: m.pods.state(types.UID(p.Key.PodUID))}
			if w := v.findPod(p.Key).toMount; w != nil {
				facts.Wants, facts.Label, facts.SolePod, facts.ReadOnly = true, labelFor(w, rules), w.solePod, w.readOnly
			}
			return facts
		},
	}
	if client, has := m.plugins.Registered(v.driver); client != nil {
		facts.Driver.Registered = true
		if rules.Republish {
			facts.Driver.RepublishEvery = m.config.republishPeriod
		}
		if has != nil {
			facts.Driver.Stages = decision.Known(has.Stage)
		}
	}
	return facts
}

// demands returns a function for the demand of each pod of the volume. The caller holds mu.
func (m *volumeManager) demands(v *volume) func(*podVolume) nodevolume.Demand {
	facts := m.observe(v, nodevolume.Node{})
	return func(p *podVolume) nodevolume.Demand { return v.state.Demand(facts, p.PodVolume) }
}
