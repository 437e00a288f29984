package diagnosis

import (
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/explain"
)

// ownershipText matches what a node agent reports of a volume whose files it gives to the pod's fsGroup: the volume in a path that begins with the
// pod's UID, and how many files it has done (k/k v1.36.3 pkg/volume/volume_linux.go:118, 143; v1.37.2 the same).
var ownershipText = regexp.MustCompile(`^Setting volume ownership for (?:[^/ ]+|\S*/pods/[^/ ]+)/volumes/[^/ ]+/([^/ ,]+)[^ ,]*(?:, processed (\d+) files\.)?`)

// ownershipSilent is how long a report of the change counts. The node agent makes one a minute, and client-go lets one in five minutes pass once a pod has
// had 25 events (k/k v1.36.3 pkg/volume/volume_linux.go progressReportDuration, client-go v0.36.3 tools/record/events_cache.go:48).
const ownershipSilent = 2 * 5 * time.Minute

// changesOwner reports whether the node changes the owner of a volume's files, which it has reported after a failed mount, if there was one.
func (x *state) changesOwner(w *wait, pod *corev1.Pod, v *podVolume, failed *corev1.Event) bool {
	for _, e := range x.events[string(pod.UID)] {
		if e.Reason != explain.VolumePermissionChangeInProgress || !from(e, nodeAgents) {
			continue
		}
		m := ownershipText.FindStringSubmatch(strings.TrimPrefix(e.Message, combined))
		if m == nil || !v.isNamed(m[1]) {
			continue
		}
		at := eventTime(e)
		if x.Now.Sub(at) > ownershipSilent || failed != nil && eventTime(failed).After(at) {
			return false
		}
		if w.reason = explain.OwnershipChanging; m[2] != "" {
			w.detail = m[2] + " files were done at " + stamp(at)
		}
		return true
	}
	return false
}
