package timeline

import "slices"

// Sign is how a step shows: a change of an object or a CSI call.
type Sign struct {
	Step    StepName
	Leaving bool
	// Kind of the change; empty if Method is set.
	Kind Kind
	// Method of the CSI call; empty if Kind is set.
	Method string
}

// SignOf returns how a step shows; false for a name that is no step.
func SignOf(name StepName) (Sign, bool) {
	for _, rule := range stepRules {
		if rule.name == name {
			return Sign{Step: name, Leaving: rule.leaving, Kind: rule.kind, Method: rule.method}, true
		}
	}
	return Sign{}, false
}

// InChange reports whether a change is the sign of a step in a move of the volume away
// from a node.
func (s Sign) InChange(c Change, v Volume, from string) bool {
	if c.Kind != s.Kind || s.Kind == "" || (c.Node == from) != s.Leaving {
		return false
	}
	return slices.Contains(c.Claims, v.Claim) || c.Volume == v.PV || c.Volume == v.Unique
}

// InCall reports the same of a CSI call.
func (s Sign) InCall(c Call, v Volume, from string) bool {
	return s.Method != "" && c.Method == s.Method && c.Volume == v.Handle && (c.Node == from) == s.Leaving
}
