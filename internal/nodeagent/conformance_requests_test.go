package nodeagent

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const requestsGolden = "testdata/requests.golden"

var update = flag.Bool("update", false, "write "+requestsGolden+" and the transcripts of lives again; read them afterwards: they are the contract")

const (
	stageCapability      = csispec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
	tellsApartCapability = csispec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
	groupCapability      = csispec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP
)

// asked is one case of requests to a driver.
type asked struct {
	name     string
	attach   bool
	caps     []csispec.NodeServiceCapability_RPC_Type
	driver   func(*storagev1.CSIDriver)
	pv       volumeOptions
	pod      func(*corev1.Pod)
	asDevice bool
}

// accessModes has a volume of these access modes.
func accessModes(list ...corev1.PersistentVolumeAccessMode) volumeOptions {
	return func(pv *corev1.PersistentVolume) { pv.Spec.AccessModes = list }
}

func allAsked() []asked {
	stages := []csispec.NodeServiceCapability_RPC_Type{stageCapability}
	apart := []csispec.NodeServiceCapability_RPC_Type{stageCapability, tellsApartCapability}
	groups := []csispec.NodeServiceCapability_RPC_Type{stageCapability, groupCapability}
	secrets := func(pv *corev1.PersistentVolume) {
		namespace := pv.Name[:len(pv.Name)-len("-data")]
		pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: namespace, Name: "stage"}
		pv.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: namespace, Name: "publish"}
	}
	group := func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(3000))} }
	readOnly := func(p *corev1.Pod) { p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true }
	return []asked{
		{name: "a volume that is attached", attach: true, caps: stages},
		{name: "no attach", caps: stages},
		{name: "no stage", attach: true},
		{name: "ReadWriteOncePod", caps: stages, pv: accessModes(corev1.ReadWriteOncePod)},
		{name: "ReadOnlyMany", caps: stages, pv: accessModes(corev1.ReadOnlyMany)},
		{name: "ReadWriteMany", caps: stages, pv: accessModes(corev1.ReadWriteMany)},
		{name: "the first access mode counts", caps: stages, pv: accessModes(corev1.ReadWriteMany, corev1.ReadWriteOnce)},
		{name: "SINGLE_NODE_MULTI_WRITER: ReadWriteOnce", caps: apart},
		{name: "SINGLE_NODE_MULTI_WRITER: ReadWriteOncePod", caps: apart, pv: accessModes(corev1.ReadWriteOncePod)},
		{name: "SINGLE_NODE_MULTI_WRITER: ReadOnlyMany", caps: apart, pv: accessModes(corev1.ReadOnlyMany)},
		{name: "SINGLE_NODE_MULTI_WRITER: ReadWriteMany", caps: apart, pv: accessModes(corev1.ReadWriteMany)},
		{name: "no fsType and no attributes", caps: stages, pv: func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.FSType, pv.Spec.CSI.VolumeAttributes = "", nil
		}},
		{name: "mount options", caps: stages, pv: func(pv *corev1.PersistentVolume) {
			pv.Spec.MountOptions = []string{"noatime", "discard"}
		}},
		{name: "the pod's claim is read-only", caps: stages, pod: readOnly},
		{name: "the PersistentVolume's readOnly is not for the node", caps: stages, pv: func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.ReadOnly = true
		}},
		{name: "secrets", caps: stages, pv: secrets},
		{name: "SELinux label: ReadWriteOncePod, mount options", caps: stages, driver: mountsLabels, pod: labelled("s0:c1,c2"), pv: func(pv *corev1.PersistentVolume) {
			pv.Spec.AccessModes, pv.Spec.MountOptions = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}, []string{"noatime"}
		}},
		{name: "SELinux label, no stage", attach: true, driver: mountsLabels, pod: labelled("s0:c1,c2"), pv: accessModes(corev1.ReadWriteOncePod)},
		{name: "SELinux label: ReadWriteOnce", caps: stages, driver: mountsLabels, pod: labelled("s0:c1,c2")},
		{name: "SELinux label, the driver takes none", caps: stages, pod: labelled("s0:c1,c2"), pv: accessModes(corev1.ReadWriteOncePod)},
		{name: "SELinux label, block", caps: stages, driver: mountsLabels, pod: labelled("s0:c1,c2"), asDevice: true, pv: func(pv *corev1.PersistentVolume) {
			blockVolume(pv)
			pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
		}},
		{name: "VOLUME_MOUNT_GROUP with fsGroup", caps: groups, pod: group},
		{name: "VOLUME_MOUNT_GROUP without fsGroup", caps: groups},
		{name: "pod info", caps: stages, driver: func(d *storagev1.CSIDriver) { d.Spec.PodInfoOnMount = new(true) }},
		{name: "block", attach: true, caps: stages, pv: blockVolume, asDevice: true},
		{name: "block: neither mount options nor group", caps: groups, asDevice: true, pod: group, pv: func(pv *corev1.PersistentVolume) {
			blockVolume(pv)
			pv.Spec.MountOptions = []string{"noatime"}
		}},
		{name: "block, no stage: its path is sent all the same", asDevice: true, pv: blockVolume},
		{name: "block: read-only, pod info, secrets", caps: stages, asDevice: true, pod: readOnly, driver: func(d *storagev1.CSIDriver) { d.Spec.PodInfoOnMount = new(true) },
			pv: func(pv *corev1.PersistentVolume) { blockVolume(pv); secrets(pv) }},
	}
}

