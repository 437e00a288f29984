package diagnosis

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// listedElsewhere has belay-attacher say that the driver lists the holder's volume at node b too.
func (s *scene) listedElsewhere(ago time.Duration) {
	at := s.Now.Add(-ago)
	s.va.Annotations = map[string]string{kube.PublishedElsewhereAnnotation: kube.Elsewhere{NodeID: "i-b", Node: "b", Since: at, Seen: at}.Encode()}
}

// What belay-attacher knows of a second writer is unsafe for each object of the volume, with both nodes, and stuck and check have it once.
func TestPublishedElsewhere(t *testing.T) {
	told := func(f Finding) bool {
		return f.Reason == explain.PublishedElsewhere && f.Verdict == Unsafe && strings.Contains(f.Summary, "node a and node b (node ID i-b)") && len(f.Holders) == 2
	}
	for name, tt := range map[string]struct {
		change func(*scene)
		want   bool
	}{
		"seen lately": {func(*scene) {}, true},
		"its attacher has not run, or listed, for hours": {func(s *scene) { s.listedElsewhere(4 * time.Hour) }, false},
		"shared by now":      {func(s *scene) { s.Volumes[0].Spec.AccessModes[0] = corev1.ReadWriteMany }, false},
		"no such annotation": {func(s *scene) { s.va.Annotations[kube.PublishedElsewhereAnnotation] = "b" }, false},
	} {
		s := newScene()
		s.Pods = s.Pods[:1] // the holder
		s.listedElsewhere(time.Minute)
		tt.change(&s)
		for _, subject := range []Ref{theHolder, theClaim, theVolume, {Resource: Attachments, Name: s.va.Name}} {
			e, err := Explain(s.Snapshot, subject)
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(e.Findings, told) != tt.want || (e.Verdict == Unsafe) != tt.want {
				t.Errorf("%s, %s: %s: %+v", name, subject, e.Verdict, e.Findings)
			}
		}
		if list := Stuck(s.Snapshot, "", 0); (len(list.Items) == 1 && told(list.Items[0])) != tt.want {
			t.Errorf("%s: stuck: %+v", name, list.Items)
		}
	}
}
