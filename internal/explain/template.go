package explain

import (
	"slices"
	"strings"
)

// ofTemplate is how steps refer to what has to be corrected where the pods are made from.
const ofTemplate = "the pod's template"

// CorrectsTemplate reports whether a step asks for a change of the pod's template, and none deletes the pod.
func CorrectsTemplate(steps []Step) bool {
	deletes := func(s Step) bool { return strings.Contains(s.Command, "kubectl delete pod ") }
	return slices.ContainsFunc(steps, func(s Step) bool { return strings.Contains(s.Text, ofTemplate) }) && !slices.ContainsFunc(steps, deletes)
}

// ReplaceAfterCorrection is what a corrected template needs to reach a pod of a StatefulSet that does not start.
func ReplaceAfterCorrection(namespace, pod, statefulSet string) Step {
	step := Step{Text: "If you have corrected the template, delete the pod: StatefulSet " + statefulSet + " waits for it to be Ready, and does not replace it before."}
	if command := in(orMissing(namespace), "kubectl delete pod "+orMissing(pod)); !strings.Contains(command, missingWord) {
		step.Command = command
	}
	return step
}
