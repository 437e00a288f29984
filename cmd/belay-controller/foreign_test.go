package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
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

// foreignReport adds a volume to the node's report, by the hand of another program.
func (s *site) foreignReport(program, volume string) {
	s.Helper()
	config := rest.CopyConfig(cluster.config)
	config.UserAgent = program + "/v1.36.3 (linux/amd64) kubernetes/x"
	other, err := client.New(config, client.Options{Scheme: clientscheme.Scheme})
	must(s.T, err)
	node := s.node()
	before := client.StrategicMergeFrom(node.DeepCopy())
	node.Status.VolumesAttached = append(node.Status.VolumesAttached, corev1.AttachedVolume{Name: corev1.UniqueVolumeName("kubernetes.io/csi/" + driver + "^" + volume)})
	must(s.T, other.Status().Patch(s.Context(), node, before))
}

// annotate changes the node without touching its report.
func (s *site) annotate(value string) {
	s.Helper()
	must(s.T, cluster.Patch(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.name}},
		client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"annotations": {"test": "`+value+`"}}}`))))
}

// awaitEvent waits for an event on the node.
func (s *site) awaitEvent(words string) {
	s.Helper()
	eventually(s.T, "an event says "+words, func() bool {
		events := &corev1.EventList{}
		must(s.T, cluster.List(s.Context(), events))
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == "Node" && e.InvolvedObject.Name == s.name && strings.Contains(e.Message, words) {
				return true
			}
		}
		return false
	})
}
