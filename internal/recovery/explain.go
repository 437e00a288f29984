package recovery

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
)

// describeWait stores what a fence waits for.
func describeWait(s *fencingv1.NodeFenceStatus, r decision.Reason, seen fencing.Observed, node string) {
	s.Missing, s.Advice = nil, ""
	if missing, advice := explain.FenceWait(r); missing != "" {
		s.Missing, s.Advice = []string{missing}, strings.ReplaceAll(advice, "NODE", node)
		if len(seen.Cut) > 0 && r != fencing.AwaitingReturn && !seen.OptedOut && !seen.Maintenance && meta.IsStatusConditionTrue(s.Conditions, conditionStorageFenced) {
			s.Advice += explain.FenceVolumesAdvice(len(seen.Cut))
		}
	}
	if r == fencing.EarlierMachine {
		setCondition(s, conditionBesideEarlier, metav1.ConditionTrue, "VolumeAttachments", "VolumeAttachments of an earlier machine of the name are left")
	} else {
		meta.RemoveStatusCondition(&s.Conditions, conditionBesideEarlier)
	}
	if r == fencing.Contradicted {
		setCondition(s, conditionContradicted, metav1.ConditionTrue, "SignOfLife", "the boot that was proven to have ended renews its lease")
	} else if seen.Exists != fencing.Unknown {
		setCondition(s, conditionContradicted, metav1.ConditionFalse, "Silent", "the boot gave no sign of life since")
	}
}
