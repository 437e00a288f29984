package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/wait"
)

func newNamedSite(t *testing.T, name string, volumes int) *site {
	t.Helper()
	s := &site{t, name}
	s.make(volumes)
	return s
}

// upstreamPod is kube-controller-manager as kubeadm runs it.
func upstreamPod(args ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "kube-system", Name: "kube-controller-manager-a", Labels: map[string]string{"component": "kube-controller-manager"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "kube-controller-manager", Image: "i", Command: append([]string{"kube-controller-manager"}, args...),
		}}},
	}
}

// as is a client that takes the program's name, with the credentials of the config.
func as(t *testing.T, config *rest.Config, program string) client.Client {
	t.Helper()
	config = rest.CopyConfig(config)
	config.UserAgent = program + "/v1.36.3 (linux/amd64) kubernetes/x"
	other, err := client.New(config, client.Options{Scheme: clientscheme.Scheme})
	must(t, err)
	return other
}

func upstreamClient(t *testing.T) client.Client {
	t.Helper()
	return as(t, cluster.Config(), "kube-controller-manager")
}

// nodeClient has the credentials of the site's node, and upstream's name.
func (s *site) nodeClient() client.Client {
	s.Helper()
	return as(s.T, cluster.Node(s.T, s.name), "kube-controller-manager")
}

// foreignReport adds a volume to the node's report.
func (s *site) foreignReport(other client.Client, volume string) {
	s.Helper()
	node := s.node()
	before := client.StrategicMergeFrom(node.DeepCopy())
	node.Status.VolumesAttached = append(node.Status.VolumesAttached, corev1.AttachedVolume{Name: corev1.UniqueVolumeName("kubernetes.io/csi/" + driver + "^" + volume)})
	must(s.T, other.Status().Patch(s.Context(), node, before))
}

// foreignEvent emits the event of another attach/detach controller that the attach for a pod succeeded.
func (s *site) foreignEvent(other client.Client, name string) {
	s.Helper()
	must(s.T, other.Create(s.Context(), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name}, Source: corev1.EventSource{Component: kube.EventComponent},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: s.name, Name: s.volumeName(0)},
		Reason:         "SuccessfulAttachVolume", Type: corev1.EventTypeNormal,
	}))
}

// foreignEvents emits events until they are noticed: those of another client that come before the watch for them do not count.
func (s *site) foreignEvents(other client.Client, n int, noticed func() bool) {
	s.Helper()
	var last time.Time
	sent := 0
	wait.Until(s.T, "the events of another client are noticed", func() bool {
		if time.Since(last) >= time.Second {
			s.foreignEvent(other, fmt.Sprintf("%s-%d", s.volumeName(n), sent))
			last, sent = time.Now(), sent+1
		}
		return noticed()
	})
}

// foreignAttachment makes the volume's attachment, unless there is one.
func (s *site) foreignAttachment(other client.Client, n int) (made bool) {
	s.Helper()
	err := other.Create(s.Context(), fixture.Attachment(s.attachmentName(n), driver, s.name, s.volumeName(n)))
	must(s.T, client.IgnoreAlreadyExists(err))
	return err == nil
}

// awaitEvent waits for an event on the node.
func (s *site) awaitEvent(words string) {
	s.Helper()
	wait.Until(s.T, "an event says "+words, func() bool {
		events := &corev1.EventList{}
		must(s.T, cluster.Client.List(s.Context(), events))
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == "Node" && e.InvolvedObject.Name == s.name && strings.Contains(e.Message, words) {
				return true
			}
		}
		return false
	})
}