// TestGoldenRequests mounts and unmounts a volume of each kind. The golden file holds the requests to the driver; names
// that change from run to run are replaced there.
func TestGoldenRequests(t *testing.T) {
	server.Start(t)
	var got bytes.Buffer
	for _, c := range allAsked() {
		t.Run(c.name, func(t *testing.T) {
			fmt.Fprintf(&got, "-- %s --\n%s", c.name, newWorld(t, c.driverObject).requestsOf(c))
		})
	}
	if *update {
		must(t, os.WriteFile(requestsGolden, got.Bytes(), 0o600))
	}
	want, err := os.ReadFile(requestsGolden)
	must(t, err)
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func (c asked) driverObject(d *storagev1.CSIDriver) {
	d.Spec.AttachRequired = &c.attach
	if c.driver != nil {
		c.driver(d)
	}
}

// requestsOf mounts and unmounts, and returns the requests.
func (w *world) requestsOf(c asked) string {
	w.Helper()
	w.driver.NodeServices = c.caps
	for _, name := range []string{"stage", "publish"} {
		_, err := w.admin.CoreV1().Secrets(w.name).Create(w.ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"for": name},
		}, metav1.CreateOptions{})
		must(w, err)
	}
	var options []volumeOptions
	if c.pv != nil {
		options = append(options, c.pv)
	}
	handle := w.volume("data", options...)
	agent, _ := w.agent(withSELinux)
	pod := w.podWith("p", func(p *corev1.Pod) {
		p.Spec.ServiceAccountName = "robot"
		if c.pod != nil {
			c.pod(p)
		}
		if c.asDevice {
			device(p)
		}
	}, "data")
	if c.attach {
		w.bringUp(agent, pod, handle)
	} else {
		agent.SetPod(pod)
		w.mounted(agent, pod)
	}
	agent.RemovePod(pod.UID)
	w.untilForgotten(agent)
	names := strings.NewReplacer(w.root, "ROOT", string(pod.UID), "UID", hash(handle), "SHA256(HANDLE)", handle, "HANDLE",
		w.driverName(), "DRIVER", w.name, "NODE")
	var out strings.Builder
	for _, call := range w.driver.Calls() {
		message := call.Request.(proto.Message)
		raw, err := protojson.Marshal(message)
		must(w, err)
		var stable any
		must(w, json.Unmarshal(raw, &stable)) // protojson changes its spaces from build to build
		raw, err = json.Marshal(stable)
		must(w, err)
		fmt.Fprintf(&out, "%s %s\n", message.ProtoReflect().Descriptor().Name(), names.Replace(string(raw)))
	}
	return out.String()
}
