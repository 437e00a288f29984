package far

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/explain"
)

// FAR's API (fence-agents-remediation v0.7.0 api/v1alpha1/groupversion_info.go).
const (
	Group    = "fence-agents-remediation.medik8s.io"
	Version  = "v1alpha1"
	Kind     = "FenceAgentsRemediationTemplate"
	Resource = "fenceagentsremediationtemplates"
)

// Result is what became of a FenceSource.
type Result string

// The results.
const (
	Accepted  Result = "Accepted" // by the API server, in a dry run
	Created   Result = "Created"
	Unchanged Result = "Unchanged" // it existed
	Refused   Result = "Refused"
)

// ImportPlan is what "kubectl belay import far" prints.
type ImportPlan struct {
	metav1.TypeMeta `json:",inline"`

	// Sources are the FenceSources.
	Sources []PlannedSource `json:"sources,omitempty"`
	// Notes are what is different from what FAR does, or was left out.
	Notes []string `json:"notes,omitempty"`
	// Next are the steps that a person has to take.
	Next []explain.Step `json:"next,omitempty"`
}

// PlannedSource is one FenceSource.
type PlannedSource struct {
	Node     string `json:"node"`
	Template string `json:"template"`
	Result   Result `json:"result"`
	// Message is why it is refused.
	Message string `json:"message,omitempty"`
	// Manifest can be given to kubectl.
	Manifest map[string]any `json:"manifest"`
}

// Manifest is a FenceSource as a person would write it.
func Manifest(s *fencingv1.FenceSource) map[string]any {
	return map[string]any{"apiVersion": s.APIVersion, "kind": s.Kind, "metadata": map[string]any{"name": s.Name}, "spec": s.Spec}
}

// Failed is how many FenceSources were refused.
func (p *ImportPlan) Failed() (refused int) {
	for i := range p.Sources {
		if p.Sources[i].Result == Refused {
			refused++
		}
	}
	return refused
}
