package preflight

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func upstreamPod(command ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "kube-system", Name: "kcm-1", UID: types.UID(strings.Join(command, " ")),
			Labels: map[string]string{"component": "kube-controller-manager"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Command: command}}},
	}
}

// What kube-controller-manager's own parsing makes of the flag.
func TestIsUpstreamOn(t *testing.T) {
	tests := map[string]struct {
		command []string
		want    bool
	}{
		"no flag":            {[]string{"kube-controller-manager", "--v=2"}, true},
		"star":               {[]string{"kube-controller-manager", "--controllers=*"}, true},
		"off":                {[]string{"/usr/bin/kube-controller-manager", "--controllers=*,-persistentvolume-attach-detach-controller"}, false},
		"off, two words":     {[]string{"kube-controller-manager", "--controllers", "*,-persistentvolume-attach-detach-controller", "--v=2"}, false},
		"off, repeated":      {[]string{"kube-controller-manager", "--controllers=*", "--controllers=-persistentvolume-attach-detach-controller"}, false},
		"off, its old name":  {[]string{"kube-controller-manager", "--controllers=*,-attachdetach"}, false},
		"others only":        {[]string{"kube-controller-manager", "--controllers=namespace-controller"}, false},
		"named":              {[]string{"kube-controller-manager", "--controllers=persistentvolume-attach-detach-controller"}, true},
		"first word counts":  {[]string{"kube-controller-manager", "--controllers=persistentvolume-attach-detach-controller,-persistentvolume-attach-detach-controller"}, true},
		"another one off":    {[]string{"kube-controller-manager", "--controllers=*,-route-controller"}, true},
		"behind a shell":     {[]string{"/bin/sh", "-c", "exec /usr/bin/kube-controller-manager --controllers=*,-persistentvolume-attach-detach-controller 2>&1"}, false},
		"behind a go-runner": {[]string{"/go-runner", "--log-file=x", "kube-controller-manager", "--v=2"}, true},
		"another program":    {[]string{"cloud-controller-manager", "--controllers=*"}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			refusal, err := MayLead(t.Context(), fake.NewClientset(upstreamPod(tt.command...)))
			if err != nil || errors.Is(refusal, ErrUpstreamRuns) != tt.want {
				t.Errorf("refusal %v, error %v; want a refusal: %v", refusal, err, tt.want)
			}
		})
	}
}

// Not being able to ask is no permission.
func TestMayLeadUnknown(t *testing.T) {
	clients := fake.NewClientset()
	clients.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no answer")
	})
	if refusal, err := MayLead(t.Context(), clients); refusal != nil || err == nil {
		t.Errorf("refusal %v, error %v; want an error", refusal, err)
	}
}

func check(t *testing.T, r Report, name string) Check {
	t.Helper()
	for _, c := range r.Checks {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no check %q in %v", name, r.Checks)
	return Check{}
}

func flexVolume(name, driver string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			FlexVolume: &corev1.FlexPersistentVolumeSource{Driver: driver},
		}},
	}
}

func flexPod(name, driver string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
			Name: "v", VolumeSource: corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{Driver: driver}},
		}}},
		Status: corev1.PodStatus{Phase: phase},
	}
}

// Any FlexVolume refuses, unless its driver is named as one without attach.
func TestFlexVolumes(t *testing.T) {
	clients := fake.NewClientset(flexVolume("a", "x/attaches"), flexVolume("b", "x/local"),
		flexPod("p", "x/attaches", corev1.PodRunning), flexPod("q", "x/local", corev1.PodRunning), flexPod("r", "x/attaches", corev1.PodSucceeded))
	r := Run(t.Context(), Config{Clients: clients, NonAttachableFlex: []string{"x/local"}})
	for name, want := range map[string]string{
		"flexvolumes":         "persistentvolume a: driver x/attaches",
		"flexvolumes in pods": "pod default/p: driver x/attaches",
	} {
		if c := check(t, r, name); c.Result != Refused || len(c.Objects) != 1 || c.Objects[0] != want {
			t.Errorf("%s: %+v, want a refusal for %s", name, c, want)
		}
	}
	if r.Ready {
		t.Error("ready all the same")
	}
	r = Run(t.Context(), Config{Clients: clients, Confirmed: true, NonAttachableFlex: []string{"x/local", "x/attaches"}})
	if !r.Ready {
		t.Errorf("not ready with all drivers named: %+v", r.Checks)
	}
}

// events makes the watch of a resource deliver what the test gives it.
func events(clients *fake.Clientset, resource string) *watch.FakeWatcher {
	w := watch.NewFakeWithChanSize(1, false)
	clients.PrependWatchReactor(resource, func(clienttesting.Action) (bool, watch.Interface, error) { return true, w, nil })
	return w
}

// A watch that breaks saw nothing, and that is not the same as nothing there.
func TestBrokenWatchIsUnknown(t *testing.T) {
	clients := fake.NewClientset()
	events(clients, "volumeattachments").Stop()
	r := Run(t.Context(), Config{Clients: clients, Observe: time.Minute})
	if c := check(t, r, "node reports"); c.Result != Unknown || r.Ready {
		t.Errorf("%+v, ready %v, want unknown", c, r.Ready)
	}
}

// Each right that is missing is named, and is no permission.
func TestMissingRights(t *testing.T) {
	for resource, name := range map[string]string{
		"nodes": "node reports", "volumeattachments": "volume attachments", "events": "attach/detach events",
		"persistentvolumes": "flexvolumes", "pods": "flexvolumes in pods",
	} {
		clients := fake.NewClientset()
		clients.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no"))
		})
		r := Run(t.Context(), Config{Clients: clients, Confirmed: true})
		c := check(t, r, name)
		if want := "needs the permission to list " + resource; c.Result != Unknown || !strings.Contains(c.Message, want) || r.Ready {
			t.Errorf("without %s: %+v, ready %v; want unknown, with %q", resource, c, r.Ready, want)
		}
	}
}

func TestReportsAsTextAndJSON(t *testing.T) {
	cluster := Cluster{Server: "https://10.0.0.1:6443", Kubeconfig: "/home/a/config", Context: "prod"}
	r := Run(t.Context(), Config{Clients: fake.NewClientset(upstreamPod("kube-controller-manager")), Cluster: cluster})
	var text, encoded bytes.Buffer
	if err := errors.Join(r.Text(&text), r.JSON(&encoded)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`Cluster: https://10.0.0.1:6443 (context "prod" of kubeconfig /home/a/config)`,
		"kube-controller-manager", "REFUSED", "pod kube-system/kcm-1", "NOT READY",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	var back Report
	if err := json.Unmarshal(encoded.Bytes(), &back); err != nil || back.Ready || back.Cluster != cluster || len(back.Checks) != len(r.Checks) {
		t.Errorf("JSON says %+v (%v)", back, err)
	}
}
