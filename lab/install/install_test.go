package install

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/lab/cluster"
)

// TestInstall is the way of a user who adopts the controller and leaves it again: check, switch off, install, check, uninstall, switch on. A volume moves at each stage.
func TestInstall(t *testing.T) {
	r := open(t, cluster.Options{Name: "install", Nodes: 2})
	r.loadImages(oldVersion, "belay-controller")
	if _, err := r.scene.Place(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r.preflight(false) == nil {
		t.Error("preflight is content while kube-controller-manager attaches")
	}
	must(t, r.scene.Cluster.SwitchController(t.Context(), cluster.PlaneNone))
	must(t, r.preflight(true))
	r.helm(oldVersion, nil)
	t.Logf("%s leads", r.leader("belay-controller").Name)
	r.move("through the chart's pods")
	attachments, err := r.scene.Client.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(attachments.Items) == 0 {
		t.Error("nothing is attached")
	}
	for _, a := range attachments.Items {
		if len(a.ManagedFields) == 0 || !strings.HasPrefix(a.ManagedFields[0].Manager, "belay") {
			t.Errorf("VolumeAttachment %s was not created by belay: %+v", a.Name, a.ManagedFields)
		}
	}
	if out, err := r.run("kubectl-belay", "check", "--wait", "--timeout", "3m"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	r.uninstall()
	must(t, r.scene.Cluster.SwitchController(t.Context(), cluster.PlaneUpstream))
	r.move("through upstream's controller again")
	r.finish()
}
