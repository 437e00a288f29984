package diagnosis

import (
	"fmt"
	"slices"
	"strings"
	"time"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// provenBy says by what evidence a fence has proven that a boot has ended, who gave it and when, as its record shows; empty without a proof.
func (x *state) provenBy(object *fencingv1.NodeFence) string {
	class := kube.FenceState(object).Evidence
	if class == "" {
		return ""
	}
	p := explain.Proof{Class: class, At: conditionSince(object, kube.ConditionProven)}
	var latest time.Time
	for i := range object.Status.Evidence {
		if e := &object.Status.Evidence[i]; fencing.Class(e.Class) == class && e.BootID == object.Spec.BootID && !e.Time.Time.Before(latest) {
			latest, p.At, p.By, p.Text = e.Time.Time, e.Time.Time, x.foreign(e.Source), x.foreign(e.Raw)
		}
	}
	if class == fencing.PoweredOff {
		p.Switch = switchesOf(x.sources[object.Spec.NodeName])
	}
	return explain.ProvenBy(p)
}

// doneBy ends the summary of a fence that takes, or has taken, what the machine had: by what evidence. What is only being confirmed, or is
// contradicted, has its own words.
func (x *state) doneBy(f *fence) string {
	if f.reason == fencing.Contradicted || !slices.Contains([]fencing.Phase{fencing.Evicting, fencing.Detaching, fencing.Moved}, f.Phase) {
		return ""
	}
	return after("; ", x.provenBy(f.object))
}

// after is a text behind what joins it to another one; empty without it.
func after(joint, text string) string {
	if text == "" {
		return ""
	}
	return joint + text
}

// switchesOf are the power switches of a FenceSource, as it is now: its levels in their order, with the feeds of each.
func switchesOf(source *fencingv1.FenceSource) string {
	if source == nil {
		return ""
	}
	var levels []string
	for _, level := range source.Spec.Levels {
		var feeds []string
		for _, f := range level.Feeds {
			text := f.Agent
			if f.Plug != "" {
				text = fmt.Sprintf("%s plug %s", f.Agent, f.Plug)
			}
			feeds = append(feeds, text)
		}
		levels = append(levels, strings.Join(feeds, " and "))
	}
	return strings.Join(levels, ", then ")
}
