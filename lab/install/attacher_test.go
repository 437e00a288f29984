package install

import (
	"cmp"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/nodes"
	"belay.dev/belay/lab/scenario"
)

// csiAttacher is the image of upstream's attacher, as the nodes know it.
const csiAttacher = "lab.belay.dev/csi-attacher:v4.12.0"

// TestAttacherSwap runs csi-attacher in a Deployment as drivers do, with the rights that they ship, and puts belay-attacher in its place and takes it out again: with the commands
// of docs/adopt-attacher.md, and with the component for kustomize.
func TestAttacherSwap(t *testing.T) {
	long(t)
	r := open(t, cluster.Options{Name: "install-attacher", Nodes: 3})
	r.loadImages(oldVersion, "belay-attacher")
	r.pack(csiAttacher, filepath.Join(os.Getenv("BELAY_UPSTREAM_BIN"), "csi-attacher"))
	must(t, r.scene.Cluster.StopAttachers(t.Context()))
	driver := r.driver()
	r.apply(driver, "")
	if _, err := r.scene.Place(t.Context()); err != nil {
		t.Fatal(err)
	}
	crowd, err := r.scene.NewCrowd(t.Context(), scenario.CrowdOptions{Name: "crowd", Pods: 6, VolumesPerPod: 3, Nodes: []string{"node-1", "node-2", "node-3"}}, within)
	must(t, err)
	check := labtest.Undisturbed(t, r.scene, crowd)
	r.move("csi-attacher")
	r.whileMoving("set image", func() {
		r.do("kubectl", "-n", "belay-lab", "set", "image", "deployment/labdisk-controller", "csi-attacher=belay.dev/belay-attacher:"+oldVersion)
		r.rolledOut("belay.dev/belay-attacher:" + oldVersion)
	})
	r.whileMoving("rollout undo", func() {
		r.do("kubectl", "-n", "belay-lab", "rollout", "undo", "deployment/labdisk-controller")
		r.rolledOut(csiAttacher)
	})
	r.whileMoving("to belay-attacher", func() { r.apply(driver, "belay.dev/belay-attacher:"+oldVersion) })
	r.move("belay-attacher")
	r.whileMoving("kill of the leading pod", func() {
		r.do("kubectl", "-n", "belay-lab", "delete", "pod", "-l", "app=labdisk-controller", "--grace-period=0", "--force")
		r.rolledOut("belay.dev/belay-attacher:" + oldVersion)
	})
	r.whileMoving("back to csi-attacher", func() { r.apply(driver, csiAttacher) })
	check()
	must(t, crowd.Remove(t.Context(), within))
	r.finish()
}

// pack loads an image that is made of a static program.
func (r *rig) pack(name, program string) {
	r.t.Helper()
	file, err := os.Create(filepath.Join(r.t.TempDir(), "image.tar"))
	must(r.t, err)
	must(r.t, nodes.PackProgram(file, name, program))
	must(r.t, file.Close())
	must(r.t, r.scene.Cluster.LoadImage(r.t.Context(), file.Name()))
}

// driver writes the manifests of the lab's driver, as a driver's manifests are, and returns their folder.
func (r *rig) driver() string {
	r.t.Helper()
	template, err := os.ReadFile("testdata/driver.yaml")
	must(r.t, err)
	socket := r.scene.Cluster.CSISocket(labdisk.DriverDisk)
	text := os.Expand(string(template), func(name string) string {
		switch name {
		case "IMAGE":
			return csiAttacher
		case "SOCKET":
			return filepath.Base(socket)
		case "SOCKET_DIR":
			return filepath.Dir(socket)
		default:
			return "$" + name // $(POD_IP) is the kubelet's
		}
	})
	dir := r.t.TempDir()
	must(r.t, os.WriteFile(filepath.Join(dir, "driver.yaml"), []byte(text), 0o600))
	return dir
}

// apply applies the driver's manifests, with belay's component and another image if one is named.
func (r *rig) apply(dir, image string) {
	r.t.Helper()
	kustomization := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [driver.yaml]\n"
	if image != "" && image != csiAttacher {
		component, err := filepath.Rel(dir, filepath.Join(r.root, "deploy/belay-attacher/swap"))
		must(r.t, err)
		kustomization += "components: [" + component + "]\nimages:\n- {name: belay.dev/belay-attacher, newTag: " + oldVersion + "}\n"
	}
	must(r.t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600))
	built := filepath.Join(r.t.TempDir(), "built.yaml")
	must(r.t, os.WriteFile(built, []byte(r.do("kubectl", "kustomize", "--load-restrictor=LoadRestrictionsNone", dir)), 0o600))
	r.do("kubectl", "apply", "-f", built)
	r.rolledOut(cmp.Or(image, csiAttacher))
}

// rolledOut waits until the driver's pods are ready, and all run this attacher.
func (r *rig) rolledOut(image string) {
	r.t.Helper()
	out, err := r.run("kubectl", "-n", "belay-lab", "rollout", "status", "deployment/labdisk-controller", "--timeout="+within.String())
	if err != nil {
		described, _ := r.run("kubectl", "-n", "belay-lab", "describe", "pods")
		r.t.Log(described)
		logs, _ := r.run("kubectl", "-n", "belay-lab", "logs", "-l", "app=labdisk-controller", "--prefix")
		r.t.Fatalf("%v\n%s\n%s", err, out, logs)
	}
	pods, err := r.scene.Client.CoreV1().Pods("belay-lab").List(r.t.Context(), metav1.ListOptions{LabelSelector: "app=labdisk-controller"})
	must(r.t, err)
	for i := range pods.Items {
		if p := &pods.Items[i]; p.DeletionTimestamp == nil && p.Spec.Containers[0].Image != image {
			r.t.Errorf("pod %s runs %s, want %s", p.Name, p.Spec.Containers[0].Image, image)
		}
	}
}
